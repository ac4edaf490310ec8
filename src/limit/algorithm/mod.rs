//! The algorithms: each a pure function of (state, now, hits). None of them knows a store, a clock or a wire.
//!
//! A store keeps one [`State`] for each counter and tier. A decision asks every state for its [`State::offer`], and
//! then, under the same lock, tells it what was decided: [`State::take`] or [`State::refuse`].

mod fixed_window;
mod sliding_window;
mod token_bucket;

pub use fixed_window::FixedWindow;
pub use sliding_window::{SlidingWindow, Span};
pub use token_bucket::{Bucket, Refill, TokenBucket};

use super::{
    rule::Tier,
    units::{Hits, NANOS_PER_SECOND, Period, Timestamp},
};

/// How a tier's period is laid over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `requests` in each epoch-aligned window of one period: the reference's way.
    #[default]
    FixedWindow,
    /// At most `requests` in any interval of one period.
    SlidingWindow,
    /// `requests` a period flow into a bucket that holds a burst.
    TokenBucket(Bucket),
}

/// What a counter has to say to a request, before anything is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whether the hits fit.
    pub admits: bool,
    /// Hits that are counted already.
    pub used: Hits,
}

/// What a counter tells of itself, after a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whole requests that would be admitted now.
    pub remaining: u32,
    /// How long until nothing of what is counted now is counted any more, and the full limit is there again.
    pub until_full: Period,
}

/// A counter's state under one algorithm.
///
/// `now` may step back between calls, as clocks do; a state then stays where it is.
pub trait State {
    /// The state of a counter that nobody has used.
    fn unused(tier: &Tier, now: Timestamp) -> Self;

    /// What it makes of `hits`, without counting them. Zero hits always fit unless more than the limit is counted.
    fn offer(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Offer;

    /// Counts `hits`, whether or not they fit.
    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits);

    /// Notes that it has refused a request, which took nothing.
    fn refuse(&mut self, tier: &Tier, now: Timestamp);

    /// Gives `hits` back, never past unused.
    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits);

    /// What it tells of itself now.
    fn report(&self, tier: &Tier, now: Timestamp) -> Report;

    /// How long until `hits` would fit, if nobody else takes any; [`Report::until_full`] if they never do.
    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period;

    /// From when on it is as if unused, so that it may be forgotten.
    fn idle_at(&self, tier: &Tier) -> Timestamp;

    /// How much is lost with it when it is forgotten early: the hits that are counted.
    fn used(&self) -> Hits;
}

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
            Algorithm::FixedWindow => Self::FixedWindow(State::unused(tier, now)),
            Algorithm::SlidingWindow => {
                Self::SlidingWindow(Box::new(State::unused(tier, now)), IdleAt::default())
            }
            Algorithm::TokenBucket(_) => Self::TokenBucket(State::unused(tier, now), IdleAt::default()),
        }
    }

    /// As [`State::offer`].
    #[must_use]
    pub fn offer(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Offer {
        on_state!(self, state => state.offer(tier, now, hits))
    }

    /// As [`State::take`].
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

    /// As [`State::refuse`].
    pub fn refuse(&mut self, tier: &Tier, now: Timestamp) {
        on_state!(self, state => state.refuse(tier, now));
        self.keep(tier);
    }

    /// As [`State::give_back`].
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

    /// As [`State::report`].
    #[must_use]
    pub fn report(&self, tier: &Tier, now: Timestamp) -> Report {
        on_state!(self, state => state.report(tier, now))
    }

    /// As [`State::wait`].
    #[must_use]
    pub fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        on_state!(self, state => state.wait(tier, now, hits))
    }

    /// As [`State::used`].
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
    pub fn of_sliding_window(window: SlidingWindow, tier: &Tier) -> Self {
        let mut counter = Self::SlidingWindow(Box::new(window), IdleAt::default());
        counter.keep(tier);
        counter
    }

    /// A counter of this state, for a store that keeps states elsewhere.
    #[must_use]
    pub fn of_token_bucket(bucket: TokenBucket, tier: &Tier) -> Self {
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
