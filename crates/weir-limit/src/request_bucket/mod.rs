//! Buckets whose parameters come with each request, instead of a rule's tiers: those of the rate limiting commands of
//! Redis' protocol.
//!
//! - A [`StepBucket`] is the one of smyte/ratelimit: whole tokens, refilled in steps, by the server's clock or by the
//!   caller's. Its parameters are part of its identity.
//! - A [`PacedBucket`] is the one of redis-cell and throttlecrab: tokens that flow in evenly. It belongs to a key,
//!   whatever its parameters are.
//!
//! A store keeps them as [`CounterState`](super::algorithm::CounterState)s among all others, so that they are bounded,
//! evicted and swept together, and changes them by [`decide_bucket`].

mod decide;
mod merge;
mod name;
mod paced;
mod step;

pub use decide::{BucketReply, BucketRequest, decide_bucket};
pub use merge::merge_buckets;
pub use name::{BucketKind, BucketName};
pub use paced::{Pace, PacedBucket, PacedReply, PacedRequest, TokenTime};
pub use step::{StepBucket, StepLimit, StepReply, StepRequest};
