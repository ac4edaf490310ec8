//! A counter's state under any algorithm, as stores keep it.

use std::borrow::Cow;

use super::{
    Algorithm,
    change::CountChange,
    fixed_window::FixedWindow,
    sliding_window::SlidingWindow,
    span::Span,
    state::{AlgorithmState, Availability, Outcome, Probe},
    token_bucket::{Refill, TokenBucket},
};
use crate::{
    request_bucket::{PacedBucket, StepBucket, TokenTime},
    tier::{OverLimitPolicy, Tier},
    units::{Hits, NANOS_PER_SECOND, Period, Timestamp},
};

/// The state of any algorithm. 24 bytes, plus the heap memory of a sliding window of several spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    FixedWindow(FixedWindow),
    /// The state under [`Algorithm::SlidingWindow`], if [`CounterState::OneSpan`] cannot hold it.
    SlidingWindow(Box<SlidingWindow>, IdleAt),
    /// [`Algorithm::SlidingWindow`] with at most one span of up to 65,535 hits, as most have: no allocation.
    OneSpan {
        is_there: bool,
        hits: u16,
        idle_at: IdleAt,
        /// The start of the newest span.
        opened: Timestamp,
        /// The instant of its last hit. Zero if there is no span.
        last: Timestamp,
    },
    TokenBucket(TokenBucket, IdleAt),
    /// A bucket whose parameters come with each request, instead of a tier. Whether it was used with callers' times.
    Steps(StepBucket, IdleAt, bool),
    /// The same with the start of a session, in milliseconds since the epoch.
    Session(Box<(StepBucket, u64)>, IdleAt, bool),
    /// A bucket whose parameters come with each request, instead of a tier, and the time of a token at its last change.
    Paced(PacedBucket, TokenTime),
}

/// The instant from which a counter equals an unused one, computed at its last change. It is stored because the state
/// without its tier does not determine it. In whole seconds since the epoch, rounded up, capped in 2106.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdleAt(u32);

// === impl CounterState ===

macro_rules! on_state {
    ($counter:expr, $state:ident => $do:expr) => {
        match $counter {
            CounterState::FixedWindow($state) => $do,
            CounterState::SlidingWindow($state, _) => $do,
            CounterState::TokenBucket($state, _) => $do,
            CounterState::OneSpan { is_there, hits, opened, last, .. } => {
                read_one(&window_of_one(*is_there, *hits, *opened, *last), |$state| $do)
            }
            // such a bucket has no tier, and its key is none of a tier's
            CounterState::Steps(..) | CounterState::Session(..) | CounterState::Paced(..) => {
                let $state = &FixedWindow::default();
                $do
            }
        }
    };
}

macro_rules! change_state {
    ($counter:expr, $tier:expr, $state:ident => $do:expr) => {
        match $counter {
            CounterState::FixedWindow($state) => $do,
            CounterState::TokenBucket($state, kept) => {
                let done = $do;
                *kept = IdleAt::of($state.idle_at($tier));
                done
            }
            _ => $counter.change_window($tier, |$state| $do),
        }
    };
}

/// Not inlined, so that the other algorithms do not pay for it.
#[inline(never)]
fn read_one<T>(window: &SlidingWindow, read: impl FnOnce(&SlidingWindow) -> T) -> T {
    read(window)
}

#[inline(never)]
fn window_of_one(is_there: bool, hits: u16, opened: Timestamp, last: Timestamp) -> SlidingWindow {
    SlidingWindow::new(opened, is_there.then_some(Span { last, hits: hits.into() }))
}

impl CounterState {
    pub fn unused(tier: &Tier, now: Timestamp) -> Self {
        match tier.algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(AlgorithmState::unused(tier, now)),
            Algorithm::SlidingWindow => Self::from_sliding_window(AlgorithmState::unused(tier, now), tier),
            Algorithm::TokenBucket(_) => {
                Self::TokenBucket(AlgorithmState::unused(tier, now), IdleAt::default())
            }
        }
    }

    pub const fn is_of(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::FixedWindow => matches!(self, Self::FixedWindow(_)),
            Algorithm::SlidingWindow => matches!(self, Self::SlidingWindow(..) | Self::OneSpan { .. }),
            Algorithm::TokenBucket(_) => matches!(self, Self::TokenBucket(..)),
        }
    }

    #[inline]
    pub fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        on_state!(self, state => state.probe(tier, now, hits))
    }

    /// Returns whether it is no different from an unused counter at `now`.
    pub fn is_unused(&self, tier: &Tier, now: Timestamp) -> bool {
        match self {
            Self::TokenBucket(bucket, _) => bucket.is_idle(tier, now),
            _ => self.probe(tier, now, Hits(0)).used == Hits(0),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn decide(&mut self, tier: &Tier, policy: OverLimitPolicy, hits: Hits, now: Timestamp) -> Outcome {
        change_state!(self, tier, state => state.decide(tier, policy, hits, now))
    }

    pub fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        change_state!(self, tier, state => state.take(tier, now, hits));
    }

    #[inline]
    pub fn take_and_look(&mut self, tier: &Tier, now: Timestamp, hits: Hits) -> Availability {
        change_state!(self, tier, state => {
            state.take(tier, now, hits);
            state.availability(tier, now)
        })
    }

    pub fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        change_state!(self, tier, state => state.reserve(tier, now, until, hits));
    }

    pub fn reject(&mut self, tier: &Tier, now: Timestamp) {
        change_state!(self, tier, state => state.reject(tier, now));
    }

    pub fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        change_state!(self, tier, state => state.give_back(tier, now, hits));
    }

    pub fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, now: Timestamp) {
        change_state!(self, tier, state => state.add(tier, at, change, now));
    }

    /// Adds the hits of `later`, which began as an unused state, at their own instants. Tokens that have flowed into
    /// `later` since its first hit have flowed into both.
    pub fn merge(&mut self, later: &Self, tier: &Tier, now: Timestamp) {
        let mut add = |at: Timestamp, hits: u64| {
            self.add(tier, at, CountChange::of(i64::try_from(hits).unwrap_or(i64::MAX)), now);
        };
        match later {
            Self::FixedWindow(window) => {
                let in_window = Timestamp::from_nanos(window.end().as_nanos().saturating_sub(1));
                add(in_window, later.used().0);
            }
            Self::TokenBucket(bucket, _) if bucket.taken() > 0 => {
                // the steps of the two buckets are at different times: hits that one of them has refilled already are not
                // taken back, and none that has not is refilled by an earlier step of the other one
                let at = if tier.bucket().refill == Refill::Step { now } else { bucket.as_of() };
                // part of a token counts as a whole one, so that it is not admitted twice
                add(at, later.used().0);
            }
            _ => {
                let window = later.sliding_window().unwrap_or_default();
                window.spans().iter().for_each(|span| add(span.last, span.hits.into()));
            }
        }
    }

    /// Returns whether both count the same hits: when a bucket is idle depends on its limit, too.
    pub fn counts_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::TokenBucket(bucket, _), Self::TokenBucket(other, _)) => bucket == other,
            _ => self == other,
        }
    }

    pub fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        change_state!(self, tier, state => state.release(tier, now, until, hits));
    }

    pub fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits) {
        change_state!(self, tier, state => state.put_back(tier, now, taken_at, hits));
    }

    pub fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        on_state!(self, state => state.availability(tier, now))
    }

    pub fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        on_state!(self, state => state.wait(tier, now, hits))
    }

    pub fn used(&self) -> Hits {
        match self {
            Self::Steps(bucket, ..) => Hits(bucket.taken()),
            Self::Session(session, ..) => Hits(session.0.taken()),
            Self::Paced(bucket, _) => Hits(bucket.taken()),
            _ => on_state!(self, state => state.used()),
        }
    }

    /// Returns the instant from which it equals an unused one; for a bucket, by the limit at its last change.
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Self::FixedWindow(window) => window.end(),
            Self::SlidingWindow(_, idle_at)
            | Self::OneSpan { idle_at, .. }
            | Self::TokenBucket(_, idle_at)
            | Self::Steps(_, idle_at, _)
            | Self::Session(_, idle_at, _) => idle_at.instant(),
            Self::Paced(bucket, token) => bucket.full_at(*token),
        }
    }

    pub fn from_sliding_window(window: SlidingWindow, tier: &Tier) -> Self {
        let idle_at = window.idle_at(tier);
        Self::restored_window(window, idle_at)
    }

    /// Creates a state from a `window` and its [`CounterState::idle_at`], which a store keeps without the tier.
    pub fn restored_window(window: SlidingWindow, idle_at: Timestamp) -> Self {
        let idle_at = IdleAt::of(idle_at);
        Self::with_one_span(&window, idle_at)
            .unwrap_or_else(|| Self::SlidingWindow(Box::new(window), idle_at))
    }

    pub fn restored_bucket(bucket: TokenBucket, idle_at: Timestamp) -> Self {
        Self::TokenBucket(bucket, IdleAt::of(idle_at))
    }

    /// Creates a state from `bucket`, the start of its `session`, and whether it was used with callers' times.
    pub fn restored_steps(
        bucket: StepBucket,
        session: Option<u64>,
        idle_at: Timestamp,
        by_caller: bool,
    ) -> Self {
        let idle_at = IdleAt::of(idle_at);
        match session {
            Some(start) => Self::Session(Box::new((bucket, start)), idle_at, by_caller),
            None => Self::Steps(bucket, idle_at, by_caller),
        }
    }

    pub fn sliding_window(&self) -> Option<Cow<'_, SlidingWindow>> {
        match self {
            Self::SlidingWindow(window, _) => Some(Cow::Borrowed(&**window)),
            Self::OneSpan { is_there, hits, opened, last, .. } => {
                Some(Cow::Owned(window_of_one(*is_there, *hits, *opened, *last)))
            }
            _ => None,
        }
    }

    fn with_one_span(window: &SlidingWindow, idle_at: IdleAt) -> Option<Self> {
        let (is_there, span) = match *window.spans() {
            [] => (false, Span { last: Timestamp::default(), hits: 0 }),
            [span] => (true, span),
            _ => return None,
        };
        let hits = u16::try_from(span.hits).ok()?;
        Some(Self::OneSpan { is_there, hits, idle_at, opened: window.opened(), last: span.last })
    }

    /// Not inlined, so that the other algorithms do not pay for it.
    #[inline(never)]
    fn change_window<T>(&mut self, tier: &Tier, change: impl FnOnce(&mut SlidingWindow) -> T) -> T {
        match self {
            Self::SlidingWindow(window, kept) => {
                let done = change(window);
                *kept = IdleAt::of(window.idle_at(tier));
                if let Some(packed) = Self::with_one_span(window, *kept) {
                    *self = packed;
                }
                done
            }
            Self::OneSpan { is_there, hits, opened, last, .. } => {
                let mut window = window_of_one(*is_there, *hits, *opened, *last);
                let done = change(&mut window);
                *self = Self::from_sliding_window(window, tier);
                done
            }
            // such a bucket has no tier, and its key is none of a tier's
            _ => change(&mut SlidingWindow::new(Timestamp::default(), None)),
        }
    }

    pub fn from_token_bucket(bucket: TokenBucket, tier: &Tier) -> Self {
        Self::restored_bucket(bucket, bucket.idle_at(tier))
    }
}

// === impl IdleAt ===

impl IdleAt {
    /// Returns the first whole second from `instant` on, at most the year 2106.
    pub fn of(instant: Timestamp) -> Self {
        let seconds = instant.as_nanos().div_ceil(NANOS_PER_SECOND);
        Self(u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    pub fn instant(self) -> Timestamp {
        Timestamp::from_secs(self.0.into())
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

    /// A sliding window needs no allocation while it has one span of few hits, and changes as it would in a box.
    #[test]
    fn a_window_of_one_span_is_kept_without_an_allocation() {
        let tier = Tier::sliding_window(100_000, Period::from_secs(12));
        let mut state = CounterState::unused(&tier, Timestamp::from_secs(100));
        let mut window = SlidingWindow::unused(&tier, Timestamp::from_secs(100));
        // the instant, the hits that are taken, those that are given back, and the number of spans afterwards
        for (at, taken, given_back, spans) in [
            (100, 0, 0, 0),
            (100, 65_535, 0, 1),
            (100, 1, 0, 1),
            (100, 0, 3, 1),
            (106, 2, 0, 2),
            (113, 4, 0, 2),
            (130, 1, 0, 1),
            // an empty span is another state than none
            (130, 0, 1, 1),
            (130, 2, 0, 1),
        ] {
            let (at, taken, given_back) = (Timestamp::from_secs(at), Hits(taken), Hits(given_back));
            state.take(&tier, at, taken);
            window.take(&tier, at, taken);
            state.release(&tier, at, at, given_back);
            window.release(&tier, at, at, given_back);
            assert_eq!(window.spans().len(), spans);
            let is_small = spans < 2 && window.used() < Hits(65_536);
            assert_eq!(matches!(state, CounterState::OneSpan { .. }), is_small, "{state:?}");
            assert_eq!(state.sliding_window().as_deref(), Some(&window));
            assert_eq!(state, CounterState::from_sliding_window(window.clone(), &tier));
            assert_eq!((state.used(), state.idle_at()), (window.used(), window.idle_at(&tier)));
            assert_eq!(state.availability(&tier, at), window.availability(&tier, at));
        }
        state.give_back(&tier, Timestamp::from_secs(130), Hits(2));
        assert!(state.sliding_window().is_some_and(|window| window.spans().is_empty()));
    }
}
