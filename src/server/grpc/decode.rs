//! Decodes a `RateLimitRequest` in one pass. The result borrows from the bytes, so that a decision copies nothing.
//!
//! The wire format is protobuf's (<https://protobuf.dev/programming-guides/encoding>): unknown fields are skipped, the last of
//! repeated scalars wins, and repeated parts of a message are merged. `decode/tests.rs` compares this decoder with the generated
//! one.

use crate::{
    limit::{Descriptor, Entry, Request, RuntimeLimit},
    server::{
        bounds::{RequestBounds, TooLarge},
        conversion::{ConversionError, unit},
    },
};

/// The maximum nesting of groups in an unknown field, as in other protobuf decoders.
const MAX_DEPTH: u32 = 100;

/// The maximum of a varint's tenth byte, which holds the 64th bit.
const MAX_TENTH_BYTE: u8 = 1;

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecodeError {
    /// They are not a `RateLimitRequest`.
    #[error("malformed RateLimitRequest: {what} in {path}, at byte {at}")]
    Malformed {
        /// The error.
        what: &'static str,
        /// The message that contains it.
        path: &'static str,
        /// Its position in the request, from 0.
        at: usize,
    },
    /// They are a `RateLimitRequest` with an invalid value.
    #[error(transparent)]
    Conversion(#[from] ConversionError),
    /// They are a `RateLimitRequest` with too many parts.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// The wire type of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WireType {
    Varint,
    Fixed64,
    Bytes,
    GroupBegin,
    GroupEnd,
    Fixed32,
}

/// The unread rest of one message.
struct Reader<'a> {
    rest: &'a [u8],
    /// The whole request, if it is UTF-8: as nearly all are, whose lengths have one byte. One check of it costs less than one of
    /// each string.
    text: Option<&'a str>,
    /// The position in the request at which `rest` ends, for errors.
    end: usize,
    path: &'static str,
}

/// Decodes a request within `bounds`.
///
/// # Errors
///
/// [`DecodeError`], if `bytes` are not a valid request, or exceed the bounds.
pub(super) fn decode<'a>(bytes: &'a [u8], bounds: &RequestBounds) -> Result<Request<'a>, DecodeError> {
    let mut request = Request::default();
    let mut entries = 0;
    let text = std::str::from_utf8(bytes).ok();
    let mut reader = Reader { rest: bytes, text, end: bytes.len(), path: "the request" };
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => request.domain = reader.string(kind)?,
            2 => {
                let index = request.descriptors.len();
                if index >= bounds.descriptors {
                    return Err(TooLarge::Descriptors(bounds.descriptors).into());
                }
                let message = reader.message(kind, "a descriptor")?;
                request.descriptors.push(Descriptor::default());
                let read = &mut request.descriptors[index];
                descriptor(message, index, read, bounds.entries - entries, bounds)?;
                entries += read.entries.len();
            }
            3 => request.hits = reader.uint32(kind)?,
            _ => reader.skip(field, kind, 0)?,
        }
    }
    Ok(request)
}

/// Reads a descriptor of at most `max_entries` entries, which are left of the bound.
fn descriptor<'a>(
    mut reader: Reader<'a>,
    index: usize,
    descriptor: &mut Descriptor<'a>,
    max_entries: usize,
    bounds: &RequestBounds,
) -> Result<(), DecodeError> {
    // the raw values of the override: its parts are merged before they are interpreted
    let mut limit: Option<(u32, i32)> = None;
    while let Some((field, kind)) = reader.field()? {
        match field {
            1 => {
                if descriptor.entries.len() >= max_entries {
                    return Err(TooLarge::Entries(bounds.entries).into());
                }
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

/// Reads a `google.protobuf.UInt64Value`.
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
    /// Reads the next field's number and type; none at the end of the message.
    fn field(&mut self) -> Result<Option<(u32, WireType)>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let Ok(key) = u32::try_from(key) else {
            return Err(self.malformed("a field number that is too large"));
        };
        let kind = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Bytes,
            3 => WireType::GroupBegin,
            4 => WireType::GroupEnd,
            5 => WireType::Fixed32,
            _ => return Err(self.malformed("an unknown wire type")),
        };
        match key >> 3 {
            0 => Err(self.malformed("field number 0")),
            field => Ok(Some((field, kind))),
        }
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        // lengths, keys and most values have one byte
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
                if i == 9 && *byte > MAX_TENTH_BYTE {
                    break;
                }
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(self.malformed("a varint that is truncated or too large"))
    }

    fn varint_of(&mut self, kind: WireType) -> Result<u64, DecodeError> {
        self.expect(kind, WireType::Varint)?;
        self.varint()
    }

    /// Truncates larger values, as protobuf specifies.
    #[expect(clippy::cast_possible_truncation, reason = "as protobuf specifies")]
    fn uint32(&mut self, kind: WireType) -> Result<u32, DecodeError> {
        Ok(self.varint_of(kind)? as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "as protobuf specifies")]
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
            None => Err(self.malformed("a field that exceeds the message")),
        }
    }

    fn string(&mut self, kind: WireType) -> Result<&'a str, DecodeError> {
        let bytes = self.bytes(kind)?;
        let end = self.end - self.rest.len();
        if let Some(string) = self.text.and_then(|text| text.get(end - bytes.len()..end)) {
            return Ok(string);
        }
        std::str::from_utf8(bytes).map_err(|_| self.malformed("a string that is not UTF-8"))
    }

    /// Returns a reader of the message in a field.
    fn message(&mut self, kind: WireType, path: &'static str) -> Result<Self, DecodeError> {
        let rest = self.bytes(kind)?;
        Ok(Self { rest, text: self.text, end: self.end - self.rest.len(), path })
    }

    /// Skips the value of an unknown field.
    #[cold]
    fn skip(&mut self, field: u32, kind: WireType, depth: u32) -> Result<(), DecodeError> {
        match kind {
            WireType::Varint => self.varint().map(drop),
            WireType::Bytes => self.bytes(kind).map(drop),
            WireType::Fixed64 => self.skip_bytes(8),
            WireType::Fixed32 => self.skip_bytes(4),
            WireType::GroupEnd => Err(self.malformed("the end of a group without a start")),
            WireType::GroupBegin if depth == MAX_DEPTH => Err(self.malformed("too deeply nested groups")),
            WireType::GroupBegin => loop {
                match self.field()? {
                    Some((inner, WireType::GroupEnd)) if inner == field => return Ok(()),
                    Some((inner, kind)) => self.skip(inner, kind, depth + 1)?,
                    None => return Err(self.malformed("a group without an end")),
                }
            },
        }
    }

    fn skip_bytes(&mut self, bytes: usize) -> Result<(), DecodeError> {
        match self.rest.get(bytes..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.malformed("a field that exceeds the message")),
        }
    }

    fn expect(&self, kind: WireType, expected: WireType) -> Result<(), DecodeError> {
        if kind == expected { Ok(()) } else { Err(self.malformed("a field with the wrong wire type")) }
    }

    #[cold]
    fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed { what, path: self.path, at: self.end - self.rest.len() }
    }
}

#[cfg(test)]
mod tests;
