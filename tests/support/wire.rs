//! Requests, as short as tests want them.

use weir::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

/// A request about `descriptors`.
pub(crate) fn request<const N: usize>(
    domain: &str,
    descriptors: [RateLimitDescriptor; N],
) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors: descriptors.into(), hits_addend: 0 }
}

/// A descriptor of `entries`.
pub(crate) fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> RateLimitDescriptor {
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// `descriptor`, with hits of its own.
pub(crate) fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

/// `descriptor`, with hits to give back.
pub(crate) fn refund(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), is_negative_hits: true, ..descriptor }
}

/// `descriptor`, with a limit that it brings along.
pub(crate) fn limited(
    requests_per_unit: u32,
    unit: i32,
    descriptor: RateLimitDescriptor,
) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor }
}

/// What an answer comes to: its code, and code and remaining of each status.
pub(crate) fn gist(answer: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = answer.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (answer.overall_code(), statuses.collect())
}
