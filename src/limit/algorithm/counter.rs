//! A counter's state under any algorithm, as stores keep it.

use super::{
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
    /// Of [`Algorithm::FixedWindow`].
    FixedWindow(FixedWindow),
    /// Of [`Algorithm::SlidingWindow`].
    SlidingWindow(Box<SlidingWindow>, IdleAt),
    /// Of [`Algorithm::TokenBucket`].
    TokenBucket(TokenBucket, IdleAt),
}

/// The instant from which a counter is unused, as of its last change: kept because the state without its tier does not
/// determine it. Whole seconds since the epoch, rounded up, capped in 2106.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleAt(u32);

// === impl CounterState ===

/// Runs an expression on the state of any algorithm.
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

    /// As [`AlgorithmState::probe`].
    #[must_use]
    pub fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        on_state!(self, state => state.probe(tier, now, hits))
    }

    /// As [`AlgorithmState::take`].
    pub fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.take(tier, now, hits));
        self.update_idle_at(tier);
    }

    /// Counts `hits` that are taken now and used at `until` at the latest. A sliding window counts them from `until` on; for
    /// a bucket or a fixed window this equals [`CounterState::take`], since by then they can only have more room.
    pub fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.reserve(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.take(tier, now, hits),
        }
        self.update_idle_at(tier);
    }

    /// As [`AlgorithmState::reject`].
    pub fn reject(&mut self, tier: &Tier, now: Timestamp) {
        on_state!(self, state => state.reject(tier, now));
        self.update_idle_at(tier);
    }

    /// As [`AlgorithmState::give_back`].
    pub fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.give_back(tier, now, hits));
        self.update_idle_at(tier);
    }

    /// Gives back unused `hits` that were [reserved](Self::reserve) until `until`. A sliding window finds them by that
    /// instant.
    pub fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.release(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.give_back(tier, now, hits),
        }
        self.update_idle_at(tier);
    }

    /// As [`AlgorithmState::availability`].
    #[must_use]
    pub fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        on_state!(self, state => state.availability(tier, now))
    }

    /// As [`AlgorithmState::wait`].
    #[must_use]
    pub fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        on_state!(self, state => state.wait(tier, now, hits))
    }

    /// As [`AlgorithmState::used`].
    #[must_use]
    pub fn used(&self) -> Hits {
        on_state!(self, state => state.used())
    }

    /// Returns the instant from which it equals an unused counter. For a bucket whose limit was lowered since its last
    /// change, this is computed from the previous limit.
    #[must_use]
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Self::FixedWindow(window) => window.end(),
            Self::SlidingWindow(_, idle_at) | Self::TokenBucket(_, idle_at) => {
                Timestamp::from_secs(idle_at.0.into())
            }
        }
    }

    /// Returns a counter of this state, for a store that keeps states in another format.
    #[must_use]
    pub fn from_sliding_window(window: SlidingWindow, tier: &Tier) -> Self {
        let mut counter = Self::SlidingWindow(Box::new(window), IdleAt::default());
        counter.update_idle_at(tier);
        counter
    }

    /// Returns a counter of this state, for a store that keeps states in another format.
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
