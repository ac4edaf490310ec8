//! A client that writes HTTP/2 frames, whether or not they make sense.

use std::collections::HashMap;

use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};
use weir_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::target::DEADLINE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The largest payload of a frame.
pub(crate) const PART: usize = 16_384;

/// The setting of a stream's window.
const INITIAL_WINDOW: u16 = 4;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A connection to the gRPC port.
pub(crate) struct Attacker {
    pub(crate) reader: OwnedReadHalf,
    pub(crate) writer: OwnedWriteHalf,
    /// The bytes that the server lets all streams send.
    window: usize,
    /// The bytes that it lets each stream send.
    windows: HashMap<u32, usize>,
}

/// The window of a new stream of weir's.
const STREAM_WINDOW: usize = 1 << 20;

/// Returns a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the header block of a call of `path`: POST and http from HPACK's static table, and a literal path and host.
pub(crate) fn header_block_of(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("it is short");
    [&[0x83, 0x86, 0x04, length][..], path.as_bytes(), &[0x41, 1, b'w']].concat()
}

/// Returns the header block of an ordinary call.
pub(crate) fn header_block() -> Vec<u8> {
    header_block_of(METHOD)
}

/// Returns the message with gRPC's prefix.
pub(crate) fn framed(compressed: bool, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short");
    [&[u8::from(compressed)], &length.to_be_bytes()[..], message].concat()
}

/// Returns a whole call of `request`.
pub(crate) fn call(stream: u32, request: &RateLimitRequest) -> Vec<u8> {
    let body = framed(false, &request.encode_to_vec());
    let mut sent = frame(HEADERS, END_HEADERS, stream, &header_block());
    let mut parts = body.chunks(PART).peekable();
    while let Some(part) = parts.next() {
        sent.extend(frame(DATA, if parts.peek().is_none() { END_STREAM } else { 0 }, stream, part));
    }
    sent
}

// === impl Attacker ===

impl Attacker {
    /// Connects with a window of `window` bytes for each response, and as much as possible for all together.
    pub(crate) async fn connect(address: &str, window: u32) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let (reader, writer) = stream.into_split();
        let mut attacker = Self { reader, writer, window: 65_535, windows: HashMap::new() };
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let setting = [&INITIAL_WINDOW.to_be_bytes()[..], &window.to_be_bytes()].concat();
        begin.extend(frame(SETTINGS, 0, 0, &setting));
        begin.extend(frame(WINDOW_UPDATE, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes()));
        attacker.send(&begin).await;
        // the server's windows apply once its settings are acknowledged
        while attacker.next().await.is_some_and(|(kind, ..)| kind != SETTINGS) {}
        attacker.send(&frame(SETTINGS, ACK, 0, &[])).await;
        // and that of all streams once it has said so: who sends more before violates the protocol
        while attacker.window == 65_535 && attacker.next().await.is_some() {}
        attacker
    }

    /// Sends bytes. Returns false if the server has closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        timeout(DEADLINE, self.writer.write_all(bytes)).await.expect("it reads or closes").is_ok()
    }

    /// Returns the next frame: kind, flags, stream and payload. None if the server has closed the connection.
    pub(crate) async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        timeout(DEADLINE, self.read()).await.expect("a frame or the end, in time")
    }

    async fn read(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut header = [0; 9];
        self.reader.read_exact(&mut header).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
        self.reader.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        if header[3] == WINDOW_UPDATE {
            let more = u32::from_be_bytes(payload[..4].try_into().expect("four bytes")) as usize;
            let window = if stream == 0 {
                &mut self.window
            } else {
                self.windows.entry(stream).or_insert(STREAM_WINDOW)
            };
            *window += more;
        }
        Some((header[3], header[4], stream, payload))
    }

    /// Sends a part of a body as soon as the windows allow it. Returns false if the server has closed the connection.
    pub(crate) async fn send_data(&mut self, stream: u32, flags: u8, part: &[u8]) -> bool {
        while self.window.min(*self.windows.entry(stream).or_insert(STREAM_WINDOW)) < part.len() {
            if self.next().await.is_none() {
                return false;
            }
        }
        self.window -= part.len();
        *self.windows.entry(stream).or_default() -= part.len();
        self.send(&frame(DATA, flags, stream, part)).await
    }

    /// Reads until the server has closed the connection.
    pub(crate) async fn until_closed(&mut self) {
        while self.next().await.is_some() {}
    }
}
