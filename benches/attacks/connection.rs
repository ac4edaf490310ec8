//! A connection of HTTP/2 that begins calls and ends none.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    thread,
};

use super::{
    frame::{self, END_HEADERS, HEADERS},
    target::connect,
};

pub(crate) struct Connection {
    stream: TcpStream,
    next: u32,
}

impl Connection {
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let mut stream = connect(address)?;
        let mut begin = frame::PREFACE.to_vec();
        frame::settings(&[], &mut begin);
        stream.write_all(&begin)?;
        // a server reads nothing more from a client that reads nothing
        let mut reader = stream.try_clone()?;
        thread::spawn(move || while reader.read(&mut [0; 8_192]).is_ok_and(|read| read > 0) {});
        Ok(Self { stream, next: 1 })
    }

    /// Begins a call with the header `block`.
    pub(crate) fn call(&mut self, block: &[u8]) -> io::Result<()> {
        let mut call = Vec::new();
        frame::header(block.len(), HEADERS, END_HEADERS, self.next, &mut call);
        call.extend_from_slice(block);
        self.next += 2;
        self.stream.write_all(&call)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // ends the reader, too
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
