//! A minimal HTTP/1.1 client: one request per connection.

use std::{
    fmt::Write as _,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_mins(2);

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    method: &'static str,
    path: String,
    host: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// A response.
#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

// === impl HttpRequest ===

impl HttpRequest {
    pub fn get(path: &str) -> Self {
        Self {
            method: "GET",
            path: path.to_owned(),
            host: "test".into(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub fn post(path: &str, body: String) -> Self {
        Self { method: "POST", path: path.to_owned(), host: "test".into(), headers: Vec::new(), body }
    }

    pub fn delete(path: &str) -> Self {
        Self { method: "DELETE", ..Self::get(path) }
    }

    pub fn to(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    pub fn with(mut self, header: &str, value: &str) -> Self {
        self.headers.push((header.to_owned(), value.to_owned()));
        self
    }

    pub fn to_wire(&self) -> String {
        let Self { method, path, host, headers, body } = self;
        let length = body.len();
        let mut wire = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n"
        );
        for (name, value) in headers {
            let _ = write!(wire, "{name}: {value}\r\n");
        }
        wire + "\r\n" + body
    }
}

// === impl HttpResponse ===

impl HttpResponse {
    /// Returns the value of the header with that lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    fn from_wire(wire: &str) -> Option<Self> {
        let (head, body) = wire.split_once("\r\n\r\n")?;
        let chunked = head.lines().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
        let body = if chunked { joined(body)? } else { body.to_owned() };
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Some(Self { status, headers, body })
    }
}

/// Joins the chunks of a body (RFC 9112, section 7.1).
fn joined(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body += rest.get(..size)?;
        chunks = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// Sends `request` to `address`, and fails the test without a response.
pub fn send(address: SocketAddr, request: &HttpRequest) -> HttpResponse {
    try_send(address, request).unwrap_or_else(|error| panic!("{request:?} to {address}: {error}"))
}

/// Sends `request` to `address`.
pub fn try_send(address: SocketAddr, request: &HttpRequest) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.to_wire().as_bytes())?;
    let mut wire = Vec::new();
    // a server may keep the connection, whatever one asks for
    while !is_whole(&wire) && read_part(&mut stream, &mut wire)? {}
    HttpResponse::from_wire(&String::from_utf8_lossy(&wire))
        .ok_or_else(|| io::Error::other("no HTTP response"))
}

/// Appends what has arrived. Returns false at the end.
fn read_part(stream: &mut TcpStream, wire: &mut Vec<u8>) -> io::Result<bool> {
    let mut part = [0; 16 << 10];
    let length = stream.read(&mut part)?;
    wire.extend_from_slice(&part[..length]);
    Ok(length > 0)
}

/// Whether this is a response of the length that it tells.
fn is_whole(wire: &[u8]) -> bool {
    let Some(head) = wire.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let lines = String::from_utf8_lossy(&wire[..head]).to_ascii_lowercase();
    let length =
        lines.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| wire.len() >= head + 4 + length)
}
