//! Encodes a verdict as a `RateLimitResponse`, without the generated message type.
//!
//! `encode/tests.rs` compares this encoder with the generated one, byte for byte.

use prost::Message as _;

use crate::{
    limit::{CurrentLimit, Status, Verdict},
    server::{
        conversion::{code, duration, protobuf_struct, unit_of},
        headers::Header,
    },
};

/// A buffer with inline space for most responses.
pub(super) type Buffer = smallvec::SmallVec<[u8; 256]>;

/// The largest value of a one-byte varint.
const ONE_BYTE: usize = 0x7f;

/// Appends the `RateLimitResponse` that reports `verdict` and carries `headers` to `out`.
pub(super) fn encode(verdict: &Verdict<'_>, headers: &[Header<'_>], out: &mut Buffer) {
    number(out, 1, code(verdict.code) as u64);
    for reported in &verdict.statuses {
        message(out, 2, |out| status(reported, out));
    }
    for added in headers {
        message(out, 3, |out| header(added, out));
    }
    if let Some(metadata) = &verdict.metadata {
        // a tree of any depth, and rarely enabled: uses the generated encoder
        bytes(out, 6, &protobuf_struct(metadata).encode_to_vec());
    }
}

fn status(status: &Status<'_>, out: &mut Buffer) {
    number(out, 1, code(status.code) as u64);
    if let Some(limit) = &status.limit {
        message(out, 2, |out| current_limit(limit, out));
    }
    number(out, 3, status.remaining.into());
    if let (Some(limit), Some(reset)) = (&status.limit, status.reset) {
        message(out, 4, |out| {
            let (seconds, nanos) = duration(reset, limit.tier);
            number(out, 1, seconds.unsigned_abs());
            number(out, 2, nanos.unsigned_abs().into());
        });
    }
}

fn current_limit(limit: &CurrentLimit<'_>, out: &mut Buffer) {
    number(out, 1, limit.requests.into());
    number(out, 2, unit_of(limit.tier) as u64);
    text(out, 3, limit.rule.name().unwrap_or_default());
}

fn header(header: &Header<'_>, out: &mut Buffer) {
    text(out, 1, header.name);
    text(out, 2, &header.value);
}

// === protobuf ===

/// Writes a numeric field; omits 0, as protobuf specifies.
fn number(out: &mut Buffer, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3);
        varint(out, value);
    }
}

/// Writes a string field; omits an empty one.
fn text(out: &mut Buffer, field: u8, text: &str) {
    if !text.is_empty() {
        bytes(out, field, text.as_bytes());
    }
}

fn bytes(out: &mut Buffer, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a message field, with the content that `write` writes.
fn message(out: &mut Buffer, field: u8, write: impl FnOnce(&mut Buffer)) {
    out.push(field << 3 | 2);
    // the length precedes the content and nearly always has one byte: moving the few longer messages is cheaper than
    // measuring all of them first
    let place = out.len();
    out.push(0);
    write(out);
    let length = out.len() - place - 1;
    if length <= ONE_BYTE {
        out[place] = length.to_le_bytes()[0];
    } else {
        let mut prefix = Buffer::new();
        varint(&mut prefix, length as u64);
        out[place] = prefix[0];
        out.insert_from_slice(place + 1, &prefix[1..]);
    }
}

fn varint(out: &mut Buffer, mut value: u64) {
    while value > 0x7f {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests;
