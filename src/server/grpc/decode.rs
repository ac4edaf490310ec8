//! A `RateLimitRequest` read from its bytes, in one walk: what comes of it borrows from them, so that a request is
//! decided before anything of it has been copied.
//!
//! The wire format is protobuf's (<https://protobuf.dev/programming-guides/encoding>): unknown fields are passed over, the
//! last of several scalars counts, and several parts of one message add up. `decode/tests.rs` holds this reader
//! against the generated one.

use crate::{
    limit::{Descriptor, Entry, Request, RuntimeLimit},
    server::conversion::{ConversionError, unit},
};

/// How deep groups may be nested in a field that nobody knows; as deep as other readers of protobuf follow.
const MAX_DEPTH: u32 = 100;

/// The most that a varint's tenth byte may hold: the 64th bit.
const LAST_OF_VARINT: u8 = 1;

/// Why bytes are no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecodeError {
    /// They are no `RateLimitRequest`.
    #[error("the message is no RateLimitRequest: {what} in {path}, at byte {at}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// The message in which it is.
        path: &'static str,
        /// Where in the message, from 0.
        at: usize,
    },
    /// They are one that cannot be asked.
    #[error(transparent)]
    Conversion(#[from] ConversionError),
}

/// What a field is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WireType {
    Varint,
    Fixed64,
    Bytes,
    GroupBegin,
    GroupEnd,
    Fixed32,
}

/// What is left to read of one message.
struct Reader<'a> {
    rest: &'a [u8],
    /// The bytes of the whole request that end where `rest` does, to tell where an error is.
    end: usize,
    path: &'static str,
}

/// The request that `bytes` are.
///
/// # Errors
///
/// [`DecodeError`], if they are none.
pub(super) fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    let mut request = Request::default();
    let mut reader = Reader { rest: bytes, end: bytes.len(), path: "the request" };
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => request.domain = reader.string(kind)?,
            2 => {
                let index = request.descriptors.len();
                let message = reader.message(kind, "a descriptor")?;
                request.descriptors.push(Descriptor::default());
                descriptor(message, index, &mut request.descriptors[index])?;
            }
            3 => request.hits = reader.uint32(kind)?,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    Ok(request)
}

fn descriptor<'a>(
    mut reader: Reader<'a>,
    index: usize,
    descriptor: &mut Descriptor<'a>,
) -> Result<(), DecodeError> {
    // the numbers of a limit as they came: several parts of it add up before they mean anything
    let mut limit: Option<(u32, i32)> = None;
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => {
                let message = reader.message(kind, "an entry")?;
                descriptor.entries.push(entry(message)?);
            }
            2 => {
                let message = reader.message(kind, "a limit override")?;
                limit_override(message, limit.get_or_insert_default())?;
            }
            3 => {
                let message = reader.message(kind, "a descriptor's hits_addend")?;
                wrapped(message, descriptor.hits.get_or_insert_default())?;
            }
            4 => descriptor.refund = reader.varint_of(kind)? != 0,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    if let Some((requests, number)) = limit {
        descriptor.limit = Some(Box::new(RuntimeLimit::per_unit(requests, unit(index, number)?)));
    }
    Ok(())
}

fn entry(mut reader: Reader<'_>) -> Result<Entry<'_>, DecodeError> {
    let mut entry = Entry { key: "", value: "" };
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => entry.key = reader.string(kind)?,
            2 => entry.value = reader.string(kind)?,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    Ok(entry)
}

fn limit_override(mut reader: Reader<'_>, limit: &mut (u32, i32)) -> Result<(), DecodeError> {
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => limit.0 = reader.uint32(kind)?,
            2 => limit.1 = reader.int32(kind)?,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    Ok(())
}

/// A `google.protobuf.UInt64Value`.
fn wrapped(mut reader: Reader<'_>, value: &mut u64) -> Result<(), DecodeError> {
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => *value = reader.varint_of(kind)?,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    Ok(())
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// The next field's number and type; none at the end of the message.
    fn field(&mut self) -> Result<Option<(u32, WireType)>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let Ok(key) = u32::try_from(key) else { return Err(self.malformed("a field of too large a number")) };
        let kind = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Bytes,
            3 => WireType::GroupBegin,
            4 => WireType::GroupEnd,
            5 => WireType::Fixed32,
            _ => return Err(self.malformed("a field of a type that there is not")),
        };
        match key >> 3 {
            0 => Err(self.malformed("a field of number 0")),
            field => Ok(Some((field, kind))),
        }
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        // lengths, keys and most numbers are one byte long
        if let [first @ 0..=0x7f, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (i, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                if i == 9 && *byte > LAST_OF_VARINT {
                    break;
                }
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(self.malformed("a number that does not end, or is too large"))
    }

    fn varint_of(&mut self, kind: WireType) -> Result<u64, DecodeError> {
        self.expect(kind, WireType::Varint)?;
        self.varint()
    }

    /// What does not fit is cut off, as protobuf wants it.
    #[expect(clippy::cast_possible_truncation, reason = "as protobuf wants it")]
    fn uint32(&mut self, kind: WireType) -> Result<u32, DecodeError> {
        Ok(self.varint_of(kind)? as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "as protobuf wants it")]
    fn int32(&mut self, kind: WireType) -> Result<i32, DecodeError> {
        Ok(self.varint_of(kind)? as i32)
    }

    fn bytes(&mut self, kind: WireType) -> Result<&'a [u8], DecodeError> {
        self.expect(kind, WireType::Bytes)?;
        let length = self.varint()?;
        match usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length)) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.malformed("a field that is longer than the message")),
        }
    }

    fn string(&mut self, kind: WireType) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes(kind)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed("a text that is not UTF-8"))
    }

    /// The message that a field is.
    fn message(&mut self, kind: WireType, path: &'static str) -> Result<Self, DecodeError> {
        let rest = self.bytes(kind)?;
        Ok(Self { rest, end: self.end - self.rest.len(), path })
    }

    /// Passes over what belongs to a field that nobody knows.
    #[cold]
    fn skip(&mut self, field: u32, kind: WireType, depth: u32) -> Result<(), DecodeError> {
        match kind {
            WireType::Varint => self.varint().map(drop),
            WireType::Bytes => self.bytes(kind).map(drop),
            WireType::Fixed64 => self.pass(8),
            WireType::Fixed32 => self.pass(4),
            WireType::GroupEnd => Err(self.malformed("the end of a group that has not begun")),
            WireType::GroupBegin if depth == MAX_DEPTH => Err(self.malformed("groups nested too deep")),
            WireType::GroupBegin => loop {
                match self.field()? {
                    Some((inner, WireType::GroupEnd)) if inner == field => return Ok(()),
                    Some((inner, kind)) => self.skip(inner, kind, depth + 1)?,
                    None => return Err(self.malformed("a group that does not end")),
                }
            },
        }
    }

    fn pass(&mut self, bytes: usize) -> Result<(), DecodeError> {
        match self.rest.get(bytes..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.malformed("a field that is longer than the message")),
        }
    }

    fn expect(&self, kind: WireType, expected: WireType) -> Result<(), DecodeError> {
        if kind == expected { Ok(()) } else { Err(self.malformed("a field of the wrong type")) }
    }

    #[cold]
    fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed { what, path: self.path, at: self.end - self.rest.len() }
    }
}

#[cfg(test)]
mod tests;
