//! What a store notes about its counters beside their states.

use std::fmt::Debug;

use weir_limit::{
    CounterKey, LimitCheck, Tier,
    algorithm::CounterState,
    request_bucket::{BucketName, BucketRequest},
};

#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    Tier(&'a LimitCheck<'a>, &'a Tier),
    Bucket(&'a BucketName<'a>, &'a BucketRequest),
}

// === impl Counted ===

impl Counted<'_> {
    pub fn key(&self) -> CounterKey {
        match self {
            Self::Tier(check, tier) => check.key.of_tier(tier),
            Self::Bucket(name, request) => name.counter(&request.kind()),
        }
    }
}

/// Notes about one counter, such as whether its last change was written to disk. `()` notes nothing and costs nothing.
pub trait Notes: Default + Debug + Send + 'static {
    /// What a shard notes about all of its counters.
    type Log: Default + Debug + Send;

    const NOTED: bool;

    /// Returns whether the counter may be removed once it has expired, or evicted while others may not.
    fn is_removable(&self) -> bool {
        true
    }

    fn changed(&mut self, log: &mut Self::Log, counted: Counted<'_>) {
        let _ = (log, counted);
    }
}

impl Notes for () {
    type Log = ();

    const NOTED: bool = false;
}

/// To compare with the state after a decision. None if changes are not noted, or a copy would be expensive.
pub(super) fn before<N: Notes>(state: &CounterState) -> Option<CounterState> {
    match state {
        _ if !N::NOTED => None,
        CounterState::SlidingWindow(..) => None,
        state => Some(state.clone()),
    }
}
