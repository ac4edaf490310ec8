//! When to request a lease, and how many hits: one call should serve many decisions, and no instance should hold hits that
//! another one lacks.

use std::sync::Arc;

use super::{
    LocalCounter,
    fetch::LeaseReply,
    records::HeldLease,
    tiers::{capacity, flows, hold},
};
use crate::{
    limit::{Algorithm, Hits, Period, Timestamp, algorithm::CounterState},
    store::remote::{Command, Op, Reply, Report},
};

/// The fewest expected hits that make a pause worthwhile.
const MIN_PAUSE_HITS: u64 = 4;

/// The divisor of a denial's time that gives the wait before the first probe for hits that another instance has given back.
const FIRST_PROBE_DIVISOR: u64 = 8;

impl LocalCounter {
    /// Returns the commands that fetch the next lease. A lease that ends within `lead` is returned in the same call, so that
    /// it is not lost, and is requested again if it is likely to be used.
    pub(in super::super) fn lease_commands(
        &mut self,
        instances: usize,
        at_least: Period,
        lead: Period,
        now: Timestamp,
    ) -> Vec<Command> {
        self.instances = instances;
        let (mut commands, mut returned) = (Vec::new(), 0);
        let soon = now.after(lead);
        if flows(&self.target.tiers) {
            while let Some(lease) = self.leases.first().filter(|lease| lease.until <= soon).copied() {
                self.leases.remove(0);
                returned += lease.left;
                let op = Op::Add { report: Report::unused(lease.granted_at, lease.left, lease.until) };
                commands.push(Command { target: Arc::clone(&self.target), at: lease.granted_at, op });
            }
        }
        let waiting = std::mem::take(&mut self.fetch.waiting);
        let least = std::mem::take(&mut self.fetch.least).max(1);
        let horizon = self.horizon(at_least, now);
        let likely = self.demand.in_the_next(horizon, now).saturating_sub(self.leased_hits());
        self.fetch.want = if returned > 0 && likely == 0 && waiting == 0 {
            0
        } else {
            likely.min(self.share(now).max(returned)).max(waiting).max(least)
        };
        if self.fetch.want > 0 {
            let hold = hold(&self.target.tiers);
            let op = Op::Grant { report: None, least, want: self.fetch.want, hold };
            commands.push(Command { target: Arc::clone(&self.target), at: now, op });
        }
        commands
    }

    /// Returns how long a lease should last: a quarter of the window's remaining time, or as long as it may be used.
    fn horizon(&self, at_least: Period, now: Timestamp) -> Period {
        let times = self.target.tiers.iter().map(|tier| match tier.algorithm {
            Algorithm::FixedWindow => {
                let rest = now.window_end(tier.period).since(now);
                Period::from_nanos(rest.as_nanos() / 4).max(at_least)
            }
            _ => hold(std::slice::from_ref(tier)),
        });
        times.min().unwrap_or_default()
    }

    /// Returns how many of the remaining hits one instance may hold: an equal share. In a fixed window half of that, since
    /// hits that one instance still holds when it ends are lost to the others.
    fn share(&self, now: Timestamp) -> u64 {
        let parts = self.instances as u64 * if flows(&self.target.tiers) { 1 } else { 2 };
        (self.remaining(now) / parts).max(1)
    }

    /// Applies the reply to a request for a lease. `round_trip` is the time that the store takes to reply.
    pub(in super::super) fn apply_grant(&mut self, reply: &Reply, round_trip: Period, now: Timestamp) {
        self.apply_reply(reply, now);
        let is_full = reply.granted >= self.fetch.want;
        self.fetch.last_reply = if is_full { LeaseReply::Full } else { LeaseReply::Partial };
        self.update_denial(round_trip, now);
        if reply.granted == 0 {
            return;
        }
        self.fetch.probe_after = Period::default();
        let ends = self.target.tiers.iter().zip(&reply.counters).map(|(tier, state)| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold(std::slice::from_ref(tier))),
        });
        let until = ends.min().unwrap_or(now);
        self.leases.push(HeldLease { left: reply.granted, granted_at: now, until });
    }

    /// Applies the reply to a fetch that only returned a lease.
    pub(in super::super) fn apply_return(&mut self, reply: &Reply, now: Timestamp) {
        self.apply_reply(reply, now);
        self.fetch.last_reply = LeaseReply::Full;
    }

    /// Returns the time until the first lease has to be returned, `lead` before it ends. None if no lease can be returned.
    pub(in super::super) fn first_lease_ends_in(&self, lead: Period, now: Timestamp) -> Option<Period> {
        if !flows(&self.target.tiers) {
            return None;
        }
        self.leases.iter().map(|lease| lease.until).min().map(|until| {
            let left = until.since(now).as_nanos().saturating_sub(lead.as_nanos());
            Period::from_nanos(left)
        })
    }

    /// Denies all hits that are not leased, until one fits or until another call is worthwhile.
    fn update_denial(&mut self, round_trip: Period, now: Timestamp) {
        let wait = self.wait_for(1, now);
        let pause = self.scarcity_pause(now).unwrap_or_default();
        if pause > wait {
            self.denied_until = now.after(pause);
            // a call that is sent a little earlier has its reply when the pause ends, so that no decision waits for it
            let lead = self.demand.time_for(3, now).as_nanos().saturating_add(2 * round_trip.as_nanos());
            let lead = lead.min(pause.as_nanos() / 2);
            self.fetch.probe_at = now.after(Period::from_nanos(pause.as_nanos() - lead));
        } else {
            self.deny_for(wait, now);
        }
    }

    /// Denies all hits until one fits, if none does now.
    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        self.deny_for(self.wait_for(1, now), now);
    }

    fn deny_for(&mut self, wait: Period, now: Timestamp) {
        if wait == Period::default() {
            self.denied_until = Timestamp::default();
            return;
        }
        self.denied_until = now.after(wait);
        if self.fetch.probe_after == Period::default() {
            let first = Period::from_nanos(wait.as_nanos() / FIRST_PROBE_DIVISOR);
            self.fetch.probe_after = first.max(self.schedule.interval);
            self.fetch.probe_at = now.after(self.fetch.probe_after);
        }
    }

    /// Returns how long to send no call although hits become available. Under steady overload every instance would request
    /// each single hit as soon as it is available, at the cost of a call. The pause lasts until there is enough for every
    /// instance. There is no pause if there is enough already, or no overload.
    fn scarcity_pause(&mut self, now: Timestamp) -> Option<Period> {
        let tiers = &self.target.tiers;
        if !flows(tiers) {
            return None;
        }
        let hold = hold(tiers);
        let usable = self.demand.in_the_next(hold, now);
        // 50 % more, because random arrivals are spread unevenly
        let all = usable.saturating_mul(self.instances as u64).saturating_mul(3) / 2;
        let plenty = all.min(capacity(tiers) / 2).max(1);
        let wait = self.wait_for(plenty, now);
        // a scarcity begins only when the store has run out
        let empty = self.fetch.last_reply == LeaseReply::Partial || self.remaining(now) == 0;
        self.fetch.is_scarce = wait > Period::default() && (self.fetch.is_scarce || empty);
        let pause = wait.min(Period::from_nanos(2 * hold.as_nanos()));
        let worthwhile = self.demand.in_the_next(pause, now) >= MIN_PAUSE_HITS;
        (self.fetch.is_scarce && worthwhile).then_some(pause)
    }

    /// Returns the time until `hits` fit, if no others are taken.
    fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    /// Returns whether to probe now for hits that another instance has given back. The time between probes doubles.
    pub(in super::super) fn is_probe_due(&mut self, now: Timestamp) -> bool {
        let due = now >= self.fetch.probe_at;
        if due {
            let after = Period::from_nanos(
                (2 * self.fetch.probe_after.as_nanos()).max(self.schedule.interval.as_nanos()),
            );
            self.fetch.probe_after = after;
            self.fetch.probe_at = now.after(after);
        }
        due
    }
}
