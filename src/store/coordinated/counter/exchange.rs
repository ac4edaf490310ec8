//! Exchanges: what leaves of a counter together.
//!
//! One exchange at a time is about the ledger: it carries what is pending, and what is to be held. Tries join it if it
//! has not left yet, and wait for it if it carries hits that the store has to count first, or brings hits that may
//! cover them. Others pass beside it. Tries that leave together share a command, and equal ones in a row cost the store
//! what one costs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Generation, LocalCounter,
    asks::Asks,
    records::Dropped,
    talk::{Group, OnWay, Outcome, Talk, Tries, Try, channel},
    tiers::{fits, flows},
};
use crate::{
    limit::{Coordination, CounterKey, Direction, Hits, OverLimitPolicy, Timestamp},
    store::{
        coordinated::link::Link,
        remote::{Command, Exchange, Hold, Report, Run, Target},
    },
};

const MAX_TRIES: usize = 4_096;

/// What is remembered of a command until its reply.
#[derive(Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) key: CounterKey,
    pub(in super::super) generation: Generation,
    /// Shared by all commands of the exchange.
    pub(super) number: u32,
    pub(in super::super) target: Arc<Target>,
    /// In the order of the runs; or one reservation, which the hold is for.
    pub(super) tries: Tries,
    /// A run that only reads has no try.
    pub(in super::super) runs: SmallVec<[Run; 1]>,
    pub(super) all_or_none: bool,
    /// The hits of its reports, if it has any.
    pub(in super::super) carried: Option<Dropped>,
    pub(super) hold: Option<Hold>,
}

const fn run_of(asked: &Try) -> Run {
    let (direction, hits, counts_rejected) = match asked.asks {
        Asks::Take(policy) | Asks::Lease(policy) => {
            (Direction::Take, asked.hits.0, matches!(policy, OverLimitPolicy::Count))
        }
        Asks::GiveBack(_) => (Direction::GiveBack, asked.hits.0, false),
        Asks::Look | Asks::Reserve(_) => (Direction::Take, 0, false),
    };
    Run { direction, hits, tries: 1, counts_rejected }
}

// === impl Sent ===

impl Sent {
    fn new(key: CounterKey, counter: &LocalCounter, number: u32) -> Self {
        Self {
            key,
            generation: counter.numbers.generation,
            number,
            target: Arc::clone(&counter.target),
            tries: Tries::new(),
            runs: SmallVec::new(),
            all_or_none: false,
            carried: None,
            hold: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.tries.is_empty() && self.runs.is_empty() && self.carried.is_none()
    }

    /// Returns the try if the store cannot decide it in the same command.
    fn add(&mut self, next: Try) -> Result<(), Try> {
        let is_empty = self.is_empty();
        if is_empty && !Arc::ptr_eq(&self.target, &next.target) {
            self.target = Arc::clone(&next.target);
        }
        let is_same = Arc::ptr_eq(&self.target, &next.target) || *self.target == *next.target;
        let is_read = self.tries.is_empty() && !self.runs.is_empty();
        let is_of_group =
            next.group.is_some() && self.tries.last().is_some_and(|last| last.group == next.group);
        // a group has the room of a whole command
        let is_apart = !self.runs.is_empty() && !is_of_group && (self.all_or_none || next.group.is_some());
        if is_read || is_apart || !is_same || self.is_reserving() {
            return Err(next);
        }
        self.all_or_none = next.group.is_some_and(Group::is_all_or_none);
        if let Asks::Reserve(request) = next.asks {
            if !is_empty {
                return Err(next);
            }
            let (least, want) = (request.fit(request.least.max(Hits(1))), request.fit(Hits(u64::MAX)));
            self.hold = Some(Hold { least: least.0, want: want.0, time: request.hold });
        } else {
            let run = run_of(&next);
            let is_full = self.runs.len() == Exchange::MAX_RUNS || flows(&self.target.tiers);
            match self.runs.last_mut() {
                Some(last) if (Run { tries: 1, ..*last }) == run => {
                    last.tries = last.tries.saturating_add(1);
                }
                // the states after other hits would not say when the status before them ends
                Some(_) if is_full && !is_of_group => return Err(next),
                _ => self.runs.push(run),
            }
        }
        self.tries.push(next);
        Ok(())
    }

    fn command(&self, reports: SmallVec<[Report; 1]>, writer: u64, at: Timestamp) -> Command {
        let runs = SmallVec::from_slice(&self.runs);
        let (all_or_none, hold) = (self.all_or_none, self.hold);
        let exchange = Exchange { reports, runs, all_or_none, hold, writer };
        Command { target: Arc::clone(&self.target), at, exchange }
    }

    pub(super) fn is_reserving(&self) -> bool {
        self.tries.first().is_some_and(|asked| matches!(asked.asks, Asks::Reserve(_)))
    }

    /// Returns the hold for the counter itself, not that of a reservation.
    pub(super) fn hold_ahead(&self) -> Option<Hold> {
        self.hold.filter(|_| !self.is_reserving())
    }

    /// Returns whether the store decides something, so that the command is about the open windows.
    pub(super) fn decides(&self) -> bool {
        !self.runs.is_empty() || self.hold.is_some()
    }
}

impl LocalCounter {
    /// Numbers tries and exchanges, which leave in this order.
    pub(super) const fn next_number(&mut self) -> u32 {
        self.numbers.sent = self.numbers.sent.wrapping_add(1);
        self.numbers.sent
    }

    /// Returns the number of the try and its outcome; none if too many wait.
    pub(in super::super) fn add_try(
        &mut self,
        hits: Hits,
        asks: Asks,
        group: Option<Group>,
    ) -> Option<(u32, Outcome)> {
        let (id, target) = (self.next_number(), Arc::clone(&self.target));
        let (setter, outcome) = channel();
        let tries = &mut self.rare.make_talk().tries;
        let is_of_group = group.is_some() && tries.last().is_some_and(|last| last.group == group);
        if tries.len() >= MAX_TRIES && !is_of_group {
            tries.retain(|asked| asked.is_wanted());
            if tries.len() >= MAX_TRIES {
                return None;
            }
        }
        tries.push(Try { id, target, hits, asks, group, outcome: setter });
        Some((id, outcome))
    }

    /// For at most [`Exchange::MAX_RUNS`] tries, which must be added one after the other.
    pub(in super::super) fn new_group(&mut self, all_or_none: bool) -> Group {
        Group::new(self.next_number(), all_or_none)
    }

    /// Counts what unsent tries give back whose callers wait no longer, so that it is reported.
    pub(in super::super) fn count_returns(&mut self) {
        let Some(talk) = self.rare.talk_mut() else { return };
        let (awaited, others): (Tries, Tries) =
            std::mem::take(&mut talk.tries).into_iter().partition(Try::is_awaited);
        talk.tries = awaited;
        others.iter().for_each(|asked| self.count_return(asked.hits, asked.asks));
        self.end_talk();
    }

    pub(in super::super) fn count_return(&mut self, hits: Hits, asks: Asks) {
        if let Asks::GiveBack(at) = asks {
            self.count(Direction::GiveBack, OverLimitPolicy::Ignore, hits, at);
        }
    }

    pub(in super::super) fn is_first_try(&self) -> bool {
        self.rare.talk().is_some_and(|talk| talk.tries.len() == 1)
    }

    /// Returns whether nothing is on its way.
    pub(in super::super) fn is_silent(&self) -> bool {
        let talk = self.rare.talk();
        self.unacknowledged.in_flight().is_empty() && talk.is_none_or(|talk| talk.on_way.is_empty())
    }

    pub(in super::super) fn waits_for_call(&self) -> bool {
        self.rare.talk().is_some_and(|talk| talk.is_queued && talk.has_wishes())
    }

    pub(in super::super) fn note_queued(&mut self) {
        self.rare.make_talk().is_queued = true;
    }

    pub(in super::super) fn want_lease(&mut self) {
        self.rare.make_talk().wants_lease = true;
    }

    /// What is pending waits for the reply to an exchange about the ledger.
    pub(in super::super) fn has_ledger_on_way(&self) -> bool {
        !self.unacknowledged.in_flight().is_empty()
            || self.rare.talk().is_some_and(|talk| talk.on_way.iter().any(|sent| sent.is_ledger))
    }

    pub(super) fn requested_hits(&self) -> u64 {
        let on_way = self.rare.talk().into_iter().flat_map(|talk| &talk.on_way);
        on_way.map(|sent| sent.want).sum()
    }

    /// Ignores exchange `number` itself, in which the command that holds hits is the last.
    pub(super) fn has_hold_beside(&self, number: u32) -> bool {
        let mut on_way = self.rare.talk().into_iter().flat_map(|talk| &talk.on_way);
        on_way.any(|sent| sent.number != number && sent.want > 0)
    }

    pub(in super::super) fn has_to_send(&self) -> bool {
        self.rare.talk().is_some_and(|talk| !talk.is_queued && talk.has_wishes())
    }

    pub(in super::super) fn has_tries(&self) -> bool {
        self.rare.talk().is_some_and(|talk| !talk.tries.is_empty())
    }

    pub(in super::super) fn take_tries(&mut self) -> Tries {
        let Some(talk) = self.rare.talk_mut() else { return Tries::new() };
        talk.wants_lease = false;
        let tries = std::mem::take(&mut talk.tries);
        self.end_talk();
        tries
    }

    #[cfg(test)]
    pub(super) fn want_for_test(&mut self, want: u64) {
        self.rare.make_talk().on_way.last_mut().expect("one is on its way").want = want;
    }

    /// Frees the talk if nothing of it is needed.
    pub(super) fn end_talk(&mut self) {
        if self.rare.talk().is_some_and(Talk::is_over) {
            self.rare.end_talk();
        }
    }

    pub(in super::super) fn can_send_tries(&self, link: &Link) -> bool {
        let Some(talk) = self.rare.talk().filter(|talk| !talk.is_queued) else { return false };
        let mut ahead = 0;
        talk.wants_lease && !self.has_ledger_on_way()
            || talk.tries.iter().any(|asked| !self.must_wait(asked, &mut ahead, link))
    }

    /// `ahead`: the hits of earlier tries that wait for the lease which is on its way.
    fn must_wait(&self, asked: &Try, ahead: &mut u64, link: &Link) -> bool {
        if !self.has_ledger_on_way() {
            return false;
        }
        let want = self.requested_hits();
        let in_flight = self.unacknowledged.in_flight();
        if self.plan.instances <= 1 || asked.looks() || asked.group.is_some() {
            return true;
        }
        let Asks::Lease(_) = asked.asks else {
            // the store has to count them before
            let counts = in_flight.iter().any(|delta| delta.taken() > 0);
            return counts || self.must_return(asked, link.time.now);
        };
        // several instances must not wait for their reports in a burst
        if in_flight.iter().any(|delta| !delta.change.is_addition()) {
            return true;
        }
        let hits = asked.hits.0;
        let is_covered = want > 0 && ahead.saturating_add(hits) <= want;
        let held = want.saturating_add(self.leased_hits());
        let has_no_room = held > 0 && !self.fits(Hits(held.saturating_add(hits)), link.time.now);
        let waits = is_covered || (has_no_room && !link.is_far());
        *ahead = ahead.saturating_add(if waits { hits } else { 0 });
        waits
    }

    /// Returns whether leases have to go back before the store decides `asked`: there is no room beside them, or the
    /// request gives hits back, which must not be leased ones.
    fn must_return(&self, asked: &Try, now: Timestamp) -> bool {
        let is_grouped = asked.group.is_some();
        let takes = is_grouped || !matches!(asked.asks, Asks::Look | Asks::Reserve(_));
        if self.choice.mode != Coordination::Lease || !takes {
            return false;
        }
        let held = self.leased_hits().saturating_add(self.requested_hits());
        let all = asked.hits.plus(Hits(held));
        let has_room = || fits(&asked.target.tiers, &self.estimate, all, now);
        held > 0 && (is_grouped || !has_room())
    }

    /// Returns the tries that leave now, whether no exchange about the ledger is on its way, and whether to hold hits.
    fn take_ready_tries(&mut self, link: &Link) -> (Tries, bool, bool) {
        let is_free = !self.has_ledger_on_way();
        let Some(talk) = self.rare.talk_mut() else { return (Tries::new(), is_free, false) };
        talk.is_queued = false;
        // the hits of a decision that waits no longer must not count twice
        if !talk.tries.iter().all(Try::is_wanted) {
            talk.tries.retain(|asked| asked.is_wanted());
        }
        let tries = std::mem::take(&mut talk.tries);
        if is_free {
            return (tries, true, std::mem::take(&mut talk.wants_lease));
        }
        let mut ahead = 0;
        let (stay, leave): (Tries, Tries) =
            tries.into_iter().partition(|asked| self.must_wait(asked, &mut ahead, link));
        self.rare.make_talk().tries = stay;
        (leave, false, false)
    }

    /// Passes what may leave now, tries and the part about the ledger, to `leave`. Returns what was dropped.
    pub(in super::super) fn compose(
        &mut self,
        key: CounterKey,
        link: &Link,
        mut leave: impl FnMut(Command, Sent),
    ) -> Dropped {
        let (tries, is_free, wants_lease) = self.take_ready_tries(link);
        let (number, at) = (self.next_number(), link.time.now);
        let writer = link.writer_of(self.numbers.generation.0);
        let mut last = Sent::new(key, self, number);
        let (mut reports, hold, dropped) = if is_free {
            self.compose_ledger(&mut last, &tries, wants_lease, link)
        } else {
            Default::default()
        };
        let is_about_ledger = !last.is_empty() || hold.is_some();
        if !is_about_ledger && tries.is_empty() {
            self.end_talk();
            return dropped;
        }
        // the next one waits for its reply, which says the state that it has left
        let leases = self.choice.mode == Coordination::Lease && needed_hits(&tries) > 0;
        let is_alone_or_flows = self.plan.instances <= 1 || flows(&self.target.tiers);
        let is_ledger = is_about_ledger || is_free && leases && is_alone_or_flows;
        // an exchange that has nothing but reports is known by these
        let is_known = hold.is_none() && tries.is_empty() && !self.unacknowledged.in_flight().is_empty();
        let mut left = 1;
        for asked in tries {
            if let Err(asked) = last.add(asked) {
                left += 1;
                let full = std::mem::replace(&mut last, Sent::new(key, self, number));
                leave(full.command(std::mem::take(&mut reports), writer, at), full);
                let is_added = last.add(asked).is_ok();
                debug_assert!(is_added, "an empty command takes in any try");
            }
        }
        let hold = hold.filter(|_| !last.is_reserving());
        last.hold = last.hold.or(hold);
        if is_known {
            self.end_talk();
        } else {
            let want = hold.map_or(0, |hold| hold.want);
            self.rare.make_talk().on_way.push(OnWay { number, left, is_ledger, want });
        }
        leave(last.command(reports, writer, at), last);
        dropped
    }

    /// Adds the part about the ledger to `sent`, the last command of an exchange that carries `tries`.
    fn compose_ledger(
        &mut self,
        sent: &mut Sent,
        tries: &[Try],
        wants_lease: bool,
        link: &Link,
    ) -> (SmallVec<[Report; 1]>, Option<Hold>, Dropped) {
        let at = link.time.now;
        let is_lease = self.choice.mode == Coordination::Lease;
        let wants_lease = is_lease && (wants_lease || tries.iter().any(Try::leases));
        let before = self.leased_hits();
        if tries.iter().any(|asked| self.must_return(asked, at)) {
            self.return_leases();
        }
        if wants_lease {
            self.return_ending(link.lead(), at);
        }
        let returned = before - self.leased_hits();
        let (reports, dropped) = self.take_reports(sent.number, at);
        sent.carried = (!reports.is_empty()).then(|| self.carried_hits());
        // another limit cannot use them
        let may_hold = wants_lease && tries.iter().all(|asked| self.serves(&asked.target));
        let needed = needed_hits(tries);
        let hold = may_hold.then(|| self.next_hold(needed, returned, link)).flatten();
        let is_read_anyway = sent.carried.is_some() || hold.is_some() || !tries.is_empty();
        if std::mem::take(&mut self.plan.wants_read) && !is_read_anyway {
            sent.runs.extend(Exchange::read().runs);
        }
        (reports, hold, dropped)
    }
}

fn needed_hits(tries: &[Try]) -> u64 {
    let needed = tries.iter().filter(|asked| asked.leases()).map(|asked| asked.hits.0);
    needed.fold(0, u64::saturating_add)
}
