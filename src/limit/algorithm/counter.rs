//! A counter's state under any algorithm, as stores keep it.

use super::{
    change::CountChange,
    fixed_window::FixedWindow,
    sliding_window::SlidingWindow,
    state::{AlgorithmState, Availability, Probe},
    token_bucket::TokenBucket,
};
use crate::limit::{
    tier::{Algorithm, Tier},
    units::{Hits, NANOS_PER_SECOND, Period, Timestamp},
};

/// The state of any algorithm. 24 bytes, plus the heap memory of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// The state under [`Algorithm::FixedWindow`].
    FixedWindow(FixedWindow),
    /// The state under [`Algorithm::SlidingWindow`].
    SlidingWindow(Box<SlidingWindow>, IdleAt),
    /// The state under [`Algorithm::TokenBucket`].
    TokenBucket(TokenBucket, IdleAt),
}

/// The instant from which a counter equals an unused one, computed at its last change. It is stored because the state
/// without its tier does not determine it. In whole seconds since the epoch, rounded up, capped in 2106.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleAt(u32);

// === impl CounterState ===

/// Evaluates an expression on the state of any algorithm.
macro_rules! on_state {
    ($counter:expr, $state:ident => $do:expr) => {
        match $counter {
            CounterState::FixedWindow($state) => $do,
            CounterState::SlidingWindow($state, _) => $do,
            CounterState::TokenBucket($state, _) => $do,
        }
    };
}

impl CounterState {
    /// Returns the state of an unused counter.
    #[must_use]
    pub fn unused(tier: &Tier, now: Timestamp) -> Self {
        match tier.algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(AlgorithmState::unused(tier, now)),
            Algorithm::SlidingWindow => {
                Self::SlidingWindow(Box::new(AlgorithmState::unused(tier, now)), IdleAt::default())
            }
            Algorithm::TokenBucket(_) => {
                Self::TokenBucket(AlgorithmState::unused(tier, now), IdleAt::default())
            }
        }
    }

    /// Calls [`AlgorithmState::probe`].
    #[must_use]
    pub fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        on_state!(self, state => state.probe(tier, now, hits))
    }

    /// Returns whether it is no different from an unused counter at `now`.
    #[must_use]
    pub fn is_unused(&self, tier: &Tier, now: Timestamp) -> bool {
        match self {
            Self::TokenBucket(bucket, _) => bucket.is_idle(tier, now),
            _ => self.probe(tier, now, Hits(0)).used == Hits(0),
        }
    }

    /// Calls [`AlgorithmState::take`].
    pub fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.take(tier, now, hits));
        self.update_idle_at(tier);
    }

    /// Counts `hits` that are taken now and used by `until`. A sliding window counts them as of `until`. A bucket or a
    /// fixed window counts them as [`CounterState::take`] does, since its capacity can only grow until then.
    pub fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.reserve(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.take(tier, now, hits),
        }
        self.update_idle_at(tier);
    }

    /// Calls [`AlgorithmState::reject`].
    pub fn reject(&mut self, tier: &Tier, now: Timestamp) {
        on_state!(self, state => state.reject(tier, now));
        self.update_idle_at(tier);
    }

    /// Calls [`AlgorithmState::give_back`].
    pub fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.give_back(tier, now, hits));
        self.update_idle_at(tier);
    }

    /// Calls [`AlgorithmState::add`].
    pub fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, now: Timestamp) {
        on_state!(self, state => state.add(tier, at, change, now));
        self.update_idle_at(tier);
    }

    /// Gives back unused `hits` that were [reserved](Self::reserve) until `until`. A sliding window finds their span by
    /// that instant.
    pub fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.release(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.give_back(tier, now, hits),
        }
        self.update_idle_at(tier);
    }

    /// Calls [`AlgorithmState::availability`].
    #[must_use]
    pub fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        on_state!(self, state => state.availability(tier, now))
    }

    /// Calls [`AlgorithmState::wait`].
    #[must_use]
    pub fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        on_state!(self, state => state.wait(tier, now, hits))
    }

    /// Calls [`AlgorithmState::used`].
    #[must_use]
    pub fn used(&self) -> Hits {
        on_state!(self, state => state.used())
    }

    /// Returns the instant from which the state equals an unused one. If a bucket's limit was lowered since its last
    /// change, the instant still follows from the previous limit.
    #[must_use]
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Self::FixedWindow(window) => window.end(),
            Self::SlidingWindow(_, idle_at) | Self::TokenBucket(_, idle_at) => {
                Timestamp::from_secs(idle_at.0.into())
            }
        }
    }

    /// Creates a state from `window`, for a store that keeps states in another format.
    #[must_use]
    pub fn from_sliding_window(window: SlidingWindow, tier: &Tier) -> Self {
        let mut counter = Self::SlidingWindow(Box::new(window), IdleAt::default());
        counter.update_idle_at(tier);
        counter
    }

    /// Creates a state from `bucket`, for a store that keeps states in another format.
    #[must_use]
    pub fn from_token_bucket(bucket: TokenBucket, tier: &Tier) -> Self {
        let mut counter = Self::TokenBucket(bucket, IdleAt::default());
        counter.update_idle_at(tier);
        counter
    }

    /// Updates the stored idle instant, for algorithms that need it.
    fn update_idle_at(&mut self, tier: &Tier) {
        let (idle, kept) = match self {
            Self::FixedWindow(_) => return,
            Self::SlidingWindow(window, kept) => (window.idle_at(tier), kept),
            Self::TokenBucket(bucket, kept) => (bucket.idle_at(tier), kept),
        };
        let seconds = idle.as_nanos().div_ceil(NANOS_PER_SECOND);
        *kept = IdleAt(u32::try_from(seconds).unwrap_or(u32::MAX));
    }
}

/// A placeholder that counts nothing.
impl Default for CounterState {
    fn default() -> Self {
        Self::FixedWindow(FixedWindow::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_documented_sizes() {
        assert_eq!(size_of::<CounterState>(), 24);
        assert_eq!(size_of::<FixedWindow>(), 16);
        assert_eq!(size_of::<TokenBucket>(), 16);
        assert_eq!(size_of::<SlidingWindow>(), 32);
    }
}
