//! The smooth window: a fixed window whose hits are spread over it.
//!
//! Credit flows in at one hit more than the window has room for, over the rest of the window, and at most a burst of it
//! is kept. So whatever is left is used by the window's end, after a lull too, and no more than a burst has one
//! instant. With one hit less, the last hit would come at the window's edge and count in the next window.

use super::{
    change::CountChange,
    fixed_window::FixedWindow,
    refill::TOKEN,
    state::{AlgorithmState, Availability, Probe},
};
use crate::limit::{
    tier::Tier,
    units::{Hits, Period, Timestamp},
};

/// The hits of one window, and the credit for more. 32 bytes.
///
/// The credit that is missing is kept, not what is there, so that a changed burst applies immediately. It is as of an
/// instant that never steps back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmoothWindow {
    window: FixedWindow,
    as_of: Timestamp,
    /// In units of 2^-31 hits.
    lacking: u64,
}

// === impl SmoothWindow ===

impl SmoothWindow {
    /// Creates the state of `window`, whose credit lacks `lacking` units of 2^-31 hits at `as_of`.
    #[must_use]
    pub const fn new(window: FixedWindow, as_of: Timestamp, lacking: u64) -> Self {
        Self { window, as_of, lacking }
    }

    /// Returns the hits of its window.
    #[must_use]
    pub const fn window(&self) -> FixedWindow {
        self.window
    }

    /// Returns the instant of [`SmoothWindow::lacking`].
    #[must_use]
    pub const fn as_of(&self) -> Timestamp {
        self.as_of
    }

    /// Returns the credit that is missing at [`SmoothWindow::as_of`], in units of 2^-31 hits.
    #[must_use]
    pub const fn lacking(&self) -> u64 {
        self.lacking
    }

    /// Returns the instant from which it equals an unused one.
    pub(super) fn idle_at(&self, tier: &Tier) -> Timestamp {
        self.ready_at(tier, self.as_of, tier.capacity().into()).max(self.window.end())
    }

    /// Gives back `hits` that were taken at `taken_at`, if their window is open. Their credit comes back if nothing was
    /// taken since: otherwise other credit has flowed in for what came then, and with both more than a burst could have
    /// one instant. No hit is lost without it, since credit flows faster while the window has more room.
    pub(super) fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits) {
        if !self.window.is_open(tier, now, taken_at) {
            return;
        }
        if self.as_of == taken_at {
            // as if they had never been taken
            self.lacking = self.lacking.saturating_sub(hits.0.saturating_mul(TOKEN));
        } else {
            (self.as_of, self.lacking) = (self.since(tier).max(now), self.lacking_at(tier, now));
        }
        self.window.give_back(tier, now, hits);
    }

    /// Returns the hits that the window of `at` has room for.
    fn room(&self, tier: &Tier, at: Timestamp) -> u64 {
        u64::from(tier.requests).saturating_sub(self.window.probe(tier, at, Hits(0)).used.0)
    }

    /// Returns the credit that is missing at `now`.
    fn lacking_at(&self, tier: &Tier, now: Timestamp) -> u64 {
        let (mut lacking, mut at) = (self.lacking.min(full(tier)), self.since(tier));
        // a whole window brings more than the burst, so this takes three turns at most
        while at < now && lacking > 0 {
            let edge = at.window_end(tier.period);
            let until = now.min(edge);
            let flow = self.flow(tier, at) * u128::from(until.since(at).as_nanos());
            let flow = flow / u128::from(edge.since(at).as_nanos().max(1));
            lacking = u64::try_from(flow).map_or(0, |flow| lacking.saturating_sub(flow));
            at = until;
        }
        lacking
    }

    /// Returns the credit that flows in from `at` to the end of its window.
    fn flow(&self, tier: &Tier, at: Timestamp) -> u128 {
        u128::from(self.room(tier, at) + 1) * u128::from(TOKEN)
    }

    /// Returns the first instant, `from` or later, at which `hits` fit, which are no more than the capacity.
    fn ready_at(&self, tier: &Tier, from: Timestamp, hits: u64) -> Timestamp {
        let mut at = from.max(self.since(tier));
        // in this window, in the next one, or at the edge after it
        loop {
            let edge = at.window_end(tier.period);
            if self.room(tier, at) >= hits {
                let start = edge.as_nanos().saturating_sub(tier.period.as_nanos());
                // from the stored state or an edge, so that the result is exact
                let base = self.since(tier).max(Timestamp::from_nanos(start));
                let needed = self.lacking_at(tier, base).saturating_sub(full(tier) - hits * TOKEN);
                let rest = u128::from(edge.since(base).as_nanos());
                let wait = (u128::from(needed) * rest).div_ceil(self.flow(tier, base));
                let ready = base.after(Period::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
                if ready < edge || needed == 0 {
                    return ready.max(at);
                }
            }
            if edge <= at {
                // the end of time
                return edge;
            }
            at = edge;
        }
    }

    /// Returns the instant from which credit flows: that of the last change. If the clock stepped back before it, the
    /// start of the window that is still open.
    fn since(&self, tier: &Tier) -> Timestamp {
        let start = self.window.end().as_nanos().saturating_sub(tier.period.as_nanos());
        self.as_of.max(Timestamp::from_nanos(start))
    }
}

/// Returns the most credit, in units of 2^-31 hits.
fn full(tier: &Tier) -> u64 {
    u64::from(tier.capacity()) * TOKEN
}

impl AlgorithmState for SmoothWindow {
    fn unused(tier: &Tier, now: Timestamp) -> Self {
        Self { window: FixedWindow::unused(tier, now), ..Self::default() }
    }

    fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        let Probe { fits, used } = self.window.probe(tier, now, hits);
        let paced = || self.lacking_at(tier, now).saturating_add(hits.0.saturating_mul(TOKEN)) <= full(tier);
        Probe { fits: fits && (hits == Hits(0) || paced()), used }
    }

    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        if hits > Hits(0) {
            let lacking = self.lacking_at(tier, now).saturating_add(hits.0.saturating_mul(TOKEN));
            (self.as_of, self.lacking) = (self.since(tier).max(now), lacking.min(full(tier)));
            self.window.take(tier, now, hits);
        }
    }

    fn reject(&mut self, _tier: &Tier, _now: Timestamp) {}

    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        let lacking = self.lacking_at(tier, now).saturating_sub(hits.0.saturating_mul(TOKEN));
        (self.as_of, self.lacking) = (self.since(tier).max(now), lacking);
        self.window.give_back(tier, now, hits);
    }

    /// Changes the window of `at`, and the credit by as many hits.
    fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, now: Timestamp) {
        let credit = change.hits.unsigned_abs().saturating_mul(TOKEN);
        let lacking = self.lacking_at(tier, at);
        let lacking =
            if change.hits < 0 { lacking.saturating_sub(credit) } else { lacking.saturating_add(credit) };
        (self.as_of, self.lacking) = (self.since(tier).max(at), lacking.min(full(tier)));
        self.window.add(tier, at, change, now);
    }

    /// Returns the hits that both the window and the credit have room for, and the time until the window is over and
    /// the credit is full.
    fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        let window = self.window.availability(tier, now);
        let credit = (full(tier) - self.lacking_at(tier, now)) / TOKEN;
        let full_at = self.ready_at(tier, now, tier.capacity().into());
        Availability {
            remaining: u32::try_from(credit).unwrap_or(u32::MAX).min(window.remaining),
            reset: full_at.since(now).max(window.reset),
        }
    }

    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        if self.probe(tier, now, hits).fits {
            Period::default()
        } else if hits.0 > u64::from(tier.capacity()) {
            self.availability(tier, now).reset
        } else {
            self.ready_at(tier, now, hits.0).since(now)
        }
    }

    fn used(&self) -> Hits {
        self.window.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::tier::Algorithm;

    const SECOND: u64 = 1_000_000_000;

    fn tier(requests: u32, burst: u32) -> Tier {
        Tier { requests, period: Period::from_nanos(SECOND), algorithm: Algorithm::SmoothWindow { burst } }
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Takes hits one by one, each at the first instant at which it fits, until the end of the window; returns their
    /// number.
    fn use_up(state: &mut SmoothWindow, tier: &Tier, mut now: Timestamp) -> u64 {
        let edge = now.window_end(tier.period);
        let mut taken = 0;
        loop {
            now = now.after(state.wait(tier, now, Hits(1)));
            if now >= edge {
                return taken;
            }
            state.take(tier, now, Hits(1));
            taken += 1;
        }
    }

    #[test]
    fn the_gaps_are_equal_across_windows() {
        let (tier, mut now) = (tier(3, 1), at(0));
        let mut state = SmoothWindow::unused(&tier, now);
        let mut gaps = Vec::new();
        for _ in 0..10 {
            let wait = state.wait(&tier, now, Hits(1));
            gaps.push(wait.as_nanos());
            now = now.after(wait);
            state.take(&tier, now, Hits(1));
        }
        assert_eq!(gaps[0], 0);
        assert!(gaps[1..3].iter().all(|gap| gap.abs_diff(SECOND / 3) < 3), "{gaps:?}");
        assert!(gaps[3..].iter().all(|gap| gap.abs_diff(SECOND / 3) < 3), "{gaps:?}");
    }

    #[test]
    fn a_window_is_used_up_whenever_demand_begins_in_it() {
        for requests in 1..=5 {
            for burst in 1..=requests {
                let tier = tier(requests, burst);
                for start in 0..100 {
                    let mut state = SmoothWindow::unused(&tier, at(0));
                    let taken = use_up(&mut state, &tier, at(start * SECOND / 100));
                    assert_eq!(taken, u64::from(requests), "{tier} from {start}");
                    // and the next window too
                    assert_eq!(
                        use_up(&mut state, &tier, at(SECOND)),
                        u64::from(requests),
                        "{tier} from {start}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_shortest_windows_and_the_largest_limits_are_served() {
        let tier = Tier { period: Period::from_nanos(1_000), ..tier(2_000, 2_000) };
        let mut state = SmoothWindow::unused(&tier, at(0));
        assert_eq!(use_up(&mut state, &tier, at(0)), 2_000);
        let tier = Tier { algorithm: Algorithm::SmoothWindow { burst: 1 }, ..tier };
        let mut state = SmoothWindow::unused(&tier, at(0));
        state.take(&tier, at(0), Hits(1));
        let wait = state.wait(&tier, at(0), Hits(1));
        assert_eq!(wait, Period::from_nanos(1));
        let tier = Tier {
            period: Period::from_nanos(u64::MAX),
            requests: u32::MAX,
            algorithm: Algorithm::SmoothWindow { burst: u32::MAX },
        };
        let mut state = SmoothWindow::unused(&tier, at(0));
        state.take(&tier, at(0), Hits(u64::MAX));
        assert!(!state.probe(&tier, at(u64::MAX - 1), Hits(1)).fits);
        let _ = (state.wait(&tier, at(u64::MAX), Hits(1)), state.idle_at(&tier));
    }

    #[test]
    fn no_more_than_a_burst_has_one_instant() {
        let tier = tier(100, 10);
        let mut state = SmoothWindow::unused(&tier, at(0));
        assert!(!state.probe(&tier, at(0), Hits(11)).fits);
        state.take(&tier, at(0), Hits(10));
        assert!(!state.probe(&tier, at(0), Hits(1)).fits);
        assert_eq!(state.availability(&tier, at(0)).remaining, 0);
        // a lull of half a window does not save more
        assert_eq!(state.availability(&tier, at(SECOND / 2)).remaining, 10);
    }

    /// Otherwise the second hit at an instant could be one that was returned, and the first one not.
    #[test]
    fn credit_is_not_given_back_after_other_hits() {
        let tier = tier(10, 1);
        let mut state = SmoothWindow::unused(&tier, at(0));
        state.take(&tier, at(0), Hits(1));
        let second = at(0).after(state.wait(&tier, at(0), Hits(1)));
        state.take(&tier, second, Hits(1));
        let left = use_up(&mut { state }, &tier, second);
        state.put_back(&tier, second, at(0), Hits(1));
        assert!(!state.probe(&tier, second, Hits(1)).fits, "two at once");
        // but the window has room for the one that was returned
        assert_eq!((left, use_up(&mut state, &tier, second)), (8, 9));
    }

    #[test]
    fn hits_are_given_back_with_their_credit_while_their_window_is_open() {
        let tier = tier(10, 5);
        let mut state = SmoothWindow::unused(&tier, at(0));
        state.take(&tier, at(0), Hits(5));
        let full = state;
        state.put_back(&tier, at(0), at(0), Hits(5));
        assert_eq!(state.availability(&tier, at(0)).remaining, 5);
        let mut late = full;
        late.put_back(&tier, at(SECOND), at(0), Hits(5));
        assert_eq!(late, full);
    }

    #[test]
    fn a_clock_that_steps_back_brings_no_credit() {
        let tier = tier(10, 1);
        let mut state = SmoothWindow::unused(&tier, at(SECOND));
        state.take(&tier, at(SECOND), Hits(1));
        assert!(!state.probe(&tier, at(SECOND / 2), Hits(1)).fits);
        let wait = state.wait(&tier, at(SECOND), Hits(1)).as_nanos();
        assert_eq!(state.wait(&tier, at(SECOND / 2), Hits(1)), Period::from_nanos(wait + SECOND / 2));
    }
}
