//! The line of one key: callers that wait until their hits fit, first in, first out.
//!
//! A line has a plan: a copy of the counters, advanced to the end of the line by the algorithms themselves. So it says
//! at once, for any algorithm, tiers and weights, when a newcomer would be served, and a newcomer that cannot be served
//! in time is rejected on arrival with the wait that it would need. Nobody passes the line but ordinary callers, those
//! that cannot wait: they have a part of each period.
//!
//! It is a pure structure: its functions get the counters and the time, and collect the wakers to wake once all locks
//! are free. Each of them first makes a *turn*: it admits, as of now, the waiters that fit by now. So a late timer lets
//! nobody pass.
//!
//! The plan may be late, never early: places of waiters that left stay in it until somebody would be rejected because
//! of it. What it keeps is therefore served in time, unless the limit falls. (The exceptions are waiters behind one that
//! left, where hits join an older span of a sliding window, or a bucket in steps is emptied later.) After a fall a *sweep* walks the line with
//! a new plan, and tells everybody who can be served in time no more.

mod answer;
mod asking;
mod ordinary;
mod place_queue;
mod plan;
mod sweep;
mod turns;
mod waiters;

use std::task::{Poll, Waker};

pub use self::{
    answer::{Answer, Entered, QueuePosition, Rejection},
    asking::{Ask, AskingLine, Estimate, Supply, Unused, unused},
    place_queue::{PlaceAsks, PlaceQueue, PlaceSupply},
    turns::Turns,
};
use self::{
    ordinary::{LineChange, OrdinaryPart, shared_period},
    plan::{LineForecast, fits, ready, take},
    sweep::Sweep,
    waiters::{GRACE, Left, Waiters, weight},
};
use super::{
    algorithm::CounterState,
    decision::{Decision, Direction, decide},
    tier::{OverLimitPolicy, SharedTiers, Tier, capacity},
    units::{Hits, Period, Timestamp},
};

/// Lines up to this long are replanned whenever that may admit somebody; longer ones after an eighth as many events.
const SHORT: usize = 1_024;

/// The callers that wait for the counters of one key.
#[derive(Clone, Debug)]
pub struct Line {
    tiers: SharedTiers,
    waiters: Waiters,
    /// None while nobody waits, when the counters themselves are the plan.
    plan: Option<LineForecast>,
    /// Whether the plan has holes: hits of waiters that have left, or that were given back.
    has_holes: bool,
    /// Arrivals and departures since the plan was made.
    events: usize,
    ordinary: OrdinaryPart,
    sweep: Option<Sweep>,
    timer: Option<Timestamp>,
}

/// Returns whether callers can wait: not for strict buckets, whose refill each rejected caller would restart.
pub fn can_wait(tiers: &[Tier]) -> bool {
    !tiers.iter().any(|tier| tier.bucket().strict || tier.has_any_pace())
}

// === impl Line ===

impl Line {
    /// Creates a line for `tiers`, in which nobody waits. Callers [can wait](can_wait) for them.
    pub fn new(tiers: SharedTiers) -> Self {
        Self {
            tiers,
            waiters: Waiters::default(),
            plan: None,
            has_holes: false,
            events: 0,
            ordinary: OrdinaryPart::default(),
            sweep: None,
            timer: None,
        }
    }

    /// Returns its tiers. All functions expect one counter for each.
    pub const fn tiers(&self) -> &SharedTiers {
        &self.tiers
    }

    pub const fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    pub const fn waiting_hits(&self) -> Hits {
        Hits(self.waiters.hits())
    }

    /// Returns whether no caller waits for an answer or has one to collect.
    pub const fn is_unused(&self) -> bool {
        self.waiters.is_unused()
    }

    /// Returns when the next [turn](Line::turn) is due. None while nobody waits.
    pub const fn timer(&self) -> Option<Timestamp> {
        self.timer
    }

    /// Takes `hits`, at least one, now or in turn within `max_wait`. A caller waits only if the line has `room`.
    pub fn enter(
        &mut self,
        counters: &mut [CounterState],
        now: Timestamp,
        hits: Hits,
        max_wait: Period,
        room: bool,
        woken: &mut Vec<Waker>,
    ) -> Entered {
        self.turn(counters, now, woken);
        let Some(weight) = weight(&self.tiers, hits) else { return Entered::Rejected(Rejection::Never) };
        if self.waiting() == 0 && fits(&self.tiers, counters, now, hits) {
            take(&self.tiers, counters, now, hits);
            return Entered::Admitted;
        }
        self.events += 1;
        let mut instant = self.forecast(counters, now, hits);
        let in_time =
            |instant: Option<Timestamp>| instant.is_some_and(|instant| instant.since(now) <= max_wait);
        if !(in_time(instant) && room) && self.improve(counters, now, hits) {
            instant = self.forecast(counters, now, hits);
        }
        let mut served = match Rejection::unless_in_time(instant, now, max_wait, room) {
            Ok(served) => served,
            Err(rejection) => return Entered::Rejected(rejection),
        };
        let position = self.waiters.push(weight, now.after(max_wait));
        if self.plan.is_none() {
            // the first one waits for the counters, and those behind it for what it leaves
            let plan = self.plan_at(counters, now);
            served = plan.ready(now, hits).unwrap_or(served);
            self.plan = Some(plan);
        }
        if let Some(plan) = &mut self.plan {
            plan.add(served, hits);
        }
        self.arm(counters, now);
        Entered::Waits(position)
    }

    /// Decides about `hits` of a caller that does not wait. While others wait, they must be within the part of ordinary
    /// callers, and rejected hits do not count, whatever the rule's policy is.
    pub fn decide(
        &mut self,
        counters: &mut [CounterState],
        now: Timestamp,
        policy: OverLimitPolicy,
        direction: Direction,
        hits: Hits,
        woken: &mut Vec<Waker>,
    ) -> Decision {
        self.turn(counters, now, woken);
        if self.waiting() == 0 || hits == Hits(0) {
            return decide(&self.tiers, counters, policy, direction, hits, now);
        }
        if direction == Direction::GiveBack {
            let decision = decide(&self.tiers, counters, policy, direction, hits, now);
            self.note_room(counters, now, woken);
            return decision;
        }
        if policy == OverLimitPolicy::Count {
            // a cost: nobody waits for a limit whose rejected requests count
            let decision = decide(&self.tiers, counters, policy, direction, hits, now);
            self.turn(counters, now, woken);
            return decision;
        }
        let fit = fits(&self.tiers, counters, now, hits);
        let change = self.ordinary.ask(&self.tiers, hits, fit);
        self.apply(change, counters, now, woken);
        if fit && self.ordinary.admits(hits) {
            let decision = decide(&self.tiers, counters, OverLimitPolicy::Ignore, direction, hits, now);
            self.ordinary.take(hits);
            self.turn(counters, now, woken);
            return decision;
        }
        self.improve(counters, now, hits);
        let served = if hits.0 <= capacity(&self.tiers) { self.forecast(counters, now, hits) } else { None };
        let looked = decide(&self.tiers, counters, OverLimitPolicy::Ignore, direction, Hits(0), now);
        let reset = served.map_or(looked.reset, |served| served.since(now));
        Decision { over: true, reset, ..looked }
    }

    /// Admits all waiters that fit at `now`, in their order, and tells those whose deadline has passed.
    pub fn turn(&mut self, counters: &mut [CounterState], now: Timestamp, woken: &mut Vec<Waker>) {
        if self.waiting() == 0 {
            return self.rest();
        }
        let change = self.ordinary.begin(&self.tiers, now);
        self.apply(change, counters, now, woken);
        self.serve(counters, now, woken);
        if let Some(sweep) = &mut self.sweep {
            if let Some(plan) = sweep.visit_some(&mut self.waiters, now, 0, woken) {
                self.plan = Some(plan);
                self.sweep = None;
            }
            // the first one may have been told
            self.serve(counters, now, woken);
        }
        self.arm(counters, now);
    }

    /// Returns the answer to the waiter at `position`, once; or has `waker` woken when there is one.
    pub fn poll(&mut self, position: QueuePosition, waker: &Waker) -> Poll<Answer> {
        self.waiters.poll(position, waker)
    }

    /// Removes the waiter at `position`, whose caller has left. Hits that were taken for it meanwhile are given back.
    pub fn leave(
        &mut self,
        counters: &mut [CounterState],
        position: QueuePosition,
        now: Timestamp,
        woken: &mut Vec<Waker>,
    ) {
        match self.waiters.leave(position) {
            Left::Nothing => {}
            Left::Waiting => self.note_room(counters, now, woken),
            Left::Admitted(taken_at, hits) => {
                put_back(&self.tiers, counters, taken_at, hits, now);
                self.note_room(counters, now, woken);
            }
        }
    }

    /// Notes that hits were given back to the counters or that a waiter has left, and makes a turn.
    pub fn note_room(&mut self, counters: &mut [CounterState], now: Timestamp, woken: &mut Vec<Waker>) {
        self.has_holes = true;
        self.events += 1;
        self.turn(counters, now, woken);
    }

    /// Replaces the tiers; `counters` are those of the new ones. Tells the waiters that are served in time no more.
    pub fn change_tiers(
        &mut self,
        tiers: SharedTiers,
        counters: &mut [CounterState],
        now: Timestamp,
        woken: &mut Vec<Waker>,
    ) {
        self.tiers = tiers;
        self.waiters.reject_too_heavy(&self.tiers, woken);
        self.serve(counters, now, woken);
        self.fall(counters, now, woken);
    }

    pub fn answer_all(&mut self, answer: Answer, woken: &mut Vec<Waker>) {
        self.waiters.answer_all(answer, woken);
        self.rest();
    }

    /// Checks its invariants, for tests: the sums are right, and no waiter sleeps that could be served or is late.
    pub fn check_invariants(&mut self, counters: &[CounterState], now: Timestamp) {
        self.waiters.check_invariants();
        assert_eq!(self.waiting() == 0, self.plan.is_none());
        if let Some(first) = self.waiters.first() {
            // a reserve shrinks between the turns
            let reserve = self.ordinary.reserve(&self.tiers, capacity(&self.tiers), now, first.hits);
            let sleeps = reserve == Hits(0) && self.first_fits(counters, now, first.hits);
            assert!(!sleeps, "the first waiter fits and waits");
            assert!(
                self.waiters.next_late().is_none_or(|late| late > now),
                "a waiter is late and was not told"
            );
            assert!(self.timer.is_some_and(|timer| timer > now), "nothing will wake the line");
        }
    }

    fn serve(&mut self, counters: &mut [CounterState], now: Timestamp, woken: &mut Vec<Waker>) {
        loop {
            while let Some(first) = self.waiters.first()
                && self.first_fits(counters, now, first.hits)
            {
                take(&self.tiers, counters, now, first.hits);
                self.waiters.answer(first.position, Answer::Admitted(now), woken);
            }
            // if the first one is told, the next one may fit
            let Some(late) = self.waiters.late(now) else { return };
            let served = self.forecast(counters, now, late.hits);
            let rejection = Rejection::until(served, now);
            self.waiters.answer(late.position, Answer::Rejected(rejection), woken);
            self.has_holes = true;
        }
    }

    fn first_fits(&self, counters: &[CounterState], now: Timestamp, hits: Hits) -> bool {
        let reserve = self.ordinary.reserve(&self.tiers, capacity(&self.tiers), now, hits);
        fits(&self.tiers, counters, now, hits.plus(reserve))
    }

    fn arm(&mut self, counters: &[CounterState], now: Timestamp) {
        let Some(first) = self.waiters.first() else { return self.rest() };
        let opening = self.opening(counters, now, first.hits);
        let timer = [opening, self.waiters.next_late()].into_iter().flatten().min();
        // a sweep goes on at once
        self.timer = if self.sweep.is_some() { Some(now.after(Period::from_nanos(1))) } else { timer };
    }

    /// Returns when to look again whether the first waiter fits.
    fn opening(&self, counters: &[CounterState], now: Timestamp, hits: Hits) -> Option<Timestamp> {
        let opening = ready(&self.tiers, counters, now, hits)?;
        if self.ordinary.reserve(&self.tiers, capacity(&self.tiers), opening, hits) == Hits(0) {
            return Some(opening);
        }
        let soon = now.after(Period::from_nanos(1));
        if opening >= soon && self.first_fits(counters, opening, hits) {
            return Some(opening);
        }
        // the reserve shrinks hit by hit until the period ends
        let period = shared_period(&self.tiers);
        let hit = period.as_nanos() / u64::from(self.ordinary.part().max(1));
        let step = Period::from_nanos(hit.max(GRACE.as_nanos().min(period.as_nanos() / 16)).max(1));
        Some(opening.max(now.after(step).min(now.window_end(period))).max(soon))
    }

    fn rest(&mut self) {
        self.plan = None;
        self.has_holes = false;
        self.sweep = None;
        self.timer = None;
        self.events = 0;
    }

    fn apply(
        &mut self,
        change: Option<LineChange>,
        counters: &mut [CounterState],
        now: Timestamp,
        woken: &mut Vec<Waker>,
    ) {
        match change {
            Some(LineChange::Grown) => self.fall(counters, now, woken),
            Some(LineChange::Shrunk) => self.has_holes = true,
            None => {}
        }
    }

    /// Begins a sweep, because the waiters will get less than the plan says.
    fn fall(&mut self, counters: &mut [CounterState], now: Timestamp, woken: &mut Vec<Waker>) {
        self.sweep = Some(Sweep::new(self.plan_at(counters, now)));
        (self.has_holes, self.events) = (false, 0);
        self.turn(counters, now, woken);
    }

    fn plan_at(&self, counters: &[CounterState], now: Timestamp) -> LineForecast {
        LineForecast::new(&self.tiers, counters, self.ordinary.part(), shared_period(&self.tiers), now)
    }

    fn forecast(&self, counters: &[CounterState], now: Timestamp, hits: Hits) -> Option<Timestamp> {
        match &self.plan {
            Some(plan) => plan.ready(now, hits),
            None => ready(&self.tiers, counters, now, hits),
        }
    }

    /// Plans again if the plan has holes, since `hits` would be rejected. Not for each rejection: walking a long line
    /// of mixed weights would let callers that hang up take all CPU time.
    fn improve(&mut self, counters: &[CounterState], now: Timestamp, hits: Hits) -> bool {
        if !self.has_holes || self.waiting() == 0 || self.sweep.is_some() {
            return false;
        }
        let mut plan = self.plan_at(counters, now);
        if self.waiters.are_single() && hits == Hits(1) && plan.has_few_openings() {
            plan.add_singles(self.waiters.hits());
        } else if self.waiting() <= SHORT || 8 * self.events >= self.waiting() {
            plan.add_each(&self.waiters);
        } else {
            return false;
        }
        self.plan = Some(plan);
        (self.has_holes, self.events) = (false, 0);
        true
    }
}

/// Gives back `hits` that were taken at `taken_at` and not used to each of `tiers`, as far as its counter allows it.
pub fn put_back(
    tiers: &[Tier],
    counters: &mut [CounterState],
    taken_at: Timestamp,
    hits: Hits,
    now: Timestamp,
) {
    for (tier, counter) in tiers.iter().zip(counters) {
        counter.put_back(tier, now, taken_at, hits);
    }
}
