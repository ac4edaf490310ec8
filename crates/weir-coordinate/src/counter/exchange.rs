//! Exchanges: what leaves of a counter together.
//!
//! One exchange at a time is about the ledger: it carries what is pending, and requests a lease. Tries join it if it
//! has not left yet, and wait for it if it carries hits that the store has to count first, or brings hits that may
//! cover them. Others pass beside it. Tries that leave together share a command, and equal ones in a row cost the store
//! what one costs. And how soon what is pending has to leave.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Generation, LocalCounter, fits, flows,
    ledger::{DroppedHits, PendingDelta},
    positive, saturated,
    schedule::FEW_TO_LIMIT,
    traffic::{Group, OnWay, PendingOutcome, Tries, Try, TryKind, channel},
};
use crate::client::{Delivery, Link};
use weir_limit::{CounterKey, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp};
use weir_store::remote::{Command, Exchange, LeaseRequest, Report, Run, Target};

/// The part of the remaining hits that all instances may take before the next reply while a flush waits for a batch.
const NEAR: u64 = 16;

/// The same, while this instance does not know the others' rate: after a quiet time, each of them may receive a burst.
const NEAR_UNKNOWN: u64 = 256;

/// The pauses for which the last reply says something of others' hits.
const KNOWN_FOR: u64 = 2;

/// How soon a counter needs attention. Ordered by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlushUrgency {
    /// When a lease may have to be returned, or a node that does not reply may do so again.
    Idle,
    /// After the pause.
    Pause,
    /// Within a sync interval, and a tenth of a second.
    Interval,
    /// With the next batch.
    Tick,
    Now,
}

/// Commands, and what is remembered of each until its reply.
pub(crate) type Outbox = Vec<(Command, Sent)>;

/// What is remembered of a command until its reply.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) key: CounterKey,
    pub(crate) generation: Generation,
    /// Shared by all commands of the exchange.
    pub(super) number: u32,
    pub(crate) target: Arc<Target>,
    /// In the order of the runs; or one reservation, which the lease request is for.
    pub(super) tries: Tries,
    /// A run that only reads has no try.
    pub(crate) runs: SmallVec<[Run; 1]>,
    pub(super) all_or_none: bool,
    /// The hits of its reports, if it has any.
    pub(crate) carried: Option<DroppedHits>,
    pub(super) lease: Option<LeaseRequest>,
}

const fn run_of(asked: &Try) -> Run {
    let (direction, hits, counts_rejected) = match asked.kind {
        TryKind::Take(policy) | TryKind::Lease(policy) => {
            (Direction::Take, asked.hits.0, matches!(policy, OverLimitPolicy::Count))
        }
        TryKind::GiveBack(_) => (Direction::GiveBack, asked.hits.0, false),
        TryKind::Look | TryKind::Reserve(_) => (Direction::Take, 0, false),
    };
    Run { direction, hits, tries: 1, counts_rejected }
}

// === impl Sent ===

impl Sent {
    pub(super) fn new(key: CounterKey, counter: &LocalCounter, number: u32) -> Self {
        Self {
            key,
            generation: counter.numbers.generation,
            number,
            target: Arc::clone(&counter.target),
            tries: Tries::new(),
            runs: SmallVec::new(),
            all_or_none: false,
            carried: None,
            lease: None,
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
        self.all_or_none = next.group.is_some_and(|group| group.all_or_none);
        if let TryKind::Reserve(request) = next.kind {
            if !is_empty {
                return Err(next);
            }
            let (least, want) = (request.fit(request.least.max(Hits(1))), request.fit(Hits(u64::MAX)));
            self.lease = Some(LeaseRequest { least: least.0, want: want.0, hold: request.hold });
        } else {
            let run = run_of(&next);
            let is_full = self.runs.len() == Exchange::MAX_RUNS;
            match self.runs.last_mut() {
                Some(last) if (Run { tries: 1, ..*last }) == run => {
                    last.tries = last.tries.saturating_add(1);
                }
                _ if is_full => return Err(next),
                _ => self.runs.push(run),
            }
        }
        self.tries.push(next);
        Ok(())
    }

    fn command(&self, reports: SmallVec<[Report; 1]>, writer: u64, at: Timestamp) -> Command {
        let runs = SmallVec::from_slice(&self.runs);
        let (all_or_none, lease) = (self.all_or_none, self.lease);
        let exchange = Exchange { reports, runs, all_or_none, lease, writer };
        Command { target: Arc::clone(&self.target), at, exchange }
    }

    pub(super) fn is_reserving(&self) -> bool {
        self.tries.first().is_some_and(|asked| matches!(asked.kind, TryKind::Reserve(_)))
    }

    /// Returns the request of a lease for the counter itself, not that of a reservation.
    pub(super) fn own_lease(&self) -> Option<LeaseRequest> {
        self.lease.filter(|_| !self.is_reserving())
    }

    /// Returns whether the store decides something, so that the command is about the open windows.
    pub(super) fn decides(&self) -> bool {
        !self.runs.is_empty() || self.lease.is_some()
    }
}

impl LocalCounter {
    /// Numbers tries and exchanges, which leave in this order.
    pub(crate) const fn next_number(&mut self) -> u32 {
        self.numbers.sent = self.numbers.sent.wrapping_add(1);
        self.numbers.sent
    }

    /// Returns the number of the try and its outcome; none if too many wait.
    pub(crate) fn add_try(
        &mut self,
        hits: Hits,
        kind: TryKind,
        group: Option<Group>,
    ) -> Option<(u32, PendingOutcome)> {
        let (id, target) = (self.next_number(), Arc::clone(&self.target));
        let (setter, outcome) = channel();
        let is_added = self.traffic.add(Try { id, target, hits, kind, group, outcome: setter });
        is_added.then_some((id, outcome))
    }

    /// Counts what unsent tries give back whose callers wait no longer, so that it is reported. Returns the others, which
    /// are not sent.
    pub(crate) fn take_tries(&mut self) -> Tries {
        let (awaited, others): (Tries, Tries) =
            self.traffic.take_tries().into_iter().partition(Try::is_awaited);
        others.iter().for_each(|asked| self.count_return(asked.hits, asked.kind));
        awaited
    }

    /// Returns whether nothing is on its way.
    pub(crate) fn is_silent(&self) -> bool {
        self.ledger.in_flight().is_empty() && self.traffic.on_way.is_empty()
    }

    /// What is pending waits for the reply to an exchange about the ledger.
    pub(crate) fn has_ledger_on_way(&self) -> bool {
        !self.ledger.in_flight().is_empty() || self.traffic.on_way.iter().any(|sent| sent.is_ledger)
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.ledger.pending().is_empty() || self.plan.wants_read
    }

    pub(crate) fn can_flush(&self) -> bool {
        self.has_pending() && !self.has_ledger_on_way()
    }

    pub(crate) fn drop_ended(&mut self, now: Timestamp) -> DroppedHits {
        self.ledger.drop_ended(&self.target.tiers, self.plan.instances <= 1, now)
    }

    pub(crate) fn can_send_tries(&self, link: &Link) -> bool {
        let mut ahead = 0;
        self.traffic.has_to_send()
            && (self.traffic.wants_lease && !self.has_ledger_on_way()
                || self.traffic.tries.iter().any(|asked| !self.must_wait(asked, &mut ahead, link)))
    }

    /// `ahead`: the hits of earlier tries that wait for the lease which is on its way.
    fn must_wait(&self, asked: &Try, ahead: &mut u64, link: &Link) -> bool {
        if !self.has_ledger_on_way() {
            return false;
        }
        let (want, in_flight) = (self.traffic.requested_hits(), self.ledger.in_flight());
        if self.plan.instances <= 1 || asked.looks() || asked.group.is_some() {
            return true;
        }
        let TryKind::Lease(_) = asked.kind else {
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
        let leased = want.saturating_add(self.ledger.leased());
        let has_no_room = leased > 0 && !self.fits(Hits(leased.saturating_add(hits)), link.time.now);
        let waits = is_covered || (has_no_room && !link.is_far());
        *ahead = ahead.saturating_add(if waits { hits } else { 0 });
        waits
    }

    /// Returns whether leases have to go back before the store decides `asked`: there is no room beside them, or the
    /// request gives hits back, which must not be leased ones.
    fn must_return(&self, asked: &Try, now: Timestamp) -> bool {
        let is_grouped = asked.group.is_some();
        let takes = is_grouped || !matches!(asked.kind, TryKind::Look | TryKind::Reserve(_));
        if !self.choice.mode.leases() || !takes {
            return false;
        }
        let leased = self.ledger.leased().saturating_add(self.traffic.requested_hits());
        let all = asked.hits.plus(Hits(leased));
        let has_room = || fits(&asked.target.tiers, &self.estimate, all, now);
        leased > 0 && (is_grouped || !has_room())
    }

    /// Returns the tries that leave now, whether no exchange about the ledger is on its way, and whether to ask for a
    /// lease.
    fn take_ready_tries(&mut self, link: &Link) -> (Tries, bool, bool) {
        let is_free = !self.has_ledger_on_way();
        if self.traffic.is_none() {
            return (Tries::new(), is_free, false);
        }
        // the hits of a decision that waits no longer must not count twice
        let wanted = std::mem::take(&mut self.traffic.open().tries).into_iter().filter(Try::is_wanted);
        let mut ahead = 0;
        let (stay, leave) = wanted.partition(|asked| self.must_wait(asked, &mut ahead, link));
        let traffic = self.traffic.open();
        (traffic.tries, traffic.is_queued) = (stay, false);
        (leave, is_free, is_free && std::mem::take(&mut traffic.wants_lease))
    }

    /// Adds what may leave now, tries and the part about the ledger, to `outbox`. What has ended must be
    /// [dropped](Self::drop_ended).
    pub(crate) fn compose(&mut self, key: CounterKey, link: &Link, outbox: &mut Outbox) {
        let (tries, is_free, wants_lease) = self.take_ready_tries(link);
        let (number, at) = (self.next_number(), link.time.now);
        let writer = link.writer_of(self.numbers.generation.0, self.last_reply.lost);
        let mut last = Sent::new(key, self, number);
        let (mut reports, lease) = if is_free {
            self.compose_ledger(&mut last, &tries, wants_lease, link)
        } else {
            Default::default()
        };
        let is_about_ledger = !last.is_empty() || lease.is_some();
        if !is_about_ledger && tries.is_empty() {
            return self.traffic.end();
        }
        // the next one waits for its reply, which says the state that it has left
        let leases = self.choice.mode.leases() && needed_hits(&tries) > 0;
        let is_alone_or_flows = self.plan.instances <= 1 || flows(&self.target.tiers);
        let is_ledger = is_about_ledger || is_free && leases && is_alone_or_flows;
        // an exchange that has nothing but reports is known by these
        let is_known = lease.is_none() && tries.is_empty() && !self.ledger.in_flight().is_empty();
        let mut left = 1;
        for asked in tries {
            if let Err(asked) = last.add(asked) {
                left += 1;
                let full = std::mem::replace(&mut last, Sent::new(key, self, number));
                outbox.push((full.command(std::mem::take(&mut reports), writer, at), full));
                let is_added = last.add(asked).is_ok();
                debug_assert!(is_added, "an empty command takes in any try");
            }
        }
        let lease = lease.filter(|_| !last.is_reserving());
        last.lease = last.lease.or(lease);
        if is_known {
            self.traffic.end();
        } else {
            let want = lease.map_or(0, |lease| lease.want);
            self.traffic.open().on_way.push(OnWay { number, left, is_ledger, is_overtaken: false, want });
        }
        outbox.push((last.command(reports, writer, at), last));
    }

    /// Adds the part about the ledger to `sent`, the last command of an exchange that carries `tries`.
    fn compose_ledger(
        &mut self,
        sent: &mut Sent,
        tries: &[Try],
        wants_lease: bool,
        link: &Link,
    ) -> (SmallVec<[Report; 1]>, Option<LeaseRequest>) {
        let at = link.time.now;
        let wants_lease = self.choice.mode.leases() && (wants_lease || tries.iter().any(Try::leases));
        let before = self.ledger.leased();
        if tries.iter().any(|asked| self.must_return(asked, at)) {
            self.return_leases();
        }
        if wants_lease {
            self.return_ending(link.lead(), at);
        }
        let returned = before - self.ledger.leased();
        let reports = self.ledger.take_reports(sent.number, &self.target);
        sent.carried = (!reports.is_empty()).then(|| self.ledger.carried());
        // another limit cannot use them
        let may_lease = wants_lease && tries.iter().all(|asked| self.serves(&asked.target));
        let needed = needed_hits(tries);
        let lease = may_lease.then(|| self.next_lease(needed, returned, link)).flatten();
        let is_read_anyway = sent.carried.is_some() || lease.is_some() || !tries.is_empty();
        if std::mem::take(&mut self.plan.wants_read) && !is_read_anyway {
            sent.runs.extend(Exchange::read().runs);
        }
        (reports, lease)
    }

    /// Returns whether hits of this `delivery` are reported: not if the store may have counted them. Those of a try on
    /// its way are once its reply shows that it has not, which it never does for an evicted counter.
    pub(crate) fn reports(&self, delivery: Delivery) -> bool {
        match delivery {
            Delivery::NotApplied => true,
            Delivery::OnWay(sent) => {
                sent.generation == self.numbers.generation.0 && !self.traffic.is_given_up(sent.id)
            }
            Delivery::Applied | Delivery::Unknown => false,
        }
    }

    /// The estimate has the `hits`, admitted at `at`. If no reply will tell whether they count twice, it is not exact.
    pub(crate) fn note_answer(&mut self, delivery: Delivery, hits: Hits, at: Timestamp) {
        match delivery {
            Delivery::NotApplied => {}
            Delivery::OnWay(sent) if sent.generation == self.numbers.generation.0 => {
                let admitted = (hits > Hits(0)).then(|| PendingDelta::of(positive(hits.0), at));
                self.traffic.note_admitted(sent.id, admitted);
            }
            Delivery::OnWay(_) | Delivery::Applied | Delivery::Unknown => self.lose_exactness(),
        }
    }

    /// Returns how soon the pending hits have to be sent, with `tick` between two batches. They wait for a batch only if
    /// the limit is so far away that this does not matter.
    pub(crate) fn urgency(&self, round_trip: Period, tick: Period, now: Timestamp) -> FlushUrgency {
        let (pending, schedule) = (self.ledger.pending(), &self.plan.schedule);
        if self.choice.mode.asks_always() && !pending.is_empty() {
            // what others may not take meanwhile
            return FlushUrgency::Now;
        }
        // others wait for returned hits
        let is_soon = self.plan.wants_read || pending.iter().any(|delta| delta.returned() > 0);
        let least = if is_soon { FlushUrgency::Interval } else { FlushUrgency::Pause };
        let (own, instances) = (self.ledger.admitted(), u64::from(self.plan.instances.max(1)));
        let last_reply_at = self.last_reply.last_reply_at();
        let known = last_reply_at.filter(|last| now.since(*last) <= schedule.pause() * KNOWN_FOR);
        let is_early = |last| {
            // the others may have done the same, and had unreported hits when the rest was measured
            let share = u64::from(self.plan.remaining_at_reply) / instances;
            let soon = own.saturating_add(self.demand.in_the_next(round_trip, now));
            soon >= share * 2 / 3 || schedule.is_early(own, share, last, now)
        };
        // rejected hits and hits that are given back make nothing overshoot
        if own == 0 || known.is_some_and(|last| !is_early(last)) {
            return least;
        }
        // without the hits that are pending, and in the window of `now`
        let remaining = self.remaining(now).saturating_add(own);
        let taken = own.saturating_add(self.demand.in_the_next(tick, now));
        let by_all = taken.saturating_mul(instances);
        let reaches = |hits: u64, part| hits.saturating_mul(part) >= remaining;
        match known {
            _ if reaches(by_all, NEAR) => FlushUrgency::Now,
            Some(_) => FlushUrgency::Tick,
            None if reaches(by_all - taken, NEAR_UNKNOWN) => FlushUrgency::Now,
            None => FlushUrgency::Interval,
        }
    }

    /// Notes the instant of a reply, and plans by what has been used since the one before.
    pub(super) fn measure_usage(&mut self, now: Timestamp) {
        let last_reply_at = self.last_reply.last_reply_at();
        let time = last_reply_at.map_or(Period::default(), |last| now.since(last));
        let by_all = self.demand.rate_with_burst(now) * f64::from(self.plan.instances);
        // those of the tier that has the fewest left
        let used = self.look(Hits(0), now).before;
        self.plan.usage.record(used.0, by_all, time);
        (self.last_reply.replied_at, self.last_reply.is_of_limit) = (now, true);
        self.plan_flush(now);
    }

    /// To be called after a reply, and when the limit has changed.
    pub(super) fn plan_flush(&mut self, now: Timestamp) {
        let remaining = self.remaining(now);
        self.plan.remaining_at_reply = saturated(remaining);
        if self.last_reply.last_reply_at().is_some() {
            let left = if remaining > 0 { self.plan.usage.time_for(remaining) } else { Period::default() };
            let tiers: &[Tier] = if self.target.counts_rejected() { &[] } else { &self.target.tiers };
            self.plan.schedule.plan(left, self.plan.usage.time_for(FEW_TO_LIMIT), tiers);
        }
    }
}

fn needed_hits(tries: &[Try]) -> u64 {
    let needed = tries.iter().filter(|asked| asked.leases()).map(|asked| asked.hits.0);
    needed.fold(0, u64::saturating_add)
}
