//! The algorithms: each a pure function of (state, now, hits). None of them knows a store, a clock or a wire.
//!
//! A store keeps one [`State`] for each counter and tier. A decision asks every state for its [`State::offer`], and
//! then, under the same lock, tells it what was decided: [`State::take`] or [`State::refuse`].

mod fixed_window;

pub use fixed_window::FixedWindow;

use super::{
    rule::Tier,
    units::{Hits, Period, Timestamp},
};

/// How a tier's period is laid over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `requests` in each epoch-aligned window of one period: the reference's way.
    #[default]
    FixedWindow,
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

    /// Notes that a request was refused, here or by another tier, and took nothing.
    fn refuse(&mut self, tier: &Tier, now: Timestamp);

    /// Gives `hits` back, never past unused.
    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits);

    /// What it tells of itself now.
    fn report(&self, tier: &Tier, now: Timestamp) -> Report;

    /// How long until `hits` would fit, if nobody else takes any; [`Report::until_full`] if they never do.
    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period;

    /// From when on it is as if unused, so that it may be forgotten.
    fn idle_at(&self) -> Timestamp;

    /// How much is lost with it when it is forgotten early: the hits that are counted.
    fn used(&self) -> Hits;
}

/// The state of any algorithm, as stores keep it. 24 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Of [`Algorithm::FixedWindow`].
    FixedWindow(FixedWindow),
}

// === impl Counter ===

/// Runs an expression on the state, whichever it is.
macro_rules! on_state {
    ($counter:expr, $state:ident => $do:expr) => {
        match $counter {
            Counter::FixedWindow($state) => $do,
        }
    };
}

impl Counter {
    /// Makes it unused if it is of another algorithm than `tier`'s: what was counted in another way has no meaning
    /// in this one.
    pub fn suit(&mut self, tier: &Tier, now: Timestamp) {
        let suits = match (&*self, tier.algorithm) {
            (Self::FixedWindow(_), Algorithm::FixedWindow) => true,
        };
        if !suits {
            *self = Self::unused(tier, now);
        }
    }
}

/// A placeholder that counts nothing.
impl Default for Counter {
    fn default() -> Self {
        Self::FixedWindow(FixedWindow::default())
    }
}

impl State for Counter {
    fn unused(tier: &Tier, now: Timestamp) -> Self {
        match tier.algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(State::unused(tier, now)),
        }
    }

    fn offer(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Offer {
        on_state!(self, state => state.offer(tier, now, hits))
    }

    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.take(tier, now, hits));
    }

    fn refuse(&mut self, tier: &Tier, now: Timestamp) {
        on_state!(self, state => state.refuse(tier, now));
    }

    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        on_state!(self, state => state.give_back(tier, now, hits));
    }

    fn report(&self, tier: &Tier, now: Timestamp) -> Report {
        on_state!(self, state => state.report(tier, now))
    }

    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        on_state!(self, state => state.wait(tier, now, hits))
    }

    fn idle_at(&self) -> Timestamp {
        on_state!(self, state => state.idle_at())
    }

    fn used(&self) -> Hits {
        on_state!(self, state => state.used())
    }
}
