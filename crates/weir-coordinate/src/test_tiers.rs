//! Times and tiers of tests.

use weir_limit::{Algorithm, Bucket, Period, Refill, Tier, Timestamp};

/// The start of a window of every length that the tests use.
pub(super) const START: Timestamp = Timestamp::from_secs(3_600 * 400_000);

pub(super) fn millis(millis: u64) -> Period {
    Period::from_millis(millis)
}

pub(super) fn fixed(requests: u32, seconds: u64) -> Tier {
    Tier { requests, period: Period::from_secs(seconds), algorithm: Algorithm::FixedWindow }
}

pub(super) fn sliding(requests: u32, seconds: u64) -> Tier {
    Tier { algorithm: Algorithm::SlidingWindow, ..fixed(requests, seconds) }
}

pub(super) fn bucket(requests: u32, seconds: u64) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: false };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(requests, seconds) }
}
