//! When to ask the store for a lease, and for how much: so that one call serves many decisions, and nobody holds what
//! another lacks.

use std::sync::Arc;

use super::{
    Answer, Lease, LocalCounter,
    tiers::{capacity, flows, hold},
};
use crate::{
    limit::{Algorithm, Hits, Period, Timestamp, algorithm::CounterState},
    store::remote::{Command, Op, Reply},
};

/// Fewer hits than that are not worth a pause.
const WORTH_A_PAUSE: u64 = 4;

/// What of a window's rest passes before it is looked for the first time whether another instance has given something back:
/// one in so many.
const PROBES: u64 = 8;

impl LocalCounter {
    /// What to ask for. What ends within `lead` goes back in the same call, so that it is not lost, and is asked for anew
    /// if it is likely to be used.
    pub(in super::super) fn fetch_commands(
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
                let op = Op::Return { hits: lease.left, until: lease.until };
                commands.push(Command { target: Arc::clone(&self.target), at: lease.at, op });
            }
        }
        let waiting = std::mem::take(&mut self.fetch.waiting);
        let least = std::mem::take(&mut self.fetch.least).max(1);
        let likely = self.demand.in_the_next(self.horizon(at_least, now), now).saturating_sub(self.leased());
        self.fetch.want = if returned > 0 && likely == 0 && waiting == 0 {
            0
        } else {
            likely.min(self.part(now).max(returned)).max(waiting).max(least)
        };
        if self.fetch.want > 0 {
            let op = Op::Grant { least, want: self.fetch.want, hold: hold(&self.target.tiers) };
            commands.push(Command { target: Arc::clone(&self.target), at: now, op });
        }
        commands
    }

    /// For how long a lease is to last: a part of the window's rest, or for as long as it may be used.
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

    /// As much of what remains as one instance may hold. In a fixed window half of its N-th part: what the others lack
    /// at the end does not come back. Where it does, all of that.
    fn part(&self, now: Timestamp) -> u64 {
        let parts = self.instances as u64 * if flows(&self.target.tiers) { 1 } else { 2 };
        (self.remaining(now) / parts).max(1)
    }

    /// The store has granted something, or nothing. `round_trip` is how long it takes to answer.
    pub(in super::super) fn granted(&mut self, reply: &Reply, round_trip: Period, now: Timestamp) {
        self.heard(reply, now);
        self.fetch.answer = if reply.granted < self.fetch.want { Answer::Short } else { Answer::Enough };
        self.deny(round_trip, now);
        if reply.granted == 0 {
            return;
        }
        self.fetch.probe_after = Period::default();
        let ends = self.target.tiers.iter().zip(&reply.counters).map(|(tier, counter)| match counter {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold(std::slice::from_ref(tier))),
        });
        let until = ends.min().unwrap_or(now);
        self.leases.push(Lease { left: reply.granted, at: now, until });
    }

    /// The store has taken back what would have ended, and nothing was asked for.
    pub(in super::super) fn gave_back(&mut self, reply: &Reply, now: Timestamp) {
        self.heard(reply, now);
        self.fetch.answer = Answer::Enough;
    }

    /// How long it is until something ends that could go back, if it goes `lead` earlier; none if nothing does.
    pub(in super::super) fn ends_in(&self, lead: Period, now: Timestamp) -> Option<Period> {
        if !flows(&self.target.tiers) {
            return None;
        }
        self.leases.iter().map(|lease| lease.until).min().map(|until| {
            let left = until.since(now).as_nanos().saturating_sub(lead.as_nanos());
            Period::from_nanos(left)
        })
    }

    /// Denies what is not leased until a hit fits, if none does; or until asking is worth it again.
    fn deny(&mut self, round_trip: Period, now: Timestamp) {
        let wait = self.wait_for(1, now);
        let pause = self.pause(now).unwrap_or_default();
        if pause > wait {
            self.denied_until = now.after(pause);
            // what is asked for a little earlier is there when it is over, without anybody's waiting for it
            let lead = self.demand.time_for(3, now).as_nanos().saturating_add(2 * round_trip.as_nanos());
            let lead = lead.min(pause.as_nanos() / 2);
            self.fetch.probe_at = now.after(Period::from_nanos(pause.as_nanos() - lead));
        } else {
            self.deny_for(wait, now);
        }
    }

    /// Denies everything from now on until a hit fits, if none does.
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
            let first = Period::from_nanos(wait.as_nanos() / PROBES);
            self.fetch.probe_after = first.max(self.sync.interval);
            self.fetch.probe_at = now.after(self.fetch.probe_after);
        }
    }

    /// How long to leave the store alone although something may flow back: under steady overload single hits, each of
    /// which would be asked for as soon as it is there, and by everybody, cost a call each. So it is left until everybody
    /// could have what he can use; none where there is that much, or there is no overload.
    fn pause(&mut self, now: Timestamp) -> Option<Period> {
        let tiers = &self.target.tiers;
        if !flows(tiers) {
            return None;
        }
        let hold = hold(tiers);
        let usable = self.demand.in_the_next(hold, now);
        // and half of that more: chance gives one more and the other less
        let all = usable.saturating_mul(self.instances as u64).saturating_mul(3) / 2;
        let plenty = all.min(capacity(tiers) / 2).max(1);
        let wait = self.wait_for(plenty, now);
        // not before it was dry: what is there is for who comes
        let dry = self.fetch.answer == Answer::Short || self.remaining(now) == 0;
        self.fetch.scarce = wait > Period::default() && (self.fetch.scarce || dry);
        let pause = wait.min(Period::from_nanos(2 * hold.as_nanos()));
        let worth = self.demand.in_the_next(pause, now) >= WORTH_A_PAUSE;
        (self.fetch.scarce && worth).then_some(pause)
    }

    /// How long it is until `hits` fit, if nobody takes any.
    fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.view.iter().zip(&self.target.tiers);
        waits.map(|(counter, tier)| counter.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    /// Whether it is time to look if another instance has given something back. Ever more seldom while it has not.
    pub(in super::super) fn is_probe_due(&mut self, now: Timestamp) -> bool {
        let due = now >= self.fetch.probe_at;
        if due {
            let after = Period::from_nanos(
                (2 * self.fetch.probe_after.as_nanos()).max(self.sync.interval.as_nanos()),
            );
            self.fetch.probe_after = after;
            self.fetch.probe_at = now.after(after);
        }
        due
    }
}
