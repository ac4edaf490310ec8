//! Short constructors of requests, and a summary of responses.

use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

pub fn request<const N: usize>(domain: &str, descriptors: [RateLimitDescriptor; N]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors: descriptors.into(), hits_addend: 0 }
}

pub fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> RateLimitDescriptor {
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

pub fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

pub fn refund(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), is_negative_hits: true, ..descriptor }
}

pub fn limited(requests_per_unit: u32, unit: i32, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor }
}

/// Returns the overall code, and the code and remaining requests of each status.
pub fn gist(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = response.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (response.overall_code(), statuses.collect())
}
