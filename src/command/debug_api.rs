//! Calls of the API of the debug port.

use std::{
    fmt::Write as _,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// The most bytes of what an error says, and of a head.
const MAX_TEXT: u64 = 64 << 10;

pub(super) struct ApiCall<'a> {
    pub(super) method: &'static str,
    pub(super) path: &'a str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    Lost(#[from] io::Error),
    #[error("{status}: {detail}")]
    Refused { status: u16, detail: String },
}

/// Writes the body of the answer to `out`, if the call succeeds. Each read waits for `timeout` at most.
pub(super) fn call_api(
    address: SocketAddr,
    call: &ApiCall<'_>,
    timeout: Duration,
    out: &mut dyn Write,
) -> Result<(), ApiError> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // so that the answer has no parts, and ends with the connection
    let ApiCall { method, path, headers, body } = call;
    let mut request =
        format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        // writing to a string cannot fail
        let _ = write!(request, "{name}: {value}\r\n");
    }
    stream.write_all((request + "\r\n" + body).as_bytes())?;
    let mut reply = BufReader::new(stream);
    let status = read_head(&mut reply)?;
    if status == 200 {
        io::copy(&mut reply, out)?;
        return Ok(());
    }
    let mut text = String::new();
    reply.take(MAX_TEXT).read_to_string(&mut text)?;
    let problem = serde_json::from_str::<Value>(&text).ok();
    let detail = problem.as_ref().and_then(|problem| problem.get("detail")?.as_str());
    Err(ApiError::Refused { status, detail: detail.unwrap_or(text.trim()).to_owned() })
}

/// Returns the status.
fn read_head(reply: &mut impl io::BufRead) -> io::Result<u16> {
    let mut head = reply.take(MAX_TEXT);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("the answer is no HTTP"))?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            return Ok(status);
        }
    }
}
