//! A service behind Envoy, for tests that need to see where a request went or what it cost.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

/// The request header with the cost that the response reports.
pub(crate) const COST: &str = "x-cost";
/// The response header with the cost.
pub(crate) const TOKENS: &str = "x-tokens";
/// The response header with the backend's name.
pub(crate) const BACKEND: &str = "x-backend";

/// Starts a backend called `name`, which runs until the test program ends.
pub(crate) fn start(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Envoy opens connections in advance: an idle one must not block the next
            thread::spawn(move || handle(&stream, name));
        }
    });
    address
}

/// Handles every request of a connection. None has a body.
fn handle(stream: &TcpStream, name: &str) -> io::Result<()> {
    let mut cost = "0".to_owned();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if let Some((COST, value)) = line.split_once(": ") {
            value.clone_into(&mut cost);
        }
        if line.is_empty() {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{BACKEND}: {name}\r\n{TOKENS}: {cost}\r\n\r\n"
            );
            let mut out = stream;
            out.write_all(head.as_bytes())?;
            "0".clone_into(&mut cost);
        }
    }
    Ok(())
}
