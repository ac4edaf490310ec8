//! The conversation of a counter with the store: the tries of decisions that wait, and what is on its way.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    LocalCounter,
    outcome::{self, Outcome, Setter, Tried, Wakers},
    records::PendingDelta,
};
use crate::{
    limit::{Hits, OverLimitPolicy, Period, ReservationRequest, Timestamp},
    store::{
        coordinated::{
            delivery::{SentTry, Undecided},
            store_time::StoreTime,
        },
        remote::{Reply, Target},
    },
};

/// The most tries of one counter that wait.
const MAX_TRIES: usize = 4_096;

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

/// The number of round trips that a lease should last.
const ROUND_TRIPS: u64 = 8;

/// How late the queue may be, in nanoseconds.
const LATE: u64 = 6_000_000;

/// What the way to the store is like now.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Link {
    pub(in super::super) time: StoreTime,
    pub(in super::super) instances: usize,
    pub(in super::super) round_trip: Period,
    /// The longest that a decision waits.
    pub(in super::super) budget: Period,
    /// Whether hits that the store has denied until some instant are rejected without a call under `strict`.
    pub(in super::super) local_cache: bool,
}

/// Returns how long before its end a lease has to be returned to arrive in time: two of the `round_trip`, and what the
/// queue may be late.
pub(in super::super) const fn lead(round_trip: Period) -> Period {
    Period::from_nanos(round_trip.as_nanos().saturating_mul(2).saturating_add(LATE))
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
pub(super) struct OnWay {
    pub(super) number: u32,
    /// Those that have no reply yet.
    pub(super) left: u32,
    pub(super) at: Timestamp,
}

/// An exchange on its way that is about the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    pub(super) number: u32,
    /// The hits that are to be held.
    pub(super) want: u64,
}

/// A try on its way whose caller has been answered without the store.
#[derive(Debug)]
struct GivenUp {
    id: u32,
    /// The hits that it asks for.
    hits: Hits,
    /// The hits that were admitted and are in the estimate, as what would report them.
    admitted: Option<PendingDelta>,
}

// === impl Link ===

impl Link {
    fn trips(&self, count: u64) -> Period {
        Period::from_nanos(self.round_trip.as_nanos().saturating_mul(count))
    }

    /// Returns the time that a lease should last.
    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(self.trips(ROUND_TRIPS))
    }

    /// Returns how long before its end a lease has to be returned to arrive in time.
    pub(in super::super) const fn lead(&self) -> Period {
        lead(self.round_trip)
    }

    /// Returns whether the store is so far away that no decision should wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.trips(3) > self.budget
    }
}

// === impl Talk ===

impl Talk {
    /// Returns whether tries or a lease wait to be sent.
    fn has_wishes(&self) -> bool {
        self.wants_lease || !self.tries.is_empty()
    }

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

    /// Returns whether what is held meanwhile may cover it.
    pub(super) const fn leases(&self) -> bool {
        matches!(self.asks, Asks::Lease(_))
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

    /// Returns whether tries or a lease wait to be sent, and the sender has it in its queue.
    pub(in super::super) fn waits_for_call(&self) -> bool {
        self.rare.talk().is_some_and(|talk| talk.is_queued && talk.has_wishes())
    }

    /// Notes that the sender has it in its queue.
    pub(in super::super) fn note_queued(&mut self) {
        self.rare.make_talk().is_queued = true;
    }

    /// Has hits held with the next exchange, although no decision waits for them.
    pub(in super::super) fn want_lease(&mut self) {
        self.rare.make_talk().wants_lease = true;
    }

    /// Has no hits held with the next exchange for which no decision waits.
    pub(in super::super) fn want_no_lease(&mut self) {
        if let Some(talk) = self.rare.talk_mut() {
            talk.wants_lease = false;
            self.end_talk();
        }
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
        self.rare.talk().is_some_and(|talk| !talk.is_queued && talk.has_wishes())
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

    /// Gives up try `id` of `hits`, whose caller waits no longer. Returns whether it was sent: then its outcome is still
    /// expected.
    pub(in super::super) fn give_up(&mut self, id: u32, hits: Hits) -> bool {
        let Some(talk) = self.rare.talk_mut() else { return false };
        let waiting = talk.tries.len();
        talk.tries.retain(|asked| asked.id != id);
        let is_sent = talk.tries.len() == waiting;
        if is_sent {
            talk.given_up.push(GivenUp { id, hits, admitted: None });
        }
        self.end_talk();
        is_sent
    }

    /// Returns whether the outcome of `sent`, which was given up, is known. That of a counter that was evicted will not
    /// be.
    pub(in super::super) fn has_outcome_of(&self, sent: SentTry) -> bool {
        let is_awaited = |talk: &Talk| talk.given_up.iter().any(|given| given.id == sent.id);
        sent.generation == self.numbers.generation.0 && !self.rare.talk().is_some_and(is_awaited)
    }

    /// Returns the hits of tries that were given up and whose outcome is still expected.
    pub(in super::super) fn given_up_hits(&self) -> u64 {
        let given_up = self.rare.talk().into_iter().flat_map(|talk| &talk.given_up);
        given_up.fold(0, |sum, given| sum.saturating_add(given.hits.0))
    }

    /// Returns whether hits were admitted for try `id`, which was given up.
    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        let mut given_up = self.rare.talk().into_iter().flat_map(|talk| &talk.given_up);
        given_up.any(|given| given.id == id && given.admitted.is_some())
    }

    /// Notes that `sent`, which was given up, has been answered: as many `hits` were admitted at `at`, and are in the
    /// estimate.
    pub(in super::super) fn answer_given_up(&mut self, sent: SentTry, hits: Hits, at: Timestamp) {
        if sent.generation != self.numbers.generation.0 {
            return;
        }
        let admitted = (hits > Hits(0)).then(|| PendingDelta::taken_at(&self.target, hits, at));
        let given_up = self.rare.talk_mut().map(|talk| &mut talk.given_up);
        if let Some(given) = given_up.and_then(|all| all.iter_mut().find(|given| given.id == sent.id)) {
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

    /// Notes that commands are on their way, and if one is about the ledger, which.
    pub(super) fn note_on_way(&mut self, sent: OnWay, ledger: Option<Ledger>) {
        let talk = self.rare.make_talk();
        talk.on_way.push(sent);
        if ledger.is_some() {
            talk.ledger = ledger;
        }
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

    /// Notes that `want` hits are to be held by the exchange that is on its way.
    #[cfg(test)]
    pub(super) fn want_for_test(&mut self, want: u64) {
        let talk = self.rare.make_talk();
        talk.ledger = talk.on_way.last().map(|sent| Ledger { number: sent.number, want });
    }

    /// Frees the talk if nothing of it is needed.
    pub(super) fn end_talk(&mut self) {
        let is_over = |talk: &Talk| {
            let waits = talk.is_queued || talk.has_wishes();
            !waits && talk.on_way.is_empty() && talk.early.is_none()
        };
        if self.rare.talk().is_some_and(is_over) {
            self.rare.take_talk();
        }
    }
}
