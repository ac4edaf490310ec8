//! The frames of HTTP/2 (RFC 9113).

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
/// The flag of SETTINGS and PING frames.
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const PRIORITY: u8 = 0x20;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The settings that this client uses.
pub const ENABLE_PUSH: u16 = 2;
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// The initial size of both windows.
pub const DEFAULT_WINDOW: u32 = 65_535;
pub const MAX_WINDOW: u32 = 0x7fff_ffff;

/// The size of a frame's header in bytes.
pub const HEADER: usize = 9;

/// A frame in a buffer.
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns the frame at the start of `bytes`, if it is complete.
    pub fn first(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        let payload = rest.get(..length)?;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & 0x7fff_ffff;
        Some(Self { kind: header[3], flags: header[4], stream, payload })
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns its first four bytes as a number.
    pub fn number(&self) -> Option<u32> {
        self.payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// Writes the header of a frame with `length` bytes of payload.
pub fn header(length: usize, kind: u8, flags: u8, stream: u32, out: &mut Vec<u8>) {
    let length = u32::try_from(length).expect("a short frame").to_be_bytes();
    out.extend_from_slice(&[length[1], length[2], length[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

pub fn settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    header(settings.len() * 6, SETTINGS, 0, 0, out);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes an update of the connection's window by `bytes`.
pub fn window_update(bytes: u32, out: &mut Vec<u8>) {
    header(4, WINDOW_UPDATE, 0, 0, out);
    out.extend_from_slice(&bytes.to_be_bytes());
}
