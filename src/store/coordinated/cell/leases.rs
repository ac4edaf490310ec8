//! What the store granted in advance: asked for, spent, given back.

use std::sync::Arc;

use super::{Cell, Lease, Lost, has_ended, has_flowed_back, hold, negative};
use crate::{
    limit::{Algorithm, Hits, Period, Refused, Taken, Timestamp, algorithm::Counter, decided},
    store::{
        coordinated::clock::StoreTime,
        remote::{Command, Op, Reply},
    },
};

impl Cell {
    /// Hits that may be taken without asking.
    pub(in super::super) fn leased(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).sum()
    }

    /// Drops what has ended. What long tiers still count goes back to the store.
    pub(in super::super) fn end_leases(&mut self, time: StoreTime) -> Lost {
        let mut lost = Lost::default();
        while let Some(lease) = self.leases.first().filter(|lease| lease.until <= time.latest).copied() {
            self.leases.remove(0);
            let tiers = &self.target.tiers;
            let ended = tiers.iter().all(|tier| has_ended(tier, lease.at, lease.until));
            if ended || has_flowed_back(tiers, lease.at, time.latest) {
                lost.stranded += lease.left;
            } else {
                self.give_back(lease);
            }
        }
        lost
    }

    /// Takes `hits` from what was granted; none if that does not do.
    pub(in super::super) fn spend(&mut self, hits: Hits, now: Timestamp) -> Option<Taken> {
        if self.leased() < hits.0 {
            return None;
        }
        let mut needed = hits.0;
        for lease in &mut self.leases {
            let spent = needed.min(lease.left);
            lease.left -= spent;
            needed -= spent;
        }
        self.leases.retain(|lease| lease.left > 0);
        let mut taken = self.look(now);
        taken.over = false;
        // what is granted and not spent is no hit yet
        taken.before = taken.before.minus(Hits(self.leased())).minus(hits);
        Some(taken)
    }

    /// Puts hits back that were spent for a request which then did not pass.
    pub(in super::super) fn unspend(&mut self, hits: Hits, now: Timestamp) {
        match self.leases.first_mut() {
            Some(lease) => lease.left += hits.0,
            None => self.owe(negative(hits.0), now),
        }
    }

    /// Whether `hits` are certain not to fit now, by what the store told.
    pub(in super::super) fn refuses(&self, hits: Hits, now: Timestamp) -> Option<Taken> {
        let missing = hits.minus(Hits(self.leased()));
        let fits =
            || self.view.iter().zip(&self.target.tiers).all(|(c, tier)| c.offer(tier, now, missing).admits);
        if missing == Hits(0) || (now >= self.denied_until && fits()) {
            return None;
        }
        let mut taken = decided(&self.target.tiers, &self.view, Refused::Vanish, true, missing, now);
        taken.before = taken.before.minus(Hits(self.leased()));
        Some(taken)
    }

    /// Refuses `hits` that the store was asked for and had no more of, as of then: meanwhile a token may have come back,
    /// but it is for who asks now.
    pub(in super::super) fn refuse(&self, hits: Hits, now: Timestamp) -> Taken {
        let then = self.heard_at.unwrap_or(now);
        let missing = hits.minus(Hits(self.leased()));
        let taken = decided(&self.target.tiers, &self.view, Refused::Vanish, true, missing, then);
        Taken {
            before: taken.before.minus(Hits(self.leased())),
            reset: then.after(taken.reset).since(now),
            ..taken
        }
    }

    /// Whether nothing fits until some instant, by what the store told.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.denied_until
    }

    /// Denies everything from now on until a hit fits, if none does.
    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        let waits = self.view.iter().zip(&self.target.tiers).map(|(c, tier)| c.wait(tier, now, Hits(1)));
        let wait = waits.max().unwrap_or_default();
        self.denied_until = if wait == Period::default() { Timestamp::default() } else { now.after(wait) };
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

    /// What to ask for: what is waited for, and what is likely to be asked for in a part of the window's rest, or in
    /// `at_least`; but no more than half of this instance's part of what remains. So leases are few while there is much of
    /// both, and small at the end, when another instance may lack what this one holds.
    pub(in super::super) fn fetch_command(
        &mut self,
        instances: usize,
        at_least: Period,
        now: Timestamp,
    ) -> Command {
        let ends = self.target.tiers.iter().map(|tier| match tier.algorithm {
            Algorithm::FixedWindow => {
                Period::from_nanos(now.window_end(tier.period).since(now).as_nanos() / 4)
            }
            _ => hold(std::slice::from_ref(tier)),
        });
        let horizon = ends.min().unwrap_or_default().max(at_least);
        let waiting = std::mem::take(&mut self.fetch.waiting);
        let least = std::mem::take(&mut self.fetch.least).max(1);
        let part = (self.remaining(now) / (2 * instances as u64)).max(1);
        let likely = self.demand.in_the_next(horizon).saturating_sub(self.leased());
        let want = likely.min(part).max(waiting).max(least);
        self.fetch.want = want;
        Command {
            target: Arc::clone(&self.target),
            at: now,
            op: Op::Grant { least, want, hold: hold(&self.target.tiers) },
        }
    }

    /// The store has granted something, or nothing.
    pub(in super::super) fn granted(&mut self, reply: &Reply, now: Timestamp) {
        self.heard(reply, now);
        self.fetch.short = reply.granted < self.fetch.want;
        // where all was granted that there is, there is no more for now
        self.deny_while_empty(now);
        if reply.granted == 0 {
            return;
        }
        self.fetch.probe_after = Period::default();
        let ends = self.target.tiers.iter().zip(&reply.counters).map(|(tier, counter)| match counter {
            Counter::FixedWindow(window) => window.end(),
            _ => now.after(hold(std::slice::from_ref(tier))),
        });
        let until = ends.min().unwrap_or(now);
        self.leases.push(Lease { left: reply.granted, at: now, until });
    }

    /// Gives everything back that was granted and is not spent.
    pub(in super::super) fn give_leases_back(&mut self) {
        for lease in std::mem::take(&mut self.leases) {
            self.give_back(lease);
        }
    }

    /// Whether there is anything that the store has to be told, or is being told.
    pub(in super::super) fn owes(&self) -> bool {
        !self.unsent.is_empty() || !self.in_flight.is_empty()
    }

    /// Whether it can be forgotten without loss.
    pub(in super::super) fn is_idle(&self, now: Timestamp) -> bool {
        self.owes_nothing()
            && now >= self.denied_until
            && self.view.iter().all(|counter| counter.idle_at() <= now)
    }

    /// Whether it can be forgotten at the price of asking the store again.
    pub(in super::super) fn owes_nothing(&self) -> bool {
        self.unsent.is_empty() && self.in_flight.is_empty() && self.leases.is_empty() && !self.fetch.running
    }
}
