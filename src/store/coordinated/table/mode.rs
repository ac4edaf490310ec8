//! The coordination mode of a counter: which one its rule requests, and which one decides a check.

use std::sync::Arc;

use super::{super::auto, CounterTable};
use crate::{
    limit::{Coordination, Direction, LimitCheck, Period, Tier, Timestamp},
    store::{
        coordinated::counter::LocalCounter,
        remote::{Remote, Target},
    },
};

impl<R: Remote> CounterTable<R> {
    /// Runs `act` on the counter of `check` if its coordination mode is `mode`. Otherwise returns the counter's mode.
    pub(in super::super) fn with_mode<T>(
        &self,
        check: &LimitCheck<'_>,
        mode: Coordination,
        now: Timestamp,
        act: impl FnOnce(&mut LocalCounter) -> T,
    ) -> Result<T, Coordination> {
        self.with_counter(check, now, |counter| match self.mode_of(counter, check) {
            of_counter if of_counter == mode => Ok(act(counter)),
            of_counter => Err(of_counter),
        })
    }

    /// Returns the coordination mode in which `counter` decides `check`: that of its rule, or `strict` if that is too
    /// inexact for the limit that comes with the request. A limit with other tiers has the mode of a rule of its own.
    fn mode_of(&self, counter: &LocalCounter, check: &LimitCheck<'_>) -> Coordination {
        if counter.is_away() {
            let requested = match self.requested_mode(check) {
                Coordination::Auto => self.expected_mode(check),
                requested => requested,
            };
            return self.client.nearest_mode(&counter.target, requested);
        }
        let is_too_small = check.rule.id().is_none()
            && counter.choice.mode == Coordination::Interval
            && self.requested_mode(check) == Coordination::Auto
            && self.expected_mode(check) != Coordination::Interval;
        if is_too_small && self.client.supports(&counter.target, Coordination::Strict) {
            Coordination::Strict
        } else {
            counter.choice.mode
        }
    }

    /// Chooses the coordination mode of `counter` when its rule or its target has changed.
    pub(super) fn choose_mode(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>) {
        let requested = self.requested_mode(check);
        if counter.choice.requested_mode != Some(requested) {
            counter.choice.requested_mode = Some(requested);
            counter.choice.is_in_burst = false;
            let requested = match requested {
                Coordination::Auto => auto::first(&counter.target.tiers, self.client.most_instances_lately()),
                requested => requested,
            };
            self.switch_mode(counter, requested);
        }
    }

    /// Chooses the coordination mode of `counter`, whose rule requests `auto`, again: the number of instances may have
    /// changed, or `check` may be part of a burst.
    pub(super) fn follow_instances(
        &self,
        counter: &mut LocalCounter,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) {
        let instances = self.client.most_instances_lately();
        // a burst is no reason to stay
        let current = if counter.choice.is_in_burst { Coordination::Interval } else { counter.choice.mode };
        let wanted = auto::next(current, &counter.target.tiers, instances);
        let is_exact = matches!(counter.choice.mode, Coordination::Lease | Coordination::Strict);
        if wanted == Coordination::Lease {
            counter.choice.is_in_burst = false;
            if !is_exact {
                self.metrics.to_lease.add(1);
                self.switch_mode(counter, wanted);
            }
        } else if check.direction == Direction::Take
            && (counter.choice.is_in_burst || !is_exact)
            && counter.is_burst(check.hits, auto::or_unknown(instances), self.client.round_trip(), now)
        {
            if !counter.choice.is_in_burst {
                counter.choice.is_in_burst = true;
                self.metrics.bursts.add(1);
                self.switch_mode(counter, Coordination::Lease);
            }
        } else if is_exact
            && (!counter.choice.is_in_burst || counter.is_burst_over(self.client.round_trip(), now))
        {
            if !std::mem::take(&mut counter.choice.is_in_burst) {
                self.metrics.to_interval.add(1);
            }
            self.switch_mode(counter, wanted);
        }
    }

    /// Changes the mode of `counter` to `wanted`, or to the nearest that the store supports. Pending hits stay pending,
    /// and are reported before a lease is requested. Leases are returned.
    fn switch_mode(&self, counter: &mut LocalCounter, wanted: Coordination) {
        counter.change_mode(self.client.nearest_mode(&counter.target, wanted));
    }

    /// Returns the coordination mode that the counter of `check`, whose rule requests `auto`, probably has.
    pub(in super::super) fn expected_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        auto::first(check.tiers(), self.client.most_instances_lately())
    }

    /// Returns the sync interval of the rule of `check`.
    pub(super) fn sync_interval_of(&self, check: &LimitCheck<'_>) -> Period {
        let own = check.rule.declared().and_then(|rule| rule.coordination.sync_interval);
        own.unwrap_or(self.sync_interval)
    }

    /// Returns the coordination mode that the rule of `check` requests.
    pub(in super::super) fn requested_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        let requested = check.rule.coordination().unwrap_or(self.coordination);
        if requested == Coordination::Split { split_or_other(check) } else { requested }
    }

    /// Returns the coordination mode of what requests none.
    pub(in super::super) const fn default_coordination(&self) -> Coordination {
        self.coordination
    }

    /// Returns the target of `check` and its coordination mode.
    pub(in super::super) fn target_and_mode(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> (Arc<Target>, Coordination) {
        self.with_counter(check, now, |counter| (Arc::clone(&counter.target), self.mode_of(counter, check)))
    }
}

/// Returns the mode of `check` if `split` is requested: a pool has members instead of parts, and the pace of a bucket
/// that comes with a request is not that of the counter.
fn split_or_other(check: &LimitCheck<'_>) -> Coordination {
    if check.pool.is_some() || check.tiers().iter().any(Tier::has_any_pace) {
        return Coordination::Auto;
    }
    Coordination::Split
}
