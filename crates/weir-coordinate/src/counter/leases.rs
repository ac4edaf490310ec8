//! Leases: hits that the store has granted in advance. When to request one, how many hits, and how long to keep them: one
//! call should serve many decisions, and no instance should keep hits that another one lacks.

use std::sync::Arc;

use super::{
    BUCKET_HOLDS, LocalCounter, flows, has_bucket, hold, is_mixed,
    ledger::{DroppedHits, Lease},
    longest_pause,
};
use crate::client::{Link, StoreTime};
use weir_limit::{
    Hits, Period, Tier, Timestamp,
    algorithm::{CounterState, IdleAt},
    capacity,
};
use weir_store::remote::{LeaseRequest, Reply, Target, TierSet};

/// The fewest expected hits that make a pause worthwhile.
const MIN_PAUSE_HITS: u64 = 4;

/// The fewest hits of a window that one of several instances leases ahead.
const MIN_AHEAD: u64 = 3;

/// The expected intervals without a hit after which a counter is abandoned. By chance, 1 in 150 is that long.
const ABANDONED_AFTER: u64 = 5;

/// The longest time until a counter is abandoned. If hits are rarer than that, a call for each hit costs little.
const LONGEST_ABANDONMENT: Period = Period::from_secs(10);

/// The time in which counters are collected that have leases to be looked at.
pub(crate) const LEASE_GRID: Period = Period::from_millis(250);

/// How long the hits should last at most that an instance leases of a calendar's window: if it dies, they are lost until the
/// window ends.
const CALENDAR_HORIZON: Period = Period::from_secs(10);

/// The longest if rejected hits count: other instances read the number of all hits in the store, which has to be right
/// within a second.
const LONGEST_IDLE_HOLD: Period = Period::from_millis(400);

impl LocalCounter {
    /// Leases that were granted to a lone instance last for long. They are returned when there are others.
    pub(crate) fn follow_instances(&mut self, instances: usize) {
        let instances = instances + usize::from(self.choice.has_sibling);
        if instances > 1 && self.is_alone() && flows(&self.target.tiers) {
            self.return_leases();
        }
        self.plan.instances = u16::try_from(instances).unwrap_or(u16::MAX);
    }

    pub(crate) fn record_demand(&mut self, hits: Hits, now: Timestamp) {
        self.demand.record(hits.0.min(capacity(&self.target.tiers)), now);
    }

    /// Adds the lease that `reply` grants, to be used within `hold`. The estimate has the hits in the `counted` tiers.
    /// Those for another limit than that of `target` go back.
    pub(super) fn add_granted(
        &mut self,
        target: &Arc<Target>,
        reply: &Reply,
        hold: Period,
        counted: TierSet,
        now: Timestamp,
    ) {
        if reply.granted == 0 {
            return;
        }
        let ends = reply.counters.iter().map(|state| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold),
        });
        let lease = Lease { left: reply.granted, granted_at: now, until: ends.min().unwrap_or(now) };
        for (_, (tier, state)) in self.states_mut().enumerate().filter(|(i, _)| counted.contains(*i)) {
            Lease::exclude(&[lease], tier, state, now);
        }
        let tiers = &self.target.tiers;
        let is_of_lone_instance = !self.is_alone() && flows(tiers) && hold >= super::hold(tiers, true);
        if !self.choice.mode.leases() || is_of_lone_instance || !self.serves(target) {
            // asked for before
            self.pend(lease.unused());
        } else {
            self.ledger.add_lease(lease);
        }
    }

    /// Notes until when the store counts granted hits, used or not: `reply` has its counters before it took `kept` hits.
    pub(super) fn note_granted(&mut self, tiers: &[Tier], reply: &Reply, kept: u64, now: Timestamp) {
        for (tier, stored) in tiers.iter().zip(&reply.counters) {
            let mut stored = stored.clone();
            stored.reserve(tier, now, now.after(hold(tiers, self.is_alone())), Hits(kept));
            let idle_at = IdleAt::of(stored.idle_at());
            self.last_reply.granted_until = self.last_reply.granted_until.max(idle_at);
        }
    }

    /// Hits of ended leases that some tier still counts are returned to the store.
    #[inline]
    pub(crate) fn expire_leases(&mut self, time: StoreTime) -> DroppedHits {
        // most counters have none most of the time
        if self.ledger.leases().first().is_none_or(|lease| time.latest < lease.until) {
            return DroppedHits::default();
        }
        self.ledger.return_if(&self.target.tiers, |lease| lease.until <= time.latest);
        self.drop_ended(time.now)
    }

    pub(crate) fn return_leases(&mut self) {
        self.ledger.return_if(&self.target.tiers, |_| true);
    }

    /// Returns leases that end before a return could arrive, `lead` from now, if others can use them, and all if the
    /// counter is abandoned.
    pub(crate) fn return_ending(&mut self, lead: Period, now: Timestamp) {
        let is_abandoned = self.abandoned_at().is_some_and(|at| now > at);
        let (returns, soon) = (self.returns_early(), now.after(lead));
        let is_over = |lease: &Lease| is_abandoned || returns && lease.until <= soon;
        self.ledger.return_if(&self.target.tiers, is_over);
    }

    /// Returns whether what is left of leases goes back before their end, because other instances can use it.
    #[inline]
    pub(crate) fn returns_early(&self) -> bool {
        !self.is_alone() && flows(&self.target.tiers)
    }

    /// Returns whether to ask for the next lease in the call that returns what is left of one.
    pub(crate) fn should_renew(&self, lead: Period, now: Timestamp) -> bool {
        self.returns_early()
            && self.ledger.leases().first().is_some_and(|lease| lease.until <= now.after(lead))
            && !self.is_denied(now)
            && self.demand.in_the_next(hold(&self.target.tiers, false), now) > 0
    }

    /// Returns the leases of fixed windows if not a single hit fits until they end. Where rejected hits count, as in
    /// envoyproxy/ratelimit, others read the store's count, which is soon the number of all hits.
    pub(super) fn return_useless(&mut self, now: Timestamp) {
        if self.ledger.leased() > 0 && !flows(&self.target.tiers) && self.remaining(now) == 0 {
            self.return_leases();
        }
    }

    /// Returns the lease to request beside the `needed` hits of decisions that wait. `returned` hits were leased so far.
    pub(crate) fn next_lease(&self, needed: u64, returned: u64, link: &Link) -> Option<LeaseRequest> {
        let (tiers, lead, now) = (&self.target.tiers, link.lead(), link.time.now);
        let longest = hold(tiers, self.is_alone());
        // hits arrive after a round trip, by the latest clock that the store may have
        let shortest = if self.shares_bucket() { lead } else { lead / 2 + Period::from_millis(2) };
        if flows(tiers) && longest < shortest {
            // it would end before it could be used
            return None;
        }
        let want = self.ahead(needed, returned, link);
        let hold = if !self.is_alone() && !has_bucket(tiers) {
            // as long as the hits are expected to last, since a sliding window counts them until then
            let used_up = self.demand.time_for(needed + want, now);
            (used_up + used_up / 2 + lead * 2).min(longest)
        } else {
            longest
        };
        (want > 0).then_some(LeaseRequest { least: 1, want, hold })
    }

    /// How many hits to lease beyond `needed` ones: likely ones, and some for a lull. `returned` were leased before.
    fn ahead(&self, needed: u64, returned: u64, link: &Link) -> u64 {
        let (tiers, now) = (&self.target.tiers, link.time.now);
        let (has_others, remaining) = (!self.is_alone(), self.remaining(now));
        // of an equal share of the rest; half of that in a fixed window, since hits leased at its end are lost to others
        let parts = u64::from(self.plan.instances) * if flows(tiers) { 1 } else { 2 };
        let expected = self.demand.in_the_next(self.horizon(link.horizon(), now), now);
        let likely =
            expected.min((remaining / parts).max(1).max(returned)).saturating_sub(self.ledger.leased());
        // so few save hardly a call, and are missing elsewhere; tokens that return to a bucket are rarely more
        let least = if has_bucket(tiers) { 2 } else { MIN_AHEAD };
        let likely = if has_others && likely < least { 0 } else { likely };
        // hits for after a lull are requested only beside needed ones
        let keeps = needed > 0 && !(has_others && flows(tiers));
        let kept = if keeps { self.idle_allowance().min(remaining / 8) } else { 0 };
        let most = if has_others { self.most_ahead(needed, now) } else { u64::MAX };
        likely.saturating_sub(needed).max(kept).min(most)
    }

    /// The most hits that one of several instances may lease ahead. A bucket that is full before they are used would
    /// admit them beyond its burst, so all instances together must lack more than flows back meanwhile.
    fn most_ahead(&self, needed: u64, now: Timestamp) -> u64 {
        let states = self.estimate.iter().zip(&*self.target.tiers);
        let buckets = states.filter(|(_, tier)| tier.refills());
        let most = buckets.map(|(state, tier)| {
            let lacks = u64::from(tier.capacity().saturating_sub(state.availability(tier, now).remaining));
            let flows_back = u64::from(tier.requests / BUCKET_HOLDS) + 1;
            lacks.saturating_add(needed).saturating_sub(flows_back) / u64::from(self.plan.instances)
        });
        most.min().map_or(u64::MAX, |most| most.saturating_sub(self.ledger.leased()))
    }

    /// How long a lease should last: a quarter of the rest of the window, or as long as it may be used or is kept.
    fn horizon(&self, at_least: Period, now: Timestamp) -> Period {
        let times = self.target.tiers.iter().map(|tier| match tier.window_end(now) {
            Some(end) => {
                let most = if tier.calendar.is_some() { CALENDAR_HORIZON } else { Period::MAX };
                (end.since(now) / 4).min(most).max(at_least)
            }
            None => hold(std::slice::from_ref(tier), false),
        });
        times.min().unwrap_or_default()
    }

    /// Whether the next lease has to be requested now, to arrive before the others are used up in about `soon`.
    #[inline]
    pub(crate) fn runs_low(&self, soon: Period, now: Timestamp) -> bool {
        let leased = self.ledger.leased();
        !self.is_denied(now) && leased < self.demand.in_the_next(soon, now) && leased < self.remaining(now)
    }

    fn shares_bucket(&self) -> bool {
        !self.is_alone() && has_bucket(&self.target.tiers)
    }

    /// The hits that may be kept unused: one in a hundred, by all instances together. None where rejected hits count,
    /// since the store's count has to be that of all hits soon, and none of a bucket, which could be full again before
    /// they are used. An instance that is alone takes them from nobody, but those of a calendar's window would be lost until
    /// its end if it died.
    #[inline]
    pub(crate) fn idle_allowance(&self) -> u64 {
        let tiers = &self.target.tiers;
        match u64::from(self.plan.instances) {
            // a lease ends with its hold, but the hits would count for the rest of the window
            _ if is_mixed(tiers) || tiers.iter().any(|tier| tier.calendar.is_some()) => 0,
            ..=1 => capacity(tiers) / 8,
            _ if has_bucket(tiers) || self.target.counts_rejected() => 0,
            instances => capacity(tiers) / 100 / instances,
        }
    }

    /// Returns after when too much is leased, because no hit has come for longer than the sync interval and than likely.
    pub(crate) fn abandoned_at(&self) -> Option<Timestamp> {
        if self.ledger.leased() <= self.idle_allowance() {
            return None;
        }
        let is_read = !self.is_alone() && self.target.counts_rejected();
        let longest = if is_read { LONGEST_IDLE_HOLD } else { LONGEST_ABANDONMENT };
        let expected = self.demand.time_for(ABANDONED_AFTER, self.last_check_at).min(longest);
        Some(self.last_check_at.after(self.plan.schedule.interval().max(expected)))
    }

    /// Returns when leases have to be looked at, `lead` before one ends or when they are abandoned, and whether that
    /// has to be punctual: the other looks are up to a [`LEASE_GRID`] late. None if none is ever returned: the sweep
    /// forgets those of a single window early enough.
    #[inline]
    pub(crate) fn due_at(&self, lead: Period, now: Timestamp) -> Option<(Timestamp, bool)> {
        let lease = self.ledger.leases().first()?;
        let (abandoned_at, is_punctual) = (self.abandoned_at(), self.returns_early());
        if abandoned_at.is_none() && matches!(&self.target.tiers[..], [tier] if tier.has_windows()) {
            return None;
        }
        let ending = if is_punctual { lease.until.before(lead) } else { lease.until };
        let late = if is_punctual { LEASE_GRID } else { Period::default() };
        let earlier = abandoned_at.filter(|at| (*at).max(now).after(late) < ending);
        Some((earlier.unwrap_or(ending), is_punctual && earlier.is_none()))
    }

    /// Denies hits that are not leased while tokens of a bucket are scarce. Under steady overload every one of several
    /// instances would send a call for each single token. The pause lasts until there is enough for all of them, and
    /// loses nothing, since the bucket does not overflow meanwhile. `is_partial`: the store has just granted less than
    /// asked.
    pub(crate) fn pause_if_scarce(&mut self, is_partial: bool, round_trip: Period, now: Timestamp) {
        self.plan.denied_until = Timestamp::default();
        let tiers = &self.target.tiers;
        if !self.shares_bucket() {
            return;
        }
        let instances = u64::from(self.plan.instances);
        let usable = self.demand.in_the_next(hold(tiers, false), now);
        // 50 % more, because random arrivals are spread unevenly
        let all = usable.saturating_mul(instances).saturating_mul(3) / 2;
        let wait = self.wait_for(all.min(capacity(tiers) / 2).max(1), now);
        // a scarcity begins only when the store has run out, or has less than one for each instance
        let begins = is_partial || self.remaining(now) < instances;
        let time = wait.min(longest_pause(tiers));
        self.plan.is_scarce = wait > Period::default() && (self.plan.is_scarce || begins);
        if self.plan.is_scarce && self.demand.in_the_next(time, now) >= MIN_PAUSE_HITS {
            // so that no decision waits for the call whose reply arrives at the end
            let lead = (self.demand.time_for(3, now) + round_trip * 2).min(time / 2);
            self.plan.denied_until = now.after(time);
            self.plan.asks_before = u16::try_from(lead.as_nanos().div_ceil(1_000_000)).unwrap_or(u16::MAX);
        }
    }

    /// True once for each pause, shortly before its end: then a lease should be requested.
    pub(crate) fn ends_pause(&mut self, now: Timestamp) -> bool {
        let left = self.plan.denied_until.since(now);
        let is_ending = self.is_denied(now) && left <= Period::from_millis(self.plan.asks_before.into());
        if is_ending {
            self.plan.asks_before = 0;
        }
        is_ending
    }
}
