//! Decodes an `AcquireRequest` and encodes an `AcquireResponse`, without the generated message types.
//!
//! `acquire_message/tests.rs` compares both with the generated ones.

use smallvec::SmallVec;

use super::{
    decode::entry,
    reader::{FieldReader, Malformed, bytes_key, varint_key},
    writer::FieldWriter,
};
use weir_limit::{Entry, NANOS_PER_SECOND, Period};
use weir_proto::weir::v1::acquire_response::Outcome;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AcquireMessage<'a> {
    pub(super) domain: &'a str,
    pub(super) entries: SmallVec<[Entry<'a>; 4]>,
    pub(super) hits: u64,
    /// Seconds and nanoseconds, which may be negative.
    pub(super) max_wait: Option<(i64, i32)>,
    pub(super) id: u64,
    pub(super) returnable: bool,
}

#[derive(Debug)]
pub(super) struct AcquireAnswer {
    pub(super) outcome: Outcome,
    pub(super) waited: Period,
    pub(super) retry_after: Option<Period>,
    pub(super) token: Option<[u8; 16]>,
    pub(super) id: u64,
}

#[derive(Debug)]
pub(super) enum AcquireMessageError {
    Malformed(Malformed),
    TooManyEntries,
}

const DOMAIN: u32 = bytes_key(1);
const ENTRY: u32 = bytes_key(2);
const HITS: u32 = varint_key(3);
const MAX_WAIT: u32 = bytes_key(4);
const ID: u32 = varint_key(5);
const RETURNABLE: u32 = varint_key(6);

// fields of `google.protobuf.Duration`
const SECONDS: u32 = varint_key(1);
const NANOS: u32 = varint_key(2);

pub(super) fn decode(bytes: &[u8], max_entries: usize) -> Result<AcquireMessage<'_>, AcquireMessageError> {
    let mut message = AcquireMessage::default();
    let mut reader = FieldReader::new(bytes);
    while let Some(key) = reader.key()? {
        match key {
            DOMAIN => message.domain = reader.string()?,
            ENTRY => {
                if message.entries.len() >= max_entries {
                    return Err(AcquireMessageError::TooManyEntries);
                }
                message.entries.push(entry(reader.message("an entry")?)?);
            }
            HITS => message.hits = reader.varint()?,
            MAX_WAIT => {
                let of_field = reader.message("max_wait")?;
                read_duration(of_field, message.max_wait.get_or_insert_default())?;
            }
            ID => message.id = reader.varint()?,
            RETURNABLE => message.returnable = reader.varint()? != 0,
            _ => reader.skip(key, &[DOMAIN, ENTRY, HITS, MAX_WAIT, ID, RETURNABLE])?,
        }
    }
    Ok(message)
}

fn read_duration(mut reader: FieldReader<'_>, duration: &mut (i64, i32)) -> Result<(), Malformed> {
    while let Some(key) = reader.key()? {
        match key {
            SECONDS => duration.0 = reader.varint()?.cast_signed(),
            NANOS => duration.1 = reader.int32()?,
            _ => reader.skip(key, &[SECONDS, NANOS])?,
        }
    }
    Ok(())
}

// === impl AcquireAnswer ===

impl AcquireAnswer {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.small(1, self.outcome as u8);
        out.message(2, |out| write_duration(self.waited, out));
        if let Some(retry_after) = self.retry_after {
            out.message(3, |out| write_duration(retry_after, out));
        }
        if let Some(token) = &self.token {
            out.bytes(4, token);
        }
        out.number(5, self.id);
    }
}

fn write_duration(period: Period, out: &mut FieldWriter) {
    out.number(1, period.as_nanos() / NANOS_PER_SECOND);
    out.number(2, period.as_nanos() % NANOS_PER_SECOND);
}

// === impl AcquireMessageError ===

impl From<Malformed> for AcquireMessageError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod tests;
