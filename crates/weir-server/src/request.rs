//! Decodes a `RateLimitRequest` in one pass, without the generated message type. What it returns borrows from the bytes,
//! so that a decision copies nothing. `/json` converts its bodies to the same bytes.
//!
//! The wire format is protobuf's (<https://protobuf.dev/programming-guides/encoding>): unknown fields are skipped, the
//! last of repeated scalars wins, and repeated parts of a message are merged. `request/tests.rs` compares this decoder
//! with the generated one.

use std::fmt;

use super::bounds::{RequestBounds, TooLarge};
use weir_limit::{Descriptor, Entry, Request, RuntimeLimit, Unit};
use weir_proto::envoy::r#type::v3::RateLimitUnit;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("malformed RateLimitRequest: {0}")]
    Malformed(Malformed),
    /// The unit of the override of the descriptor with this index, from 0, is missing or unknown.
    #[error(
        "descriptor {descriptor}: the unit of its limit override is {unit}; write SECOND (1), MINUTE (2), HOUR (3), \
         DAY (4), MONTH (5), YEAR (6) or WEEK (7)"
    )]
    OverrideUnit { descriptor: usize, unit: i32 },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

// fields of `RateLimitRequest`
const DOMAIN: u32 = bytes_key(1);
const DESCRIPTOR: u32 = bytes_key(2);
const HITS: u32 = varint_key(3);

// fields of `RateLimitDescriptor`
const ENTRY: u32 = bytes_key(1);
const LIMIT: u32 = bytes_key(2);
const OWN_HITS: u32 = bytes_key(3);
const REFUND: u32 = varint_key(4);

// fields of `RateLimitDescriptor.Entry`
const KEY: u32 = bytes_key(1);
const VALUE: u32 = bytes_key(2);

// fields of `RateLimitDescriptor.RateLimitOverride`
const REQUESTS: u32 = varint_key(1);
const UNIT: u32 = varint_key(2);

/// The field of `google.protobuf.UInt64Value`.
const WRAPPED: u32 = varint_key(1);

/// Decodes within `bounds` into `request`, which is empty before, and of no use after an error.
pub(super) fn decode<'a>(
    bytes: &'a [u8],
    bounds: &RequestBounds,
    request: &mut Request<'a>,
) -> Result<(), MessageError> {
    let mut entries = 0;
    let mut reader = FieldReader::new(bytes);
    while let Some(key) = reader.key()? {
        match key {
            DOMAIN => request.domain = reader.string()?,
            DESCRIPTOR => {
                let index = request.descriptors.len();
                if index >= bounds.descriptors {
                    return Err(TooLarge::Descriptors(bounds.descriptors).into());
                }
                let message = reader.message("a descriptor")?;
                request.descriptors.push(Descriptor::default());
                let read = &mut request.descriptors[index];
                descriptor(message, index, read, bounds.entries - entries, bounds)?;
                entries += read.entries.len();
            }
            HITS => request.hits = reader.uint32()?,
            _ => reader.skip(key, &[DOMAIN, DESCRIPTOR, HITS])?,
        }
    }
    Ok(())
}

pub(super) fn decoded<'a>(bytes: &'a [u8], bounds: &RequestBounds) -> Result<Request<'a>, MessageError> {
    let mut request = Request::default();
    decode(bytes, bounds, &mut request).map(|()| request)
}

/// `max_entries` is what is left of the bound.
fn descriptor<'a>(
    mut reader: FieldReader<'a>,
    index: usize,
    descriptor: &mut Descriptor<'a>,
    max_entries: usize,
    bounds: &RequestBounds,
) -> Result<(), MessageError> {
    // the raw values of the override: its parts are merged before they are interpreted
    let mut limit: Option<(u32, i32)> = None;
    while let Some(key) = reader.key()? {
        match key {
            ENTRY => {
                if descriptor.entries.len() >= max_entries {
                    return Err(TooLarge::Entries(bounds.entries).into());
                }
                descriptor.entries.push(entry(reader.message("an entry")?)?);
            }
            LIMIT => {
                let message = reader.message("a limit override")?;
                limit_override(message, limit.get_or_insert_default())?;
            }
            OWN_HITS => {
                let message = reader.message("a descriptor's hits_addend")?;
                wrapped(message, descriptor.hits.get_or_insert_default())?;
            }
            REFUND => descriptor.refund = reader.varint()? != 0,
            _ => reader.skip(key, &[ENTRY, LIMIT, OWN_HITS, REFUND])?,
        }
    }
    if let Some((requests, number)) = limit {
        descriptor.limit = Some(Box::new(RuntimeLimit::per_unit(requests, unit(index, number)?)));
    }
    Ok(())
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "so that the entry is made in its place")]
fn entry(reader: FieldReader<'_>) -> Result<Entry<'_>, Malformed> {
    match reader.two_strings() {
        Some([key, value]) => Ok(Entry { key, value }),
        None => unusual_entry(reader),
    }
}

#[inline(never)]
fn unusual_entry(mut reader: FieldReader<'_>) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry { key: "", value: "" };
    while let Some(key) = reader.key()? {
        match key {
            KEY => entry.key = reader.string()?,
            VALUE => entry.value = reader.string()?,
            _ => reader.skip(key, &[KEY, VALUE])?,
        }
    }
    Ok(entry)
}

fn limit_override(mut reader: FieldReader<'_>, limit: &mut (u32, i32)) -> Result<(), Malformed> {
    while let Some(key) = reader.key()? {
        match key {
            REQUESTS => limit.0 = reader.uint32()?,
            UNIT => limit.1 = reader.int32()?,
            _ => reader.skip(key, &[REQUESTS, UNIT])?,
        }
    }
    Ok(())
}

fn wrapped(mut reader: FieldReader<'_>, value: &mut u64) -> Result<(), Malformed> {
    while let Some(key) = reader.key()? {
        match key {
            WRAPPED => *value = reader.varint()?,
            _ => reader.skip(key, &[WRAPPED])?,
        }
    }
    Ok(())
}

/// `number` is the enum's; `descriptor` is an index, for the error.
pub(super) fn unit(descriptor: usize, number: i32) -> Result<Unit, MessageError> {
    match RateLimitUnit::try_from(number) {
        Ok(RateLimitUnit::Second) => Ok(Unit::Second),
        Ok(RateLimitUnit::Minute) => Ok(Unit::Minute),
        Ok(RateLimitUnit::Hour) => Ok(Unit::Hour),
        Ok(RateLimitUnit::Day) => Ok(Unit::Day),
        Ok(RateLimitUnit::Week) => Ok(Unit::Week),
        Ok(RateLimitUnit::Month) => Ok(Unit::Month),
        Ok(RateLimitUnit::Year) => Ok(Unit::Year),
        Ok(RateLimitUnit::Unknown) | Err(_) => Err(MessageError::OverrideUnit { descriptor, unit: number }),
    }
}

// === impl MessageError ===

impl From<Malformed> for MessageError {
    #[cold]
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// The maximum nesting of groups in an unknown field, as in other protobuf decoders.
const MAX_DEPTH: u32 = 100;

/// The maximum of a varint's tenth byte, which holds the 64th bit.
const MAX_TENTH_BYTE: u8 = 1;

const ONE_BYTE: u8 = 0x7f;

type FieldKey = u32;

/// Why bytes are no message. Boxed, so that results fit into registers.
pub(super) type Malformed = Box<FieldFault>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldFault {
    what: &'static str,
    /// What errors call the message that contains it.
    path: &'static str,
    /// Its position in the outermost message, from 0.
    at: usize,
}

struct FieldReader<'a> {
    rest: &'a [u8],
    /// The outermost message, if it is all UTF-8, as lengths of one byte are. One check is cheaper than one per string.
    text: Option<&'a str>,
    /// The position in the outermost message at which `rest` ends.
    end: usize,
    path: &'static str,
}

/// Returns the key of the field `number` with a string, bytes or a message.
const fn bytes_key(number: u32) -> FieldKey {
    number << 3 | BYTES
}

const fn varint_key(number: u32) -> FieldKey {
    number << 3 | VARINT
}

const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const BYTES: u32 = 2;
const GROUP_BEGIN: u32 = 3;
const GROUP_END: u32 = 4;
const FIXED_32: u32 = 5;

const fn kind(key: FieldKey) -> u32 {
    key & 7
}

const fn number(key: FieldKey) -> u32 {
    key >> 3
}

// === impl FieldReader ===

impl<'a> FieldReader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        Self { rest: bytes, text, end: bytes.len(), path: "the request" }
    }

    /// None at the end of the message.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn key(&mut self) -> Result<Option<FieldKey>, Malformed> {
        match *self.rest {
            [] => Ok(None),
            [first @ 0..=ONE_BYTE, ..] => {
                self.rest = &self.rest[1..];
                Ok(Some(first.into()))
            }
            _ => self.long_key().map(Some),
        }
    }

    #[cold]
    fn long_key(&mut self) -> Result<FieldKey, Malformed> {
        let key = self.long_varint()?;
        u32::try_from(key).map_err(|_| self.malformed("a field number that is too large"))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn varint(&mut self) -> Result<u64, Malformed> {
        // lengths and most values have one byte
        if let [first @ 0..=ONE_BYTE, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        self.long_varint()
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, Malformed> {
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

    #[expect(clippy::cast_possible_truncation, reason = "as protobuf specifies")]
    fn uint32(&mut self) -> Result<u32, Malformed> {
        Ok(self.varint()? as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "as protobuf specifies")]
    fn int32(&mut self) -> Result<i32, Malformed> {
        Ok(self.varint()? as i32)
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        match usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length)) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.malformed("a field that exceeds the message")),
        }
    }

    #[inline]
    fn string(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.bytes()?;
        let end = self.end - self.rest.len();
        if let Some(string) = self.text.and_then(|text| text.get(end - bytes.len()..end)) {
            return Ok(string);
        }
        std::str::from_utf8(bytes).map_err(|_| self.malformed("a string that is not UTF-8"))
    }

    /// Errors call the message `path`.
    #[inline]
    fn message(&mut self, path: &'static str) -> Result<Self, Malformed> {
        let rest = self.bytes()?;
        Ok(Self { rest, text: self.text, end: self.end - self.rest.len(), path })
    }

    /// The strings of a message of just fields 1 and 2, in this order, with lengths of one byte, as nearly all have.
    #[inline(always)]
    fn two_strings(&self) -> Option<[&'a str; 2]> {
        const FIRST: u8 = 1 << 3 | 2;
        const SECOND: u8 = 2 << 3 | 2;
        let text = self.text?;
        let &[FIRST, first @ 0..=ONE_BYTE, ref rest @ ..] = self.rest else { return None };
        let (first, rest) = rest.split_at_checked(first.into())?;
        let &[SECOND, length @ 0..=ONE_BYTE, ref second @ ..] = rest else { return None };
        if second.len() != usize::from(length) {
            return None;
        }
        let from = self.end - self.rest.len() + 2;
        Some([text.get(from..from + first.len())?, text.get(self.end - second.len()..self.end)?])
    }

    /// Skips an unknown field. A field of `known` is an error: it has the wrong wire type.
    #[cold]
    fn skip(&mut self, key: FieldKey, known: &[FieldKey]) -> Result<(), Malformed> {
        if known.iter().any(|known| number(*known) == number(key)) && kind(key) <= FIXED_32 {
            return Err(self.malformed("a field with the wrong wire type"));
        }
        self.skip_value(key, 0)
    }

    fn skip_value(&mut self, key: FieldKey, depth: u32) -> Result<(), Malformed> {
        if number(key) == 0 {
            return Err(self.malformed("field number 0"));
        }
        match kind(key) {
            VARINT => self.varint().map(drop),
            BYTES => self.bytes().map(drop),
            FIXED_64 => self.skip_bytes(8),
            FIXED_32 => self.skip_bytes(4),
            GROUP_END => Err(self.malformed("the end of a group without a start")),
            GROUP_BEGIN if depth == MAX_DEPTH => Err(self.malformed("too deeply nested groups")),
            GROUP_BEGIN => loop {
                match self.key()? {
                    Some(inner) if inner == number(key) << 3 | GROUP_END => return Ok(()),
                    Some(inner) => self.skip_value(inner, depth + 1)?,
                    None => return Err(self.malformed("a group without an end")),
                }
            },
            _ => Err(self.malformed("an unknown wire type")),
        }
    }

    fn skip_bytes(&mut self, bytes: usize) -> Result<(), Malformed> {
        match self.rest.get(bytes..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.malformed("a field that exceeds the message")),
        }
    }

    #[cold]
    #[expect(clippy::unnecessary_box_returns, reason = "all results have it in a box")]
    fn malformed(&self, what: &'static str) -> Malformed {
        Box::new(FieldFault { what, path: self.path, at: self.end - self.rest.len() })
    }
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, at } = self;
        write!(f, "{what} in {path}, at byte {at}")
    }
}

#[cfg(test)]
mod tests;
