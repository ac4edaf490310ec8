//! Writes protobuf messages, with gRPC's message prefix.

use bytes::Bytes;

use crate::grpc::PREFIX;

/// The length of most responses, which need no buffer of their own.
const SHORT: usize = 256;

const ONE_BYTE: usize = 0x7f;

/// Numbers below it are varints of up to eight bytes.
const EIGHT_BYTES: u64 = 1 << 56;

/// The bit of all bytes of a varint but the last.
const CONTINUED: u64 = 0x8080_8080_8080_8080;

/// The length of `short` after a message has exceeded it.
const EXCEEDED: usize = usize::MAX;

pub(crate) struct FieldWriter {
    short: [u8; SHORT],
    length: usize,
    /// The whole message, once it exceeds `short`.
    long: Vec<u8>,
}

// === impl FieldWriter ===

impl FieldWriter {
    pub(crate) fn new() -> Self {
        Self { short: [0; SHORT], length: PREFIX, long: Vec::new() }
    }

    /// Writes a numeric field below 128; omits 0, as protobuf specifies.
    #[inline]
    pub(crate) fn small(&mut self, field: u8, value: u8) {
        debug_assert!(usize::from(value) <= ONE_BYTE);
        if value != 0 {
            self.put([field << 3, value], 2);
        }
    }

    #[inline]
    pub(crate) fn number(&mut self, field: u8, value: u64) {
        if value != 0 {
            self.keyed(field << 3, value);
        }
    }

    #[inline]
    pub(crate) fn text(&mut self, field: u8, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    pub(crate) fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.keyed(field << 3 | 2, bytes.len() as u64);
        let room = self.short.get_mut(self.length..).and_then(|rest| rest.get_mut(..bytes.len()));
        match room {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.exceed(bytes),
        }
    }

    #[inline]
    pub(crate) fn message(&mut self, field: u8, write: impl FnOnce(&mut Self)) {
        // the length precedes the content and nearly always has one byte: moving the few longer messages is cheaper
        // than measuring all of them first
        self.put([field << 3 | 2, 0], 2);
        let begin = self.position();
        write(self);
        let length = self.position() - begin;
        match self.written().get_mut(begin - 1) {
            Some(place) if length <= ONE_BYTE => *place = length.to_le_bytes()[0],
            _ => self.set_length(begin, length),
        }
    }

    pub(crate) fn finish(mut self) -> Bytes {
        // the size of a response is proportional to its request's, whose bound is far below u32::MAX
        let length = u32::try_from(self.position() - PREFIX).unwrap_or(u32::MAX);
        let written = self.written();
        written[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        Bytes::copy_from_slice(written)
    }

    #[inline]
    fn keyed(&mut self, key: u8, value: u64) {
        if value >= EIGHT_BYTES {
            return self.keyed_long(key, value);
        }
        // seven bits to each byte: by halves, quarters and eighths
        let value = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
        let value = value & 0x0000_3fff_0000_3fff | (value & 0x0fff_c000_0fff_c000) << 2;
        let value = value & 0x007f_007f_007f_007f | (value & 0x3f80_3f80_3f80_3f80) << 1;
        let last = (value | 1).ilog2() / 8;
        let bytes = value | CONTINUED & ((1 << (8 * last)) - 1);
        let mut keyed = [key; 9];
        keyed[1..].copy_from_slice(&bytes.to_le_bytes());
        self.put(keyed, last as usize + 2);
    }

    #[cold]
    fn keyed_long(&mut self, key: u8, mut value: u64) {
        self.put([key], 1);
        while value > 0x7f {
            self.put([value.to_le_bytes()[0] | 0x80], 1);
            value >>= 7;
        }
        self.put([value.to_le_bytes()[0]], 1);
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn put<const N: usize>(&mut self, bytes: [u8; N], used: usize) {
        let rest = self.short.get_mut(self.length..);
        match rest.and_then(|rest| rest.first_chunk_mut::<N>()) {
            Some(place) => {
                *place = bytes;
                self.length += used;
            }
            None => self.exceed(&bytes[..used]),
        }
    }

    #[cold]
    fn exceed(&mut self, bytes: &[u8]) {
        if self.length != EXCEEDED {
            self.long.extend_from_slice(&self.short[..self.length]);
            self.length = EXCEEDED;
        }
        self.long.extend_from_slice(bytes);
    }

    #[cold]
    fn set_length(&mut self, begin: usize, length: usize) {
        let mut encoded = Self { length: 0, ..Self::new() };
        encoded.keyed(0, length as u64);
        self.exceed(&[]);
        let encoded = encoded.short[1..encoded.length].iter().copied();
        self.long.splice(begin - 1..begin, encoded);
    }

    #[inline]
    fn position(&self) -> usize {
        if self.length == EXCEEDED { self.long.len() } else { self.length }
    }

    #[inline]
    fn written(&mut self) -> &mut [u8] {
        if self.length == EXCEEDED { &mut self.long } else { &mut self.short[..self.length] }
    }
}
