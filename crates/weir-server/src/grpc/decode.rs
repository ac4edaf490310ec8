//! Decodes a `RateLimitRequest` without the generated message type: the last of repeated scalars wins, and repeated
//! parts of a message are merged, as protobuf specifies. `decode/tests.rs` compares this decoder with the generated
//! one.

use super::reader::{FieldReader, Malformed, bytes_key, varint_key};
use crate::{
    bounds::{RequestBounds, TooLarge},
    conversion::{ConversionError, unit},
};
use weir_limit::{Descriptor, Entry, Request, RuntimeLimit};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("malformed RateLimitRequest: {0}")]
    Malformed(Malformed),
    #[error(transparent)]
    Conversion(#[from] ConversionError),
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

#[cfg(any(debug_assertions, fuzzing))]
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
pub(super) fn entry(reader: FieldReader<'_>) -> Result<Entry<'_>, Malformed> {
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

// === impl MessageError ===

impl From<Malformed> for MessageError {
    #[cold]
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod tests;
