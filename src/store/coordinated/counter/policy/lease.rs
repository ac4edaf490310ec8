//! The policy of `lease`: when to request a lease, how many hits, and how long to keep them. One call should serve many
//! decisions, and no instance should hold hits that another one lacks.

use super::{Answer, Ask, Asks, Denial, View};
use crate::{
    limit::{Algorithm, Direction, Hits, Period, Timestamp, capacity},
    store::{
        coordinated::{
            counter::{
                records::HeldLease,
                tiers::{flows, has_bucket, hold, is_mixed, lone_hold, longest_pause},
            },
            link::Link,
        },
        remote::Hold,
    },
};

/// The fewest expected hits that make a pause worthwhile.
const MIN_PAUSE_HITS: u64 = 4;

/// The fewest hits of a window that one of several instances leases ahead.
const MIN_AHEAD: u64 = 3;

/// The expected intervals without a hit after which a counter is abandoned. By chance, 1 in 150 is that long.
const ABANDONED_AFTER: u64 = 5;

/// The longest time until a counter is abandoned. If hits are rarer than that, a call for each hit costs little.
const LONGEST_ABANDONMENT: Period = Period::from_secs(10);

/// The longest that one of several instances holds hits without a request, if rejected hits count: others read the
/// number of all hits in the store, which has to be right within a second.
const LONGEST_IDLE_HOLD: Period = Period::from_millis(400);

/// Whether the store has too few hits, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Scarcity {
    pub(in super::super) is_scarce: bool,
    pub(in super::super) pause: Option<Pause>,
}

/// A time in which no call is worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Pause {
    pub(in super::super) until: Timestamp,
    /// When to send the call whose reply arrives at the end, so that no decision waits for it.
    pub(in super::super) call_at: Timestamp,
}

// === impl View ===

impl View<'_> {
    #[inline]
    pub(in super::super) fn lease_answer(&self, ask: &Ask, now: Timestamp) -> Answer {
        match ask.direction {
            Direction::GiveBack => Answer::Count,
            Direction::Take if ask.hits == Hits(0) => Answer::Wait(Asks::Look),
            Direction::Take if !self.fits(ask.hits, now) => Answer::Reject(Denial::Estimate),
            Direction::Take if self.leased() >= ask.hits.0 => Answer::Spend,
            // until there is enough for every instance
            Direction::Take if now < self.denied_until => Answer::Reject(Denial::Pause),
            // what is held is of the rule's limit
            Direction::Take if ask.is_own => Answer::Wait(Asks::Take(ask.policy)),
            Direction::Take => Answer::Wait(Asks::Lease(ask.policy)),
        }
    }

    /// Returns what to hold beside the `needed` hits of decisions that wait. `returned` hits were held until now.
    pub(in super::super) fn next_hold(
        &self,
        needed: u64,
        returned: u64,
        link: &Link,
        now: Timestamp,
    ) -> Option<Hold> {
        let tiers = &self.target.tiers;
        let longest = if self.is_alone() { lone_hold(tiers) } else { hold(tiers) };
        // a lease would end before it could be used
        if flows(tiers) && longest < self.shortest_hold(link.lead()) {
            return None;
        }
        let want = self.ahead(needed, returned, link.horizon(), now);
        let time = if self.is_alone() || has_bucket(tiers) {
            longest
        } else {
            // as long as the hits are expected to last, since a sliding window counts them until then
            let used_up = self.demand.time_for(needed + want, now).as_nanos();
            let time = used_up.saturating_add(used_up / 2).saturating_add(2 * link.lead().as_nanos());
            Period::from_nanos(time).min(longest)
        };
        (want > 0).then_some(Hold { least: 1, want, time })
    }

    /// The least time for which leased hits have to be usable: they arrive after a round trip, by the latest clock that
    /// the store may have. Those of a bucket that others use have to be returned before they flow back.
    fn shortest_hold(&self, lead: Period) -> Period {
        let returns = !self.is_alone() && has_bucket(&self.target.tiers);
        if returns { lead } else { Period::from_nanos(lead.as_nanos() / 2 + 2_000_000) }
    }

    /// How many hits to lease beyond `needed` ones: likely ones, and some for a lull. `returned` were held before.
    fn ahead(&self, needed: u64, returned: u64, at_least: Period, now: Timestamp) -> u64 {
        let View { target, demand, .. } = *self;
        let mut likely = 0;
        if demand.is_known(now) {
            let leased = self.leased();
            likely = demand.in_the_next(self.horizon(at_least, now), now).saturating_sub(leased);
            let share = self.share(now).max(returned);
            likely = likely.min(if self.is_alone() { share } else { share.saturating_sub(leased) });
            // so few save hardly a call, and are missing elsewhere; tokens that return to a bucket are rarely more
            let least = if has_bucket(&target.tiers) { 2 } else { MIN_AHEAD };
            likely = if !self.is_alone() && likely < least { 0 } else { likely };
        }
        let kept = if needed > 0 { self.kept_ahead(now) } else { 0 };
        likely.saturating_sub(needed).max(kept).min(self.most_ahead(needed, now))
    }

    /// The hits that are requested beside needed ones, to be kept for after a lull.
    fn kept_ahead(&self, now: Timestamp) -> u64 {
        if !self.is_alone() && flows(&self.target.tiers) {
            return 0;
        }
        self.idle_allowance().min(self.remaining(now) / 8)
    }

    /// The most hits that one of several instances may lease ahead. A bucket that is full before they are used would
    /// admit them beyond its burst, so all instances together must lack more than flows back meanwhile.
    fn most_ahead(&self, needed: u64, now: Timestamp) -> u64 {
        if self.is_alone() {
            return u64::MAX;
        }
        let View { target, estimate, instances, .. } = *self;
        let buckets = estimate.iter().zip(&target.tiers).filter_map(|(state, tier)| {
            let Algorithm::TokenBucket(bucket) = tier.algorithm else { return None };
            let left = u64::from(state.availability(tier, now).remaining);
            let lacks = u64::from(bucket.burst).saturating_sub(left).saturating_add(needed);
            let flows_back = u64::from(tier.requests) / 20 + 1;
            Some(lacks.saturating_sub(flows_back) / instances)
        });
        buckets.min().map_or(u64::MAX, |most| most.saturating_sub(self.leased()))
    }

    /// How long a lease should last: a quarter of the rest of the window, or as long as it may be used or is kept.
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

    /// An equal share of the rest; half of that in a fixed window, since hits held at its end are lost to the others.
    fn share(&self, now: Timestamp) -> u64 {
        let parts = self.instances * if flows(&self.target.tiers) { 1 } else { 2 };
        (self.remaining(now) / parts).max(1)
    }

    /// Whether the next lease has to be requested now, to arrive before the others are used up in about `soon`.
    #[inline]
    pub(in super::super::super) fn runs_low(&self, soon: Period, now: Timestamp) -> bool {
        let leased = self.leased();
        now >= self.denied_until
            && leased < self.demand.in_the_next(soon, now)
            && leased < self.remaining(now)
    }

    /// The hits that may be kept unused: one in a hundred, by all instances together. None where rejected hits count,
    /// since the store's count has to be that of all hits soon, and none of a bucket, which could be full again before
    /// they are used. An instance that is alone takes them from nobody.
    #[inline]
    pub(in super::super) fn idle_allowance(&self) -> u64 {
        let tiers = &self.target.tiers;
        match self.instances {
            // a lease ends with its hold, but the hits would count for the rest of the window
            _ if is_mixed(tiers) => 0,
            ..=1 => capacity(tiers) / 8,
            _ if has_bucket(tiers) || self.target.counts_rejected() => 0,
            instances => capacity(tiers) / 100 / instances,
        }
    }

    #[inline]
    fn may_keep_all(&self) -> bool {
        self.leased() <= self.idle_allowance()
    }

    /// Returns whether too much is held, and no hit has come for longer than the sync interval and than is likely.
    pub(in super::super) fn is_abandoned(&self, now: Timestamp) -> bool {
        now > self.abandoned_at() && !self.may_keep_all()
    }

    fn abandoned_at(&self) -> Timestamp {
        let View { demand, last_check_at, sync_interval, .. } = *self;
        let longest = if self.is_shared_count() { LONGEST_IDLE_HOLD } else { LONGEST_ABANDONMENT };
        let expected = demand.time_for(ABANDONED_AFTER, last_check_at).min(longest);
        last_check_at.after(sync_interval.max(expected))
    }

    /// Returns whether what is left of `lease` goes back before its end, because other instances can use it.
    #[inline]
    fn returns(&self, lease: &HeldLease) -> bool {
        !self.is_alone() && flows(&self.target.tiers) && lease.has_hold
    }

    pub(in super::super) fn returns_before(&self, lease: &HeldLease, soon: Timestamp) -> bool {
        self.returns(lease) && lease.until <= soon
    }

    /// Returns whether to renew a lease that ends within `lead`, in the call that returns what is left of it.
    pub(in super::super::super) fn should_renew(&self, lead: Period, now: Timestamp) -> bool {
        let first = self.leases.first();
        first.is_some_and(|lease| self.returns_before(lease, now.after(lead)))
            && now >= self.denied_until
            && self.demand.in_the_next(hold(&self.target.tiers), now) > 0
    }

    /// Returns when leases have to be looked at, `lead` before one ends or when they are abandoned, and whether that
    /// has to be punctual. None if none is ever returned: the sweep forgets those early enough.
    #[inline]
    pub(in super::super::super) fn due_at(&self, lead: Period) -> Option<(Timestamp, bool)> {
        let lease = self.leases.first()?;
        let is_kept = self.may_keep_all();
        if is_kept && self.is_single_window() {
            return None;
        }
        let abandoned_at = if is_kept { lease.until } else { self.abandoned_at() };
        if self.returns(lease) {
            let nanos = lease.until.as_nanos().saturating_sub(lead.as_nanos());
            let ending = Timestamp::from_nanos(nanos);
            return Some(if ending <= abandoned_at { (ending, true) } else { (abandoned_at, false) });
        }
        Some((lease.until.min(abandoned_at), false))
    }

    pub(in super::super) fn keeps_all(&self) -> bool {
        self.is_single_window() && self.may_keep_all()
    }

    /// Leases of a single fixed window end with it: unless they are returned before, they are forgotten.
    #[inline]
    fn is_single_window(&self) -> bool {
        matches!(&self.target.tiers[..], [tier] if tier.algorithm == Algorithm::FixedWindow)
    }

    /// Returns whether other instances read the number of all hits in the store, rejected ones included.
    fn is_shared_count(&self) -> bool {
        !self.is_alone() && self.target.counts_rejected()
    }

    /// Returns whether tokens of a bucket are scarce, and for how long to send no call. Under steady overload every one
    /// of several instances would send a call for each single token. The pause lasts until there is enough for all of
    /// them, and loses nothing, since the bucket does not overflow meanwhile. `is_partial`: the store has just granted
    /// less than asked. None where nothing can be scarce.
    pub(in super::super) fn scarcity(
        &self,
        was_scarce: bool,
        is_partial: bool,
        round_trip: Period,
        now: Timestamp,
    ) -> Option<Scarcity> {
        let View { target, demand, instances, .. } = *self;
        let tiers = &target.tiers;
        if self.is_alone() || !has_bucket(tiers) {
            return None;
        }
        let usable = demand.in_the_next(hold(tiers), now);
        // 50 % more, because random arrivals are spread unevenly
        let all = usable.saturating_mul(instances).saturating_mul(3) / 2;
        let plenty = all.min(capacity(tiers) / 2).max(1);
        let wait = self.wait_for(plenty, now);
        // a scarcity begins only when the store has run out, or has less than one for each instance
        let is_empty = self.remaining(now) < instances;
        let is_scarce = wait > Period::default() && (was_scarce || is_partial || is_empty);
        let time = wait.min(longest_pause(tiers));
        let is_worthwhile = is_scarce && demand.in_the_next(time, now) >= MIN_PAUSE_HITS;
        let pause = is_worthwhile.then(|| {
            let lead = demand.time_for(3, now).as_nanos().saturating_add(2 * round_trip.as_nanos());
            let lead = lead.min(time.as_nanos() / 2);
            let call_at = now.after(Period::from_nanos(time.as_nanos() - lead));
            Pause { until: now.after(time), call_at }
        });
        Some(Scarcity { is_scarce, pause })
    }
}
