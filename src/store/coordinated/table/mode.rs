//! The coordination mode of a counter: which one its rule requests, and which one decides a check.

use super::CounterTable;
use crate::{
    limit::{Coordination, Direction, LimitCheck, Period, Tier, Timestamp},
    store::{
        coordinated::counter::{LocalCounter, Switch, auto},
        remote::Remote,
    },
};

impl<R: Remote> CounterTable<R> {
    /// Returns the coordination mode in which `counter` decides `check`: that of its rule, or `strict` if that is too
    /// inexact for the limit that comes with the request. A limit with other tiers has the mode of a rule of its own.
    pub(in super::super) fn mode_of(&self, counter: &LocalCounter, check: &LimitCheck<'_>) -> Coordination {
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
        let policy = counter.auto_policy(self.client.most_instances_lately(), self.client.round_trip());
        let taking = (check.direction == Direction::Take).then_some(check.hits);
        let switch = policy.switch(&counter.choice, taking, || counter.is_settled(), now);
        let Some(switch) = switch else { return };
        let was_in_burst = std::mem::replace(&mut counter.choice.is_in_burst, switch == Switch::Burst);
        let wanted = if switch == Switch::Large { Coordination::Interval } else { Coordination::Lease };
        let before = counter.choice.mode;
        self.switch_mode(counter, wanted);
        match switch {
            // the store may support neither
            Switch::Small if counter.choice.mode == before => {}
            Switch::Small => self.metrics.switches.to_lease.add(1),
            Switch::Burst => self.metrics.switches.bursts.add(1),
            Switch::Large if was_in_burst => {}
            Switch::Large => self.metrics.switches.to_interval.add(1),
        }
    }

    /// Changes the mode of `counter` to `wanted`, or to the nearest that the store supports. Pending hits stay pending,
    /// and are reported before a lease is requested. Leases are returned.
    fn switch_mode(&self, counter: &mut LocalCounter, wanted: Coordination) {
        counter.change_mode(self.client.nearest_mode(&counter.target, wanted));
    }

    /// Returns the coordination mode that the counter of `check`, whose rule requests `auto`, probably has.
    fn expected_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        auto::first(check.tiers(), self.client.most_instances_lately())
    }

    /// Returns the sync interval of the rule of `check`.
    pub(super) fn sync_interval_of(&self, check: &LimitCheck<'_>) -> Period {
        let own = check.rule.declared().and_then(|rule| rule.coordination.sync_interval);
        own.unwrap_or(self.settings.sync_interval)
    }

    /// Returns the coordination mode that the rule of `check` requests.
    pub(in super::super) fn requested_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        let requested = check.rule.coordination().unwrap_or(self.settings.coordination);
        if requested == Coordination::Split { split_or_other(check) } else { requested }
    }

    /// Returns the coordination mode of what requests none.
    pub(in super::super) const fn default_coordination(&self) -> Coordination {
        self.settings.coordination
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
