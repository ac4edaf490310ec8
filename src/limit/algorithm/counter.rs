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

/// The state of any algorithm, as stores keep it. 24 bytes, and what a sliding window remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// Of [`Algorithm::FixedWindow`].
    FixedWindow(FixedWindow),
    /// Of [`Algorithm::SlidingWindow`].
    SlidingWindow(Box<SlidingWindow>, IdleAt),
    /// Of [`Algorithm::TokenBucket`].
    TokenBucket(TokenBucket, IdleAt),
}

/// When a counter may be forgotten, as of the last time it was asked: kept where the state alone, without its tier, does
/// not tell. Whole seconds since the epoch, rounded up; they end in 2106, and all that is later is then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleAt(u32);

// === impl CounterState ===

/// Runs an expression on the state, whichever it is.
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
    /// The state of a counter that nobody has used.
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
        self.keep(tier);
    }

    /// Counts `hits` that are taken now and may be used as late as `until`. It matters to sliding windows, which count
    /// them from then on; a bucket can only have filled up meanwhile, and a fixed window is the same or over.
    pub fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.reserve(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.take(tier, now, hits),
        }
        self.keep(tier);
    }

    /// As [`AlgorithmState::reject`].
    pub fn reject(&mut self, tier: &Tier, now: Timestamp) {
        on_state!(self, state => state.reject(tier, now));
        self.keep(tier);
    }

    /// As [`AlgorithmState::give_back`].
    pub fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.give_back(tier, now, hits));
        self.keep(tier);
    }

    /// Gives back `hits` that were [reserved](Self::reserve) to be used until `until` and were not. It matters to sliding
    /// windows, which know by it which of their hits are meant.
    pub fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        match self {
            Self::SlidingWindow(window, _) => window.release(tier, now, until, hits),
            Self::FixedWindow(_) | Self::TokenBucket(..) => return self.give_back(tier, now, hits),
        }
        self.keep(tier);
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

    /// From when on it is as if unused. A bucket whose limit was lowered since it was last asked tells it by the limit
    /// that it knew.
    #[must_use]
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Self::FixedWindow(window) => window.end(),
            Self::SlidingWindow(_, idle_at) | Self::TokenBucket(_, idle_at) => {
                Timestamp::from_secs(idle_at.0.into())
            }
        }
    }

    /// A counter of this state, for a store that keeps states elsewhere.
    #[must_use]
    pub fn from_sliding_window(window: SlidingWindow, tier: &Tier) -> Self {
        let mut counter = Self::SlidingWindow(Box::new(window), IdleAt::default());
        counter.keep(tier);
        counter
    }

    /// A counter of this state, for a store that keeps states elsewhere.
    #[must_use]
    pub fn from_token_bucket(bucket: TokenBucket, tier: &Tier) -> Self {
        let mut counter = Self::TokenBucket(bucket, IdleAt::default());
        counter.keep(tier);
        counter
    }

    /// Keeps the time at which it will be idle, where it is kept.
    fn keep(&mut self, tier: &Tier) {
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
    fn a_counter_has_the_size_that_it_says() {
        assert_eq!(size_of::<CounterState>(), 24);
        assert_eq!(size_of::<FixedWindow>(), 16);
        assert_eq!(size_of::<TokenBucket>(), 16);
        assert_eq!(size_of::<SlidingWindow>(), 32);
    }
}
