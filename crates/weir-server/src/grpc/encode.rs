//! Encodes a verdict as a `RateLimitResponse`, without the generated message type.
//!
//! `encode/tests.rs` compares this encoder with the generated one, byte for byte.

use prost::Message as _;

use super::writer::FieldWriter;
use crate::{
    conversion::{code, duration, protobuf_struct, unit_of},
    headers::Header,
};
use weir_limit::{CurrentLimit, Status, Verdict};

pub(super) fn encode(verdict: &Verdict<'_>, headers: &[Header<'_>], out: &mut FieldWriter) {
    out.small(1, code(verdict.code) as u8);
    for reported in &verdict.statuses {
        out.message(2, |out| status(reported, out));
    }
    for (field, for_request) in [(3, false), (4, true)] {
        for added in headers.iter().filter(|header| header.for_request == for_request) {
            out.message(field, |out| header(added, out));
        }
    }
    if let Some(metadata) = &verdict.metadata {
        // a tree of any depth, and rarely enabled: uses the generated encoder
        out.bytes(6, &protobuf_struct(metadata).encode_to_vec());
    }
}

fn status(status: &Status<'_>, out: &mut FieldWriter) {
    out.small(1, code(status.code) as u8);
    if let Some(limit) = &status.limit {
        out.message(2, |out| current_limit(limit, out));
    }
    out.number(3, status.remaining.into());
    if let (Some(limit), Some(reset)) = (&status.limit, status.reset) {
        out.message(4, |out| {
            let (seconds, nanos) = duration(reset, limit.tier);
            out.number(1, seconds.unsigned_abs());
            out.number(2, nanos.unsigned_abs().into());
        });
    }
}

fn current_limit(limit: &CurrentLimit<'_>, out: &mut FieldWriter) {
    out.number(1, limit.requests.into());
    out.small(2, unit_of(limit.tier) as u8);
    out.text(3, limit.rule.name().unwrap_or_default());
}

fn header(header: &Header<'_>, out: &mut FieldWriter) {
    out.text(1, header.name);
    out.text(2, &header.value);
}

#[cfg(test)]
mod tests;
