//! When to request a lease, and how many hits: one call should serve many decisions, and no instance should hold hits
//! that another one lacks.

use std::sync::Arc;

use super::{
    LocalCounter,
    records::{HeldLease, PendingDelta},
    talk::Link,
    tiers::{flows, has_bucket, hold, lone_hold, longest_pause, same_windows},
    used_up::LONGEST_IDLE_HOLD,
};
use crate::{
    limit::{
        Algorithm, Hits, Period, Timestamp,
        algorithm::{CounterState, IdleAt},
        capacity,
    },
    store::remote::{Hold, Reply},
};

/// The fewest expected hits that make a pause worthwhile.
const MIN_PAUSE_HITS: u64 = 4;

/// The fewest hits of a window that one of several instances leases ahead.
const MIN_AHEAD: u64 = 3;

/// The first wait before a look whether another instance has given hits back, unless the sync interval is longer. The
/// next waits double.
const FIRST_PROBE: Period = Period::from_millis(250);

impl LocalCounter {
    /// Returns what to hold beside the `needed` hits of decisions that wait, as of `now`. None if nothing. `returned`
    /// hits were held until now.
    pub(super) fn next_hold(&self, needed: u64, returned: u64, link: &Link, now: Timestamp) -> Option<Hold> {
        // a lease would end before it could be used
        if flows(&self.target.tiers) && self.longest_hold() < self.shortest_hold(link.lead) {
            return None;
        }
        let want = self.ahead(needed, returned, link.horizon, now);
        let longest = self.longest_hold();
        let time = if self.plan.instances <= 1 || has_bucket(&self.target.tiers) {
            longest
        } else {
            // as long as the hits are expected to last, since a sliding window counts them until then
            let used_up = self.demand.time_for(needed + want, now).as_nanos();
            let time = used_up.saturating_add(used_up / 2).saturating_add(2 * link.lead.as_nanos());
            Period::from_nanos(time).min(longest)
        };
        (want > 0).then_some(Hold { least: 1, want, time })
    }

    /// Returns how long a grant may be used at most if no window ends it.
    fn longest_hold(&self) -> Period {
        if self.plan.instances <= 1 { lone_hold(&self.target.tiers) } else { hold(&self.target.tiers) }
    }

    /// Returns how long hits that are leased ahead have to be usable at least, so that some of them are used: they
    /// arrive after a round trip, by the latest clock that the store may have. Others of a bucket have to be returned
    /// before they flow back. `lead` is the time that a return takes, two round trips and what the queue may be late.
    fn shortest_hold(&self, lead: Period) -> Period {
        let returns = self.plan.instances > 1 && has_bucket(&self.target.tiers);
        if returns { lead } else { Period::from_nanos(lead.as_nanos() / 2 + 2_000_000) }
    }

    /// Returns how many hits to lease beyond the `needed` ones of decisions that wait: those that are likely to be used
    /// within the time that a lease should last, and those that are kept for after a lull. `returned` hits were held
    /// until now.
    pub(super) fn ahead(&self, needed: u64, returned: u64, at_least: Period, now: Timestamp) -> u64 {
        let mut likely = 0;
        if self.demand.is_known(now) {
            let leased = self.leased_hits();
            likely = self.demand.in_the_next(self.horizon(at_least, now), now).saturating_sub(leased);
            let share = self.share(now).max(returned);
            likely = likely.min(if self.plan.instances > 1 { share.saturating_sub(leased) } else { share });
            // so few save hardly a call, and are missing elsewhere; tokens that return to a bucket are rarely more
            let least = if has_bucket(&self.target.tiers) { 2 } else { MIN_AHEAD };
            likely = if self.plan.instances > 1 && likely < least { 0 } else { likely };
        }
        let kept = if needed > 0 { self.kept_ahead(now) } else { 0 };
        likely.saturating_sub(needed).max(kept).min(self.most_ahead(needed, now))
    }

    /// Returns the most hits that one of several instances may lease ahead. A bucket that is full again before such
    /// hits are used would admit them beyond its burst, so all instances together must lack more than flows back
    /// meanwhile.
    fn most_ahead(&self, needed: u64, now: Timestamp) -> u64 {
        if self.plan.instances <= 1 {
            return u64::MAX;
        }
        let leased = self.leased_hits();
        let buckets = self.estimate.iter().zip(&self.target.tiers).filter_map(|(state, tier)| {
            let Algorithm::TokenBucket(bucket) = tier.algorithm else { return None };
            let left = u64::from(state.availability(tier, now).remaining);
            let lacks = u64::from(bucket.burst).saturating_sub(left).saturating_add(needed);
            let flows_back = u64::from(tier.requests) / 20 + 1;
            Some(lacks.saturating_sub(flows_back) / u64::from(self.plan.instances))
        });
        buckets.min().map_or(u64::MAX, |most| most.saturating_sub(leased))
    }

    /// Records that `hits` were asked for: as many as the limit could admit at most.
    pub(in super::super) fn record_demand(&mut self, hits: Hits, now: Timestamp) {
        if !self.is_away() {
            self.demand.record(hits.0.min(capacity(&self.target.tiers)), now);
        }
    }

    /// Returns how long a lease should last: a quarter of the window's remaining time, or as long as it may be used or
    /// is kept.
    fn horizon(&self, at_least: Period, now: Timestamp) -> Period {
        let times = self.target.tiers.iter().map(|tier| match tier.algorithm {
            Algorithm::FixedWindow => {
                let rest = now.window_end(tier.period).since(now);
                let quarter = Period::from_nanos(rest.as_nanos() / 4);
                // more would be returned before it is used
                let most = if self.is_shared_count() { LONGEST_IDLE_HOLD } else { Period::MAX };
                quarter.min(most).max(at_least)
            }
            _ => hold(std::slice::from_ref(tier)),
        });
        times.min().unwrap_or_default()
    }

    /// Returns how many of the remaining hits one instance may hold: an equal share. In a fixed window half of that,
    /// since hits that one instance still holds when it ends are lost to the others.
    fn share(&self, now: Timestamp) -> u64 {
        let parts = u64::from(self.plan.instances) * if flows(&self.target.tiers) { 1 } else { 2 };
        (self.remaining(now) / parts).max(1)
    }

    /// Holds `hits` of those that `reply` grants, which must be used within `hold`. To be called before the reply is
    /// applied to the estimate, which does not count them.
    pub(super) fn hold_granted(&mut self, hits: u64, reply: &Reply, hold: Period, now: Timestamp) {
        if hits == 0 || reply.counters.len() != self.target.tiers.len() {
            return;
        }
        let ends = reply.counters.iter().map(|state| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold),
        });
        let until = ends.min().unwrap_or(now);
        let lease = HeldLease::new(Hits(hits), now, until);
        if self.is_away() {
            // granted under a limit that a reload has replaced
            self.push_pending(PendingDelta::unused(&Arc::clone(&self.target), lease));
        } else {
            self.rare.add_lease(lease);
        }
        let idle_at = reply.counters.iter().map(CounterState::idle_at).max();
        self.heard.granted_until = self.heard.granted_until.max(IdleAt::of(idle_at.unwrap_or_default()));
    }

    /// Has the store keep `hits` that it has just granted: those that were given back before the reply must not take
    /// them along.
    pub(super) fn keep_granted(&mut self, hits: u64, now: Timestamp) {
        if hits > 0 {
            self.note_admission();
        }
        for delta in self.unacknowledged.pending_mut() {
            let is_given_back = !delta.change.is_addition() && delta.limit.overlaps(&self.target);
            if is_given_back && same_windows(&self.target.tiers, delta.at, now) {
                delta.change.floor = delta.change.floor.saturating_add(hits);
            }
        }
    }

    /// Denies all hits that are not leased until another call is worthwhile. The store has just granted all that was
    /// asked for, or only a part.
    pub(super) fn pause_if_scarce(&mut self, is_partial: bool, round_trip: Period, now: Timestamp) {
        self.plan.denied_until = match self.scarcity_pause(is_partial, now) {
            // a call that is sent a little earlier has its reply when the pause ends, so that no decision waits for it
            Some(pause) => {
                let lead = self.demand.time_for(3, now).as_nanos().saturating_add(2 * round_trip.as_nanos());
                let lead = lead.min(pause.as_nanos() / 2);
                self.leasing_mut().probe_at = now.after(Period::from_nanos(pause.as_nanos() - lead));
                now.after(pause)
            }
            None => Timestamp::default(),
        };
    }

    /// Denies all hits until one fits, if none does now.
    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        let wait = self.wait_for(1, now);
        self.plan.denied_until =
            if wait == Period::default() { Timestamp::default() } else { now.after(wait) };
    }

    /// Returns how long to send no call although tokens return to a bucket. Under steady overload every one of several
    /// instances would request each single token as soon as it is available, at the cost of a call. The pause lasts
    /// until there is enough for every instance, and loses nothing, since the bucket does not overflow meanwhile. There
    /// is no pause if there is enough already, or no overload.
    fn scarcity_pause(&mut self, is_partial: bool, now: Timestamp) -> Option<Period> {
        let tiers = &self.target.tiers;
        if self.plan.instances <= 1 || !has_bucket(tiers) {
            return None;
        }
        let (hold, longest) = (hold(tiers), longest_pause(tiers));
        let usable = self.demand.in_the_next(hold, now);
        // 50 % more, because random arrivals are spread unevenly
        let all = usable.saturating_mul(u64::from(self.plan.instances)).saturating_mul(3) / 2;
        let plenty = all.min(capacity(tiers) / 2).max(1);
        let wait = self.wait_for(plenty, now);
        // a scarcity begins only when the store has run out, or has less than one for each instance
        let is_empty = self.remaining(now) < u64::from(self.plan.instances);
        let was_scarce = self.leasing().is_some_and(|leasing| leasing.is_scarce);
        let is_scarce = wait > Period::default() && (was_scarce || is_partial || is_empty);
        if is_scarce != was_scarce {
            self.leasing_mut().is_scarce = is_scarce;
        }
        let pause = wait.min(longest);
        let worthwhile = self.demand.in_the_next(pause, now) >= MIN_PAUSE_HITS;
        (is_scarce && worthwhile).then_some(pause)
    }

    /// Returns the time until `hits` fit, if no others are taken.
    fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    /// Returns whether the pause is so nearly over that a lease should be requested for its end.
    pub(in super::super) fn is_pause_ending(&mut self, now: Timestamp) -> bool {
        let denied_until = self.plan.denied_until;
        if now >= denied_until {
            return false;
        }
        let probe_at = &mut self.leasing_mut().probe_at;
        let is_ending = now >= *probe_at;
        if is_ending {
            *probe_at = denied_until;
        }
        is_ending
    }

    /// Notes that the store has admitted hits: when it rejects the next ones, the first look for returned hits comes
    /// soon.
    pub(in super::super) fn note_admission(&mut self) {
        if let Some(leasing) = self.rare.more_mut().and_then(|more| more.leasing.as_deref_mut()) {
            leasing.probe_after = Period::default();
        }
    }

    /// Wishes to know the store's count from time to time while this instance rejects hits, because another one may
    /// have given some back. The time between two looks doubles.
    pub(in super::super) fn look_for_returned(&mut self, now: Timestamp) {
        if self.plan.instances <= 1 {
            return;
        }
        let first = FIRST_PROBE.max(self.plan.schedule.interval());
        let leasing = self.leasing_mut();
        if leasing.probe_after == Period::default() {
            leasing.probe_after = first;
            leasing.probe_at = now.after(first);
        } else if now >= leasing.probe_at {
            leasing.probe_after = Period::from_nanos(leasing.probe_after.as_nanos().saturating_mul(2));
            leasing.probe_at = now.after(leasing.probe_after);
            self.plan.wants_read = true;
        }
    }
}
