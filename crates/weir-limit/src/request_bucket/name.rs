//! What names a bucket whose parameters come with each request.

use super::{decide::BucketRequest, step::StepLimit};
use crate::key::{CounterKey, KeyHasher};

/// The key of buckets as callers name it: any bytes. All buckets of a key can be found and deleted together.
#[derive(Clone, Copy, Debug)]
pub struct BucketName<'a> {
    key: &'a [u8],
    hasher: KeyHasher,
    counter: CounterKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketKind {
    /// It is refilled in steps, and has these parameters.
    Steps(StepLimit),
    /// Tokens flow in evenly. There is one of each name.
    Paced,
}

// === impl BucketRequest ===

impl BucketRequest {
    pub const fn kind(&self) -> BucketKind {
        match self {
            Self::Step(step) => BucketKind::Steps(step.limit),
            Self::Paced(_) => BucketKind::Paced,
        }
    }
}

// === impl BucketName ===

impl<'a> BucketName<'a> {
    /// Returns the name `key`. All names of a store must have the same `hasher`.
    pub fn new(hasher: KeyHasher, key: &'a [u8]) -> Self {
        Self { key, hasher, counter: hasher.bucket_key(key) }
    }

    pub const fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Returns the key of this name's bucket of `kind`. Only buckets of this name have its [`CounterKey::shard`].
    pub fn counter(&self, kind: &BucketKind) -> CounterKey {
        match kind {
            BucketKind::Paced => self.counter,
            BucketKind::Steps(limit) => {
                self.hasher.with_parameters(self.counter, [limit.max, limit.refill, limit.period_ms])
            }
        }
    }

    pub const fn shard(&self) -> u64 {
        self.counter.shard()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Entry,
        request_bucket::{Pace, PacedRequest, StepLimit, StepRequest},
    };

    fn step(max: u64, refill: u64, period_ms: u64) -> BucketRequest {
        let limit = StepLimit { max, refill, period_ms };
        BucketRequest::Step(StepRequest { limit, take: 1, at: None, strict: false, session: false })
    }

    #[test]
    fn parameters_are_part_of_a_step_bucket_and_not_of_a_paced_one() {
        let hasher = KeyHasher::random();
        let name = BucketName::new(hasher, b"k");
        let paced = |count| {
            let pace = Pace::new(count, 60).expect("a pace");
            BucketRequest::Paced(PacedRequest { capacity: 1, pace, quantity: 1 })
        };
        assert_eq!(name.counter(&paced(1).kind()), name.counter(&paced(2).kind()));
        let all = [step(1, 2, 3), step(2, 1, 3), step(1, 3, 2), step(1, 2, 4), paced(1)]
            .map(|r| name.counter(&r.kind()));
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b) && a.shard() == name.shard(), "{i}");
        }
        let other = BucketName::new(hasher, b"K");
        assert_ne!(other.shard(), name.shard());
        assert_ne!(other.counter(&step(1, 2, 3).kind()).hash(), all[0].hash());
    }

    #[test]
    fn any_bytes_are_a_name_of_their_own() {
        let hasher = KeyHasher::random();
        let keys: [&[u8]; 6] = [b"", b"\xff", b"\xff\xff", b"d\xffk\xffv\xff", b"\0", b"d"];
        let mut all: Vec<CounterKey> = keys.iter().map(|key| hasher.bucket_key(key)).collect();
        all.push(hasher.key("d", &[Entry { key: "k", value: "v" }], |_| None));
        all.push(hasher.key("d", &[], |_| None));
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{i}");
        }
    }
}
