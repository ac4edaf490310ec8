//! The conversation of a counter with the store: the tries of decisions that wait, and the exchanges that are on their
//! way.
//!
//! One exchange at a time is about the ledger: it carries what is pending, and what is to be held. Tries join it if it
//! has not left yet, and wait for it if it carries hits that the store has to count first, or brings hits that may
//! cover them. Others pass beside it. Tries that leave together share a command, and equal ones in a row cost the store
//! what one costs.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Generation, LocalCounter,
    limits::joined,
    outcome::{self, Outcome, Setter, Tried, Wakers},
    records::{Dropped, PendingDelta},
    tiers::flows,
};
use crate::{
    limit::{Coordination, CounterKey, Hits, OverLimitPolicy, Period, ReservationRequest, Timestamp},
    store::{
        coordinated::{delivery::Undecided, store_time::StoreTime},
        remote::{Command, Exchange, Hold, Reply, Report, Run, Target},
    },
};

/// The most tries of one counter that wait.
const MAX_TRIES: usize = 4_096;

/// What the way to the store is like now.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Link {
    pub(in super::super) time: StoreTime,
    pub(in super::super) instances: usize,
    pub(in super::super) round_trip: Period,
    /// The time that a lease should last.
    pub(in super::super) horizon: Period,
    /// How long before its end a lease has to be returned to arrive in time.
    pub(in super::super) lead: Period,
    /// Whether the store is so far away that no decision should wait for two replies.
    pub(in super::super) is_far: bool,
}

/// What one decision asks the store.
#[derive(Debug)]
pub(in super::super) struct Try {
    /// Its number among the tries and commands of the counter.
    pub(super) id: u32,
    /// The limit that it is decided by.
    pub(super) target: Arc<Target>,
    /// Whether the limit came with the request.
    pub(super) is_own: bool,
    pub(super) hits: Hits,
    pub(super) asks: Asks,
    pub(super) outcome: Setter,
}

/// Tries in order of arrival.
pub(in super::super) type Tries = SmallVec<[Try; 1]>;

/// What a try does with its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Asks {
    /// Takes them. Rejected hits count under [`OverLimitPolicy::Count`].
    Take(OverLimitPolicy),
    /// As `Take`. Hits that are held meanwhile are used too, and more are held with them.
    Lease(OverLimitPolicy),
    /// Looks whether they fit, without counting them, after everything that was counted here.
    Look,
    /// Takes between the fewest and the most hits that are of use, for a time.
    Reserve(ReservationRequest),
}

/// The tries of a counter that wait, and its exchanges that are on their way.
#[derive(Debug, Default)]
pub(in super::super) struct Talk {
    /// Tries that wait to be sent, in order of arrival.
    pub(super) tries: SmallVec<[Try; 1]>,
    /// The calls that were sent and have no reply yet, oldest first, but for one that carries nothing but reports: that
    /// is on its way as long as these are in flight.
    on_way: SmallVec<[OnWay; 1]>,
    /// The one of these that is about the ledger.
    ledger: Option<Ledger>,
    /// Tries on their way whose callers wait no longer.
    given_up: SmallVec<[GivenUp; 0]>,
    /// The newest reply beside a hold on its way, which it may count: it is applied after that.
    pub(super) early: Option<Box<Early>>,
    /// Whether the sender has the counter in its queue.
    pub(super) is_queued: bool,
    /// Whether hits are to be held, although no decision waits for them.
    pub(super) wants_lease: bool,
}

/// A reply that is applied later.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) target: Arc<Target>,
    pub(super) reply: Reply,
    pub(super) number: u32,
    pub(super) now: Timestamp,
}

/// Commands of one number that were sent together.
#[derive(Clone, Copy, Debug)]
struct OnWay {
    number: u32,
    /// Those that have no reply yet.
    left: u32,
    at: Timestamp,
}

/// An exchange on its way that is about the ledger.
#[derive(Clone, Copy, Debug)]
struct Ledger {
    number: u32,
    /// The hits that are to be held.
    want: u64,
}

/// A try on its way whose caller has been answered without the store.
#[derive(Debug)]
struct GivenUp {
    id: u32,
    /// The hits that were admitted and are in the estimate, as what would report them.
    admitted: Option<PendingDelta>,
}

/// What is remembered of a command until its reply.
#[derive(Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) key: CounterKey,
    /// The generation of the counter.
    pub(in super::super) generation: Generation,
    /// The number of the exchange among those of the counter.
    pub(super) number: u32,
    /// The limit of its tries.
    pub(in super::super) target: Arc<Target>,
    /// Further tiers that it is about, of other limits. They follow those of `target` in the command.
    pub(super) beside: Option<Arc<Target>>,
    /// Whether the limit came with the requests.
    pub(super) is_own: bool,
    /// The tries that it carries, run after run; or a reservation, which the hold is for.
    pub(super) tries: SmallVec<[Try; 1]>,
    /// Equal tries in a row. One that only reads has no try.
    pub(in super::super) runs: SmallVec<[Run; 1]>,
    /// The hits that its reports carry. None if it has none.
    pub(in super::super) carried: Option<Dropped>,
    pub(super) hold: Option<Hold>,
}

// === impl Talk ===

impl Talk {
    /// Returns the hits of tries that were given up and are in the estimate, as what would report them.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &PendingDelta> {
        self.given_up.iter().filter_map(|given| given.admitted.as_ref())
    }
}

// === impl Try ===

impl Try {
    /// Returns whether its caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.outcome.is_awaited()
    }

    /// Returns whether it takes nothing.
    pub(super) const fn looks(&self) -> bool {
        matches!(self.asks, Asks::Look)
    }

    /// Sets what was decided for its caller, who must be `woken`.
    pub(super) fn succeed(self, tried: Tried, woken: &mut Wakers) {
        self.outcome.set(Ok(tried), woken);
    }

    /// Notes for its caller, who must be `woken`, that it is `undecided`.
    pub(in super::super) fn fail(self, undecided: Undecided, woken: &mut Wakers) {
        self.outcome.set(Err(undecided), woken);
    }

    /// Returns the run that it is alone.
    const fn run(&self) -> Run {
        let (hits, counts_rejected) = match self.asks {
            Asks::Take(policy) | Asks::Lease(policy) => {
                (self.hits.0, matches!(policy, OverLimitPolicy::Count))
            }
            Asks::Look | Asks::Reserve(_) => (0, false),
        };
        Run { hits, tries: 1, counts_rejected }
    }
}

// === impl Sent ===

impl Sent {
    fn new(key: CounterKey, counter: &LocalCounter, number: u32) -> Self {
        Self {
            key,
            generation: counter.numbers.generation,
            number,
            target: Arc::clone(&counter.target),
            beside: None,
            is_own: false,
            tries: SmallVec::new(),
            runs: SmallVec::new(),
            carried: None,
            hold: None,
        }
    }

    /// Adds `next`, if the store can decide it in the same command. Returns it otherwise.
    fn add(&mut self, next: Try) -> Result<(), Try> {
        let is_empty = self.tries.is_empty() && self.runs.is_empty() && self.carried.is_none();
        if is_empty {
            if !Arc::ptr_eq(&self.target, &next.target) {
                self.target = Arc::clone(&next.target);
            }
            self.is_own = next.is_own;
        }
        let is_same = Arc::ptr_eq(&self.target, &next.target) || *self.target == *next.target;
        let is_read = self.tries.is_empty() && !self.runs.is_empty();
        if is_read || !is_same || self.is_own != next.is_own || self.is_reserving() {
            return Err(next);
        }
        if let Asks::Reserve(request) = next.asks {
            if !is_empty {
                return Err(next);
            }
            let (least, want) = (request.fit(request.least.max(Hits(1))), request.fit(Hits(u64::MAX)));
            self.hold = Some(Hold { least: least.0, want: want.0, time: request.hold });
        } else {
            let run = next.run();
            let is_full = self.runs.len() == Exchange::MAX_RUNS || flows(&self.target.tiers);
            match self.runs.last_mut() {
                Some(last) if last.hits == run.hits && last.counts_rejected == run.counts_rejected => {
                    last.tries = last.tries.saturating_add(1);
                }
                // the states after other hits would not say when the status before them ends
                Some(_) if is_full => return Err(next),
                _ => self.runs.push(run),
            }
        }
        self.tries.push(next);
        Ok(())
    }

    fn command(&self, reports: SmallVec<[Report; 1]>, at: Timestamp) -> Command {
        let runs = SmallVec::from_slice(&self.runs);
        let beside = self.beside.as_ref().map_or(0, |beside| beside.tiers.len());
        let beside = u8::try_from(beside).unwrap_or(u8::MAX);
        let target = self
            .beside
            .as_ref()
            .map_or_else(|| Arc::clone(&self.target), |beside| joined(&self.target, beside));
        Command { target, at, exchange: Exchange { reports, runs, hold: self.hold, beside } }
    }

    /// Returns whether its hold is for a reservation, which is its only try.
    pub(super) fn is_reserving(&self) -> bool {
        self.tries.first().is_some_and(|asked| matches!(asked.asks, Asks::Reserve(_)))
    }

    /// Returns the hold that is for the counter itself.
    pub(super) fn hold_ahead(&self) -> Option<Hold> {
        self.hold.filter(|_| !self.is_reserving())
    }

    /// Returns each run, and its tries.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&Run, &[Try])> {
        let mut rest = &self.tries[..];
        self.runs.iter().map(move |run| {
            let (tries, others) = rest.split_at(rest.len().min(run.tries as usize));
            rest = others;
            (run, tries)
        })
    }

    /// Has `command`, which it is remembered of, hold `hits` more than it does, for `time` at least.
    #[cfg(test)]
    pub(in super::super) fn hold_more(&mut self, command: &mut Command, hits: u64, time: Period) {
        let hold = self.hold.unwrap_or(Hold { least: 1, want: 0, time });
        self.hold = Some(Hold { want: hold.want + hits, time: hold.time.max(time), ..hold });
        command.exchange.hold = self.hold;
    }

    /// Returns whether it does more than the tries of callers who wait no longer.
    pub(in super::super) fn is_needed(&self) -> bool {
        self.carried.is_some() || self.tries.is_empty() || self.tries.iter().any(Try::is_awaited)
    }

    /// Returns whether the store decides something, so that it is about the open windows.
    pub(super) fn decides(&self) -> bool {
        !self.runs.is_empty() || self.hold.is_some()
    }
}

impl LocalCounter {
    /// Returns the number of the next exchange, or of a try. Exchanges leave in this order.
    pub(super) const fn next_number(&mut self) -> u32 {
        self.numbers.sent = self.numbers.sent.wrapping_add(1);
        self.numbers.sent
    }

    /// Returns whether exchange `number` is later than the one whose reply was applied last.
    pub(super) const fn is_later(&self, number: u32) -> bool {
        number != self.heard.applied && number.wrapping_sub(self.heard.applied) < u32::MAX / 2
    }

    /// Adds a try to those that wait. Returns its number and what receives its outcome; none if too many wait. The limit
    /// in use came with the request if it `is_own`.
    pub(in super::super) fn add_try(
        &mut self,
        is_own: bool,
        hits: Hits,
        asks: Asks,
    ) -> Option<(u32, Outcome)> {
        let (id, target) = (self.next_number(), Arc::clone(&self.target));
        let (setter, outcome) = outcome::channel();
        let tries = &mut self.rare.make_talk().tries;
        if tries.len() >= MAX_TRIES {
            tries.retain(|asked| asked.is_awaited());
            if tries.len() >= MAX_TRIES {
                return None;
            }
        }
        tries.push(Try { id, target, is_own, hits, asks, outcome: setter });
        Some((id, outcome))
    }

    /// Returns whether tries can leave now.
    pub(in super::super) fn can_send_tries(&self, link: &Link) -> bool {
        let Some(talk) = self.rare.talk().filter(|talk| !talk.is_queued) else { return false };
        let mut ahead = 0;
        talk.wants_lease && !self.has_ledger_on_way()
            || talk.tries.iter().any(|asked| !self.must_wait(asked, &mut ahead, link))
    }

    /// Returns whether the last try is the only one that waits.
    pub(in super::super) fn is_first_try(&self) -> bool {
        self.rare.talk().is_some_and(|talk| talk.tries.len() == 1)
    }

    /// Returns whether no exchange is on its way.
    pub(in super::super) fn is_silent(&self) -> bool {
        self.unanswered_since().is_none()
    }

    /// Returns the instant whose windows the oldest exchange on its way is about. Decisions may wait for it.
    pub(in super::super) fn unanswered_since(&self) -> Option<Timestamp> {
        let of_reports = self.unacknowledged.in_flight().first();
        let of_reports = of_reports.map(|delta| (self.numbers.flushed, delta.last_at));
        let others = self.rare.talk().and_then(|talk| talk.on_way.first());
        let all = of_reports.into_iter().chain(others.map(|sent| (sent.number, sent.at)));
        all.max_by_key(|(number, _)| self.numbers.sent.wrapping_sub(*number)).map(|(_, at)| at)
    }

    /// Notes that the sender has it in its queue.
    pub(in super::super) fn note_queued(&mut self) {
        self.rare.make_talk().is_queued = true;
    }

    /// Has hits held with the next exchange, although no decision waits for them.
    pub(in super::super) fn want_lease(&mut self) {
        self.rare.make_talk().wants_lease = true;
    }

    /// Returns whether an exchange is on its way that is about the ledger. What is pending waits for its reply.
    pub(in super::super) fn has_ledger_on_way(&self) -> bool {
        !self.unacknowledged.in_flight().is_empty()
            || self.rare.talk().is_some_and(|talk| talk.ledger.is_some())
    }

    /// Returns the hits that are to be held by an exchange on its way.
    pub(super) fn requested_hits(&self) -> u64 {
        self.rare.talk().and_then(|talk| talk.ledger).map_or(0, |ledger| ledger.want)
    }

    /// Returns whether hits are to be held by an exchange on its way, and that is another one than `number`, whose
    /// commands precede the one that holds them.
    pub(super) fn has_hold_beside(&self, number: u32) -> bool {
        let ledger = self.rare.talk().and_then(|talk| talk.ledger);
        ledger.is_some_and(|ledger| ledger.want > 0 && ledger.number != number)
    }

    /// Returns whether tries or a lease wait to be sent, for which the sender does not have it in its queue.
    pub(in super::super) fn has_to_send(&self) -> bool {
        let waits = |talk: &Talk| !talk.is_queued && (talk.wants_lease || !talk.tries.is_empty());
        self.rare.talk().is_some_and(waits)
    }

    /// Returns whether tries wait.
    pub(in super::super) fn has_tries(&self) -> bool {
        self.rare.talk().is_some_and(|talk| !talk.tries.is_empty())
    }

    /// Removes the tries that wait.
    pub(in super::super) fn take_tries(&mut self) -> Tries {
        let tries = self.rare.talk_mut().map(|talk| std::mem::take(&mut talk.tries)).unwrap_or_default();
        self.end_talk();
        tries
    }

    /// Gives up try `id`, whose caller waits no longer. Returns whether it was sent: then its outcome is still
    /// expected.
    pub(in super::super) fn give_up(&mut self, id: u32) -> bool {
        let Some(talk) = self.rare.talk_mut() else { return false };
        let waiting = talk.tries.len();
        talk.tries.retain(|asked| asked.id != id);
        let is_sent = talk.tries.len() == waiting;
        if is_sent {
            talk.given_up.push(GivenUp { id, admitted: None });
        }
        self.end_talk();
        is_sent
    }

    /// Returns whether the outcome of try `id`, which was given up, is still expected.
    pub(in super::super) fn is_given_up(&self, id: u32) -> bool {
        self.rare.talk().is_some_and(|talk| talk.given_up.iter().any(|given| given.id == id))
    }

    /// Returns whether hits were admitted for try `id`, which was given up.
    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        let mut given_up = self.rare.talk().into_iter().flat_map(|talk| &talk.given_up);
        given_up.any(|given| given.id == id && given.admitted.is_some())
    }

    /// Notes that try `id`, which was given up, has been answered: as many `hits` were admitted at `at`, and are in the
    /// estimate.
    pub(in super::super) fn answer_given_up(&mut self, id: u32, hits: Hits, at: Timestamp) {
        let admitted = (hits > Hits(0)).then(|| PendingDelta::taken_at(&self.target, hits, at));
        let given_up = self.rare.talk_mut().map(|talk| &mut talk.given_up);
        if let Some(given) = given_up.and_then(|all| all.iter_mut().find(|given| given.id == id)) {
            given.admitted = admitted;
        }
    }

    /// Removes try `id` from those that were given up. Returns the hits that were admitted for it, as what would report
    /// them.
    pub(super) fn take_given_up(&mut self, id: u32) -> Option<PendingDelta> {
        let given_up = &mut self.rare.talk_mut()?.given_up;
        let place = given_up.iter().position(|given| given.id == id)?;
        given_up.swap_remove(place).admitted
    }

    /// Notes that command `number` has its outcome.
    pub(super) fn end_command(&mut self, number: u32) {
        let Some(talk) = self.rare.talk_mut() else { return };
        if let Some(i) = talk.on_way.iter().position(|sent| sent.number == number) {
            talk.on_way[i].left = talk.on_way[i].left.saturating_sub(1);
            if talk.on_way[i].left == 0 {
                talk.on_way.remove(i);
                talk.ledger.take_if(|ledger| ledger.number == number);
            }
        }
        if talk.given_up.is_empty() {
            // before leases arrive, beside which it would take more space
            self.end_talk();
        }
    }

    /// Returns the commands that leave now, and what is remembered of each.
    #[cfg(test)]
    pub(in super::super) fn composed(&mut self, link: &Link) -> Vec<(Command, Sent)> {
        let mut composed = Vec::new();
        self.compose(CounterKey::default(), link, |command, sent| composed.push((command, sent)));
        composed
    }

    /// Notes that `want` hits are to be held by the exchange that is on its way.
    #[cfg(test)]
    pub(super) fn want_for_test(&mut self, want: u64) {
        let talk = self.rare.make_talk();
        talk.ledger = talk.on_way.last().map(|sent| Ledger { number: sent.number, want });
    }

    /// Frees the talk if nothing of it is needed.
    pub(super) fn end_talk(&mut self) {
        let is_over = |talk: &Talk| {
            talk.tries.is_empty() && talk.on_way.is_empty() && talk.early.is_none() && !talk.wants_lease
        };
        if self.rare.talk().is_some_and(is_over) {
            self.rare.take_talk();
        }
    }

    /// Returns whether `asked` has to wait for the reply to the exchange on its way that is about the ledger. `ahead`
    /// are the hits of those before it that wait for what is to be held.
    fn must_wait(&self, asked: &Try, ahead: &mut u64, link: &Link) -> bool {
        if !self.has_ledger_on_way() {
            return false;
        }
        let want = self.requested_hits();
        let in_flight = self.unacknowledged.in_flight();
        let is_about = |limit: &Target| limit.overlaps(&asked.target);
        if !is_about(&self.target) && !in_flight.iter().any(|delta| is_about(&delta.limit)) {
            return false;
        }
        if self.plan.instances <= 1 || asked.looks() {
            return true;
        }
        let Asks::Lease(_) = asked.asks else {
            // the store has to count them before
            let mut counted = in_flight.iter().filter(|delta| is_about(&delta.limit));
            return counted.any(|delta| delta.taken() > 0) || self.must_return(asked, link.time.now);
        };
        // several instances must not wait for their reports in a burst
        if in_flight.iter().any(|delta| !delta.change.is_addition()) {
            return true;
        }
        let hits = asked.hits.0;
        let is_covered = want > 0 && ahead.saturating_add(hits) <= want;
        let held = want.saturating_add(self.leased_hits());
        let has_no_room = held > 0 && !self.fits(Hits(held.saturating_add(hits)), link.time.now);
        let waits = is_covered || (has_no_room && !link.is_far);
        *ahead = ahead.saturating_add(if waits { hits } else { 0 });
        waits
    }

    /// Returns whether what is held has to go back before the store decides `asked`: there is no room for it besides,
    /// or the limit came with the request and the times of all hits matter.
    fn must_return(&self, asked: &Try, now: Timestamp) -> bool {
        if self.choice.mode != Coordination::Lease || matches!(asked.asks, Asks::Look | Asks::Reserve(_)) {
            return false;
        }
        let held = self.leased_hits().saturating_add(self.requested_hits());
        let all = asked.hits.plus(Hits(held));
        let has_room = || {
            let mut tiers = asked.target.tiers.iter().enumerate();
            tiers.all(|(i, tier)| {
                let hits = if self.target.counts_in(tier) { all } else { asked.hits };
                self.known(&asked.target, i).is_none_or(|(state, _)| state.probe(tier, now, hits).fits)
            })
        };
        held > 0
            && self.target.overlaps(&asked.target)
            && (asked.is_own && flows(&asked.target.tiers) || !has_room())
    }

    /// Returns the tries that leave now, whether no exchange is on its way that is about the ledger, and whether hits
    /// are to be held.
    fn take_ready_tries(&mut self, link: &Link) -> (SmallVec<[Try; 1]>, bool, bool) {
        let is_free = !self.has_ledger_on_way();
        let Some(talk) = self.rare.talk_mut() else { return (SmallVec::new(), is_free, false) };
        talk.is_queued = false;
        // the hits of a decision that waits no longer must not count twice
        if !talk.tries.iter().all(Try::is_awaited) {
            talk.tries.retain(|asked| asked.is_awaited());
        }
        let tries = std::mem::take(&mut talk.tries);
        if is_free {
            return (tries, true, std::mem::take(&mut talk.wants_lease));
        }
        let mut ahead = 0;
        let (stay, leave): (SmallVec<_>, _) =
            tries.into_iter().partition(|asked| self.must_wait(asked, &mut ahead, link));
        self.rare.make_talk().tries = stay;
        (leave, false, false)
    }

    /// Has the commands `leave` that may now, with what is to be remembered of each until its reply: those of tries,
    /// and if no other exchange is about the ledger, what is pending, and a hold. `key` is that of the counter. Returns
    /// what was dropped.
    pub(in super::super) fn compose(
        &mut self,
        key: CounterKey,
        link: &Link,
        mut leave: impl FnMut(Command, Sent),
    ) -> Dropped {
        self.follow_instances(link.instances);
        let (at, mut dropped) = (link.time.now, Dropped::default());
        let (tries, is_free, mut wants_lease) = self.take_ready_tries(link);
        let number = self.next_number();
        let (mut reports, mut returned) = (SmallVec::new(), 0);
        let mut beside = None;
        let is_lease = self.choice.mode == Coordination::Lease;
        let leases = |asked: &Try| matches!(asked.asks, Asks::Lease(_));
        wants_lease &= is_lease;
        if is_free {
            wants_lease |= is_lease && tries.iter().any(leases);
            if tries.iter().any(|asked| self.must_return(asked, at)) {
                returned = self.leased_hits();
                self.return_leases();
            }
            if wants_lease {
                returned += self.return_leases_before(at.after(link.lead));
            }
            (reports, beside, dropped) = self.take_reports(number, at);
        }
        let mut carried = (!reports.is_empty()).then(|| self.carried_hits());
        let needed = tries.iter().filter(|asked| leases(asked)).map(|asked| asked.hits.0);
        let needed = needed.fold(0, u64::saturating_add);
        // no try that follows may find hits held that it needs
        let is_of_rule = |asked: &Try| !asked.is_own && asked.target.has_counters_of(&self.target);
        let may_hold = wants_lease && tries.iter().all(is_of_rule);
        let hold = may_hold.then(|| self.lease_policy().next_hold(needed, returned, link, at)).flatten();
        let is_late = self.counted_until() > at || self.is_overcounted();
        let overlaps = tries.iter().any(|asked| asked.target.overlaps(&self.target));
        let decides = hold.is_some() || (is_lease || is_late) && overlaps;
        if is_free && reports.is_empty() && (decides || self.plan.wants_read && self.is_overcounted()) {
            // the store has this instance's exact state before it decides
            let exact = self.replacement(&self.target, at);
            reports.extend(exact.map(|replaces| Report {
                at,
                since: at,
                replaces: Some(replaces),
                ..Report::default()
            }));
            carried = (!reports.is_empty()).then(Dropped::default);
        }
        let others = if self.plan.wants_read { self.other_tiers() } else { None };
        let is_read_anyway = others.is_none()
            && (hold.is_some() || tries.iter().any(|asked| asked.target.has_counters_of(&self.target)));
        let reads = is_free && self.plan.wants_read && carried.is_none() && !is_read_anyway;
        if carried.is_none() && hold.is_none() && !reads && tries.is_empty() {
            self.end_talk();
            return dropped;
        }
        let is_ledger = is_free
            && (carried.is_some()
                || hold.is_some()
                || reads
                || is_lease && needed > 0 && (self.plan.instances <= 1 || flows(&self.target.tiers)));
        // an exchange that has nothing but reports is known by these
        let is_known = hold.is_none() && tries.is_empty() && !self.unacknowledged.in_flight().is_empty();
        if is_free {
            // a report says less of them than is wished for
            self.plan.wants_read &= carried.is_some() && beside.is_none() && others.is_some();
            self.end_overcounting();
        }
        let mut last = Sent::new(key, self, number);
        (last.beside, last.carried) = (beside, carried);
        if reads {
            last.beside = others;
            last.runs.push(Run { hits: 0, tries: 1, counts_rejected: false });
        }
        let oldest = reports.first().map_or(at, |report| report.at);
        let mut left = 1;
        for asked in tries {
            if let Err(asked) = last.add(asked) {
                left += 1;
                let full = std::mem::replace(&mut last, Sent::new(key, self, number));
                leave(full.command(std::mem::take(&mut reports), at), full);
                let is_added = last.add(asked).is_ok();
                debug_assert!(is_added, "an empty command takes in any try");
            }
        }
        let hold = hold.filter(|_| !last.is_reserving());
        last.hold = last.hold.or(hold);
        if is_known {
            self.end_talk();
        } else {
            let talk = self.rare.make_talk();
            talk.on_way.push(OnWay { number, left, at: oldest });
            if is_ledger {
                talk.ledger = Some(Ledger { number, want: hold.map_or(0, |hold| hold.want) });
            }
        }
        leave(last.command(reports, at), last);
        dropped
    }
}
