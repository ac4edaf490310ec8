use weir_limit::{Bucket, Period, Tier, Timestamp};

/// The start of a window of every length that the tests use.
pub(super) const START: Timestamp = Timestamp::from_secs(3_600 * 400_000);

pub(super) fn millis(millis: u64) -> Period {
    Period::from_millis(millis)
}

pub(super) fn fixed(requests: u32, seconds: u64) -> Tier {
    Tier::fixed_window(requests, Period::from_secs(seconds))
}

pub(super) fn sliding(requests: u32, seconds: u64) -> Tier {
    Tier::sliding_window(requests, Period::from_secs(seconds))
}

pub(super) fn bucket(requests: u32, seconds: u64) -> Tier {
    Tier::token_bucket(requests, Period::from_secs(seconds), Bucket::of(requests))
}
