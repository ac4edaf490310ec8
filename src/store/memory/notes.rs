//! What a store notes about its counters beside their states.

use std::fmt::Debug;

use crate::limit::{CounterKey, LimitCheck, Tier, algorithm::CounterState};

/// Notes about one counter, such as whether its last change was written to disk. `()` notes nothing and costs nothing.
pub trait Notes: Default + Debug + Send + 'static {
    /// What a shard notes about all of its counters.
    type Log: Default + Debug + Send;

    /// Whether changes are noted.
    const NOTED: bool;

    /// Returns whether the counter may be removed once it has expired, or evicted while others may not.
    fn is_removable(&self) -> bool {
        true
    }

    /// Notes that a decision on `check` has changed the counter of `tier`, whose key is `key`.
    fn changed(&mut self, log: &mut Self::Log, check: &LimitCheck<'_>, tier: &Tier, key: CounterKey) {
        let _ = (log, check, tier, key);
    }
}

impl Notes for () {
    type Log = ();

    const NOTED: bool = false;
}

/// Returns a copy of `state` to compare it with after a decision; none if changes are not noted, or a copy would be dear.
pub(super) fn before<N: Notes>(state: &CounterState) -> Option<CounterState> {
    match state {
        _ if !N::NOTED => None,
        CounterState::SlidingWindow(..) => None,
        state => Some(state.clone()),
    }
}
