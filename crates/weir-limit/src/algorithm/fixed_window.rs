//! The fixed window: at most `requests` in each window, which is aligned to the epoch or cut by a calendar. The first is the
//! algorithm of envoyproxy/ratelimit.

use super::{
    change::CountChange,
    state::{AlgorithmState, Availability, Outcome, Probe},
};
use crate::{
    tier::{OverLimitPolicy, Tier},
    units::{Hits, Period, Timestamp},
};

/// The hits of one window. 16 bytes.
///
/// A window that has ended counts nothing. If the clock steps back over a window's start, hits still count in the
/// window that is already open: reopening the past one would admit its limit again. A window that ends at no edge of the
/// tier's calendar is that of another one, and counts nothing either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    end: Timestamp,
    used: Hits,
}

impl FixedWindow {
    pub const fn new(end: Timestamp, used: Hits) -> Self {
        Self { end, used }
    }

    pub const fn end(&self) -> Timestamp {
        self.end
    }

    /// Returns itself while it is open, and then the window of `now`.
    #[inline]
    fn open(&self, tier: &Tier, now: Timestamp) -> Self {
        if self.is_open(tier, now) { *self } else { Self::unused(tier, now) }
    }

    /// Returns what is left of the window that is open.
    #[inline]
    fn left(self, tier: &Tier, now: Timestamp) -> Availability {
        let left = u64::from(tier.requests).saturating_sub(self.used.0);
        Availability { remaining: u32::try_from(left).unwrap_or(u32::MAX), reset: self.end.since(now) }
    }

    #[inline]
    fn is_open(&self, tier: &Tier, now: Timestamp) -> bool {
        now < self.end && tier.can_end_at(self.end)
    }
}

impl AlgorithmState for FixedWindow {
    fn unused(tier: &Tier, now: Timestamp) -> Self {
        Self { end: tier.window(now).1, used: Hits(0) }
    }

    #[inline]
    fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        let used = self.open(tier, now).used;
        Probe { fits: used.plus(hits) <= Hits(tier.requests.into()), used }
    }

    #[inline]
    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        if hits > Hits(0) {
            *self = self.open(tier, now);
            self.used = self.used.plus(hits);
        }
    }

    fn reject(&mut self, _tier: &Tier, _now: Timestamp) {}

    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        *self = self.open(tier, now);
        self.used = self.used.minus(hits);
    }

    /// If the window of `taken_at` is this one, and still open.
    fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits) {
        if now < self.end && self.end == tier.window(taken_at).1 {
            self.used = self.used.minus(hits);
        }
    }

    /// Applies the change in the window of `at`. Ignores it if a later window is open.
    fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, _now: Timestamp) {
        let is_past = || tier.window(at).1 < self.end && tier.can_end_at(self.end);
        if !change.is_none() && !is_past() {
            *self = self.open(tier, at);
            self.used = Hits(change.apply(self.used.0));
        }
    }

    #[inline]
    fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        self.open(tier, now).left(tier, now)
    }

    /// As every algorithm does, but looks once which window is open: it frees all hits at its end, so that is the wait.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn decide(&mut self, tier: &Tier, policy: OverLimitPolicy, hits: Hits, now: Timestamp) -> Outcome {
        let mut open = self.open(tier, now);
        let used = open.used;
        let fits = used.plus(hits) <= Hits(tier.requests.into());
        if hits > Hits(0) && (fits || policy == OverLimitPolicy::Count) {
            open.used = used.plus(hits);
            *self = open;
        }
        Outcome { over: !fits, used, available: open.left(tier, now) }
    }

    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        if self.probe(tier, now, hits).fits { Period::default() } else { self.open(tier, now).end.since(now) }
    }

    fn used(&self) -> Hits {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(requests: u32) -> Tier {
        Tier::fixed_window(requests, Period::from_secs(60))
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn admits_up_to_the_limit_and_again_in_the_next_window() {
        let tier = tier(2);
        let mut window = FixedWindow::unused(&tier, at(30));
        assert_eq!((window.end(), window.used()), (at(60), Hits(0)));
        for _ in 0..2 {
            assert!(window.probe(&tier, at(30), Hits(1)).fits);
            window.take(&tier, at(30), Hits(1));
        }
        assert!(!window.probe(&tier, at(59), Hits(1)).fits);
        assert!(window.probe(&tier, at(60), Hits(2)).fits);
        assert_eq!(window.wait(&tier, at(59), Hits(1)), Period::from_secs(1));
    }

    #[test]
    fn a_check_with_no_hits_passes_at_the_limit_and_fails_past_it() {
        let tier = tier(1);
        let mut window = FixedWindow::unused(&tier, at(0));
        window.take(&tier, at(0), Hits(1));
        assert!(window.probe(&tier, at(0), Hits(0)).fits);
        window.take(&tier, at(0), Hits(1));
        assert!(!window.probe(&tier, at(0), Hits(0)).fits);
    }

    #[test]
    fn hits_are_given_back_but_never_more_than_were_taken() {
        let tier = tier(5);
        let mut window = FixedWindow::unused(&tier, at(0));
        window.take(&tier, at(0), Hits(3));
        window.give_back(&tier, at(1), Hits(2));
        assert_eq!(window.availability(&tier, at(1)).remaining, 4);
        window.give_back(&tier, at(1), Hits(u64::MAX));
        assert_eq!(window.availability(&tier, at(1)).remaining, 5);
    }

    #[test]
    fn a_change_counts_in_its_own_window() {
        let tier = tier(5);
        let mut window = FixedWindow::unused(&tier, at(0));
        window.add(&tier, at(59), CountChange { hits: -2, floor: 3 }, at(59));
        assert_eq!(window.used(), Hits(3));
        window.add(&tier, at(61), CountChange::of(4), at(62));
        assert_eq!((window.used(), window.end()), (Hits(4), at(120)));
        // the window before is over, so that its hits matter no more
        window.add(&tier, at(59), CountChange::of(1), at(62));
        assert_eq!(window.used(), Hits(4));
        window.add(&tier, at(62), CountChange::of(-9), at(62));
        assert_eq!(window.used(), Hits(0));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_reopen_a_past_window() {
        let tier = tier(1);
        let mut window = FixedWindow::unused(&tier, at(60));
        window.take(&tier, at(60), Hits(1));
        assert!(!window.probe(&tier, at(59), Hits(1)).fits);
        // and says how long it stays as it is
        assert_eq!(window.wait(&tier, at(59), Hits(1)), Period::from_secs(61));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let tier = tier(u32::MAX);
        let mut window = FixedWindow::unused(&tier, Timestamp::from_nanos(u64::MAX));
        window.take(&tier, Timestamp::from_nanos(u64::MAX - 1), Hits(u64::MAX));
        window.take(&tier, Timestamp::from_nanos(u64::MAX - 1), Hits(u64::MAX));
        assert_eq!(window.availability(&tier, Timestamp::from_nanos(u64::MAX - 1)).remaining, 0);
    }
}
