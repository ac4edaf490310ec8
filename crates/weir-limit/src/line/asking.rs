//! The line of a key whose counters are elsewhere: in a store that instances share, or on disk.
//!
//! Such a line asks the store for hits: for a run of waiters at once, never for each of them, and once at a time. What
//! the store grants goes to the waiters in their order. When the store has no more, the line asks again at the instant
//! that the reply names. The instances of a shared store do not know each other's lines: where a window begins, each
//! asks in its own turn, first for its part of the limit, and then for some of what is left.
//!
//! The plan is made of an estimate, what this instance knows of the counters, as if nobody else asked. So a caller that
//! is rejected could not have been served in time; one that is kept may have to be told at its deadline.

use std::task::{Poll, Waker};

use smallvec::SmallVec;

use super::{
    SHORT,
    answer::{Answer, Entered, QueuePosition, Rejection},
    plan::LineForecast,
    sweep::Sweep,
    turns::{SPREAD, Turns, spread},
    waiters::{Left, Waiters, weight},
};
use crate::{
    algorithm::CounterState,
    reservation::ReservedSpan,
    tier::{SharedTiers, Tier, Tiers, capacity},
    units::{Hits, Period, Timestamp},
};

/// The time between two sweeps because of what others have taken.
const SWEEP_PAUSE: Period = Period::from_millis(100);

/// How much later than its deadline a waiter is told while an ask that may serve it is on its way.
const LATEST: Period = Period::from_millis(50);

/// The round trip that is assumed before the first reply.
const ROUND_TRIP: Period = Period::from_millis(5);

/// Hits are reserved for four round trips within these bounds: sliding windows count them, buckets refill meanwhile.
const HOLD: [Period; 2] = [Period::from_millis(2), Period::from_millis(50)];

/// What an instance knows of the counters of a limit.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// One for each tier.
    pub counters: SmallVec<[CounterState; 1]>,
    /// The present instant on the clock of the store that has them.
    pub at: Timestamp,
    /// What this instance has of the limit, if that is not all of it.
    pub part: Option<Tiers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The fewest hits that serve the first waiter.
    pub least: Hits,
    pub want: Hits,
    /// The time within which they will be used.
    pub hold: Period,
}

#[derive(Clone, Debug)]
pub struct Supply {
    /// The hits that are reserved: none, or between what was asked for.
    pub hits: Hits,
    /// The instant before which they may be used.
    pub until: Timestamp,
    /// When they were counted, and until when.
    pub span: ReservedSpan,
    /// If there are none, the wait until the least would fit.
    pub wait: Period,
    /// What is known of the counters now; none if nothing is.
    pub estimate: Option<Estimate>,
}

/// Hits that the store must get back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unused {
    pub hits: Hits,
    pub span: ReservedSpan,
}

/// The callers that wait for counters that are elsewhere.
#[derive(Debug)]
pub struct AskingLine {
    tiers: SharedTiers,
    turns: Turns,
    waiters: Waiters,
    /// None while nothing is known of the counters.
    plan: Option<LineForecast>,
    /// The plan of an empty line, by the last estimate.
    empty: Option<LineForecast>,
    /// Departures since the plan was made.
    holes: usize,
    /// How far the clock of the plan is ahead of that of the waiters, in nanoseconds.
    ahead: i64,
    sweep: Option<Sweep>,
    swept_at: Timestamp,
    /// The instant at which the ask that is on its way was sent.
    asked_at: Option<Timestamp>,
    /// Whether the last ask left some of the waiters out.
    is_cut: bool,
    next: Timestamp,
    /// What the last reply has left; none where all of the limit may be free.
    room: Option<u64>,
    round_trip: Period,
    /// The last reservation, with the hits of it that nobody has yet.
    held: Option<Held>,
    unused: Vec<Unused>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    hits: u64,
    granted_at: Timestamp,
    until: Timestamp,
    span: ReservedSpan,
}

// === impl Estimate ===

impl Estimate {
    pub fn is_of(&self, tiers: &[Tier]) -> bool {
        tiers.len() == self.counters.len()
            && self.part.as_ref().is_none_or(|part| part.len() == tiers.len())
            && tiers.iter().zip(&self.counters).all(|(tier, counter)| counter.is_of(tier.algorithm))
    }
}

// === impl AskingLine ===

impl AskingLine {
    /// Creates an empty line of an instance that asks alone. Callers [can wait](super::can_wait) for its `tiers`.
    pub fn new(tiers: SharedTiers) -> Self {
        Self {
            tiers,
            turns: Turns::ALONE,
            waiters: Waiters::default(),
            plan: None,
            empty: None,
            holes: 0,
            ahead: 0,
            sweep: None,
            swept_at: Timestamp::default(),
            asked_at: None,
            is_cut: false,
            next: Timestamp::default(),
            room: None,
            round_trip: ROUND_TRIP,
            held: None,
            unused: Vec::new(),
        }
    }

    pub const fn set_turns(&mut self, turns: Turns) {
        self.turns = turns;
    }

    pub const fn tiers(&self) -> &SharedTiers {
        &self.tiers
    }

    pub const fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    /// Returns whether nobody waits or has an answer to collect, no reply is awaited, and nothing is to be given back.
    pub fn is_unused(&self) -> bool {
        self.waiters.is_unused() && self.asked_at.is_none() && self.unused.is_empty()
    }

    /// Keeps a caller of `hits`, at least one, that may be served within `max_wait`, if there is `room`. `opening` is
    /// the wait after which the hits would fit by the store's last word; the line then asks for them.
    pub fn enter(
        &mut self,
        now: Timestamp,
        hits: Hits,
        max_wait: Period,
        room: bool,
        (estimate, opening): (Option<Estimate>, Period),
    ) -> Entered {
        let Some(weight) = weight(&self.tiers, hits) else { return Entered::Rejected(Rejection::Never) };
        let is_first = self.waiting() == 0;
        if is_first {
            self.forget_plan();
        }
        if self.plan.is_none() {
            self.plan = self.plan_of(estimate, now);
        }
        let at = self.clock(now);
        let served = |line: &Self| match &line.plan {
            Some(plan) => plan.ready(at, hits),
            None => Some(at.after(opening)),
        };
        let mut instant = served(self);
        if !(instant.is_some_and(|instant| instant.since(at) <= max_wait) && room) && self.improve() {
            instant = served(self);
        }
        let served = match Rejection::unless_in_time(instant, at, max_wait, room) {
            Ok(served) => served,
            Err(rejection) => return Entered::Rejected(rejection),
        };
        if let Some(plan) = &mut self.plan {
            plan.add(served, hits);
        }
        let position = self.waiters.push(weight, now.after(max_wait));
        if is_first && self.asked_at.is_none() {
            if opening == Period::default() {
                self.next = now;
            } else {
                self.open(now.after(opening), now);
            }
        }
        Entered::Waits(position)
    }

    /// Serves the waiters that have their hits, tells those whose deadline has passed, and returns what to ask for now.
    pub fn turn(&mut self, now: Timestamp, woken: &mut Vec<Waker>) -> Option<Ask> {
        self.serve(now, woken);
        self.tell_late(now, woken);
        if let Some(sweep) = &mut self.sweep
            && let Some(plan) = sweep.visit_some(&mut self.waiters, now, self.ahead, woken)
        {
            (self.plan, self.sweep, self.holes) = (Some(plan), None, 0);
        }
        self.settle(now, woken);
        let first = self.waiters.first()?;
        if self.asked_at.is_some() || self.next > now {
            return None;
        }
        self.asked_at = Some(now);
        let most = self.most().max(first.hits.0);
        let mut want = 0;
        self.is_cut = false;
        for waiter in self.waiters.iter() {
            if want + waiter.hits.0 > most {
                self.is_cut = true;
                break;
            }
            want += waiter.hits.0;
        }
        Some(Ask { least: first.hits, want: Hits(want), hold: self.hold() })
    }

    /// Applies the reply to what it has asked for; none if the ask has failed.
    pub fn supply(&mut self, supply: Option<Supply>, now: Timestamp, woken: &mut Vec<Waker>) {
        let Some(asked_at) = self.asked_at.take() else {
            self.unused.extend(supply.map(|supply| Unused { hits: supply.hits, span: supply.span }));
            return;
        };
        let took = now.since(asked_at).as_nanos();
        self.round_trip = Period::from_nanos((self.round_trip.as_nanos() * 7 + took) / 8);
        let Some(Supply { hits, until, span, wait, estimate }) = supply else {
            self.room = None;
            self.next = now.after(SPREAD);
            return self.tell_late(now, woken);
        };
        if let Some(held) = self.held.take().filter(|held| held.hits > 0) {
            self.unused.push(Unused { hits: Hits(held.hits), span: held.span });
        }
        self.held = Some(Held { hits: hits.0, granted_at: asked_at, until, span });
        self.serve(now, woken);
        let plan = self.plan_of(estimate, now);
        if let Some(first) = self.waiters.first() {
            let at = self.clock(now);
            let ready =
                plan.as_ref().and_then(|plan| plan.ready(at, first.hits)).map(|ready| ready.since(at));
            // if nothing is known, there may be more
            let room = plan.as_ref().map(|plan| plan.room(at));
            if hits == Hits(0) {
                // the store knows more than the estimate
                self.open(now.after(wait.max(Period::from_nanos(1))), now);
            } else if room.is_none_or(|room| room >= first.hits.0) {
                self.room = room;
                // where there is less than is wanted, the others have their turns first
                let yields = self.is_cut && self.turns.instances() > 1;
                self.next = if yields { now.after(spread(&self.tiers).max(self.round_trip)) } else { now };
            } else {
                self.open(now.after(ready.unwrap_or(wait)), now);
            }
        }
        self.replan(plan, now);
        self.tell_late(now, woken);
        self.settle(now, woken);
    }

    /// Returns when the next [turn](AskingLine::turn) is due. None while nothing has to be done.
    pub fn timer(&mut self) -> Option<Timestamp> {
        if self.waiting() == 0 {
            return None;
        }
        if self.sweep.is_some() {
            return Some(Timestamp::default());
        }
        let late = self.waiters.next_late();
        if self.asked_at.is_some() {
            return late.map(|late| late.after(LATEST));
        }
        [Some(self.next), late].into_iter().flatten().min()
    }

    /// Returns the answer to the waiter at `position`, once; or has `waker` woken when there is one.
    pub fn poll(&mut self, position: QueuePosition, waker: &Waker) -> Poll<Answer> {
        self.waiters.poll(position, waker)
    }

    /// Hits that were granted to the waiter serve the next one, or are given back.
    pub fn leave(&mut self, position: QueuePosition, now: Timestamp, woken: &mut Vec<Waker>) {
        match self.waiters.leave(position) {
            Left::Nothing => {}
            Left::Waiting => self.holes += 1,
            Left::Admitted(taken_at, hits) => match &mut self.held {
                Some(held) if held.granted_at <= taken_at && now < held.until => held.hits += hits.0,
                _ => self.put_back(taken_at, hits, now),
            },
        }
        self.settle(now, woken);
    }

    /// Has the store get back `hits` that were granted at `taken_at` and not used, as far as they still count.
    pub fn put_back(&mut self, taken_at: Timestamp, hits: Hits, now: Timestamp) {
        self.unused.extend(unused(&self.tiers, self.clock(taken_at), hits, self.clock(now)));
    }

    /// Replaces the tiers. Tells the waiters that are too heavy now; the others ask again.
    pub fn change_tiers(&mut self, tiers: SharedTiers, now: Timestamp, woken: &mut Vec<Waker>) {
        self.tiers = tiers;
        self.waiters.reject_too_heavy(&self.tiers, woken);
        self.forget_plan();
        (self.room, self.next) = (None, now);
    }

    pub fn answer_all(&mut self, answer: Answer, now: Timestamp, woken: &mut Vec<Waker>) {
        self.waiters.answer_all(answer, woken);
        self.settle(now, woken);
    }

    pub fn take_unused(&mut self) -> Vec<Unused> {
        std::mem::take(&mut self.unused)
    }

    pub fn check_invariants(&mut self, now: Timestamp) {
        self.waiters.check_invariants();
        let timer = self.timer();
        assert_eq!(timer.is_none(), self.waiting() == 0, "a waiter sleeps for ever");
        let late = self.waiters.next_late();
        assert!(late.is_none_or(|late| late.after(LATEST) > now), "a waiter is late and was not told");
        assert!(self.held.is_none_or(|held| held.hits == 0), "hits are kept for nobody");
    }

    fn serve(&mut self, now: Timestamp, woken: &mut Vec<Waker>) {
        let Some(held) = self.held.as_mut().filter(|held| now < held.until) else { return };
        while let Some(first) = self.waiters.first()
            && first.hits.0 <= held.hits
        {
            held.hits -= first.hits.0;
            self.waiters.answer(first.position, Answer::Admitted(now), woken);
        }
    }

    /// Serves those that have come to the front, and gives back what is held then and serves nobody.
    fn settle(&mut self, now: Timestamp, woken: &mut Vec<Waker>) {
        self.serve(now, woken);
        if self.waiting() == 0 {
            self.forget_plan();
        }
        let first = self.waiters.first().map(|first| first.hits.0);
        if let Some(held) = &mut self.held
            && held.hits > 0
            && (now >= held.until || first.is_none_or(|first| first > held.hits))
        {
            let hits = Hits(std::mem::take(&mut held.hits));
            self.unused.push(Unused { hits, span: held.span });
        }
    }

    /// An ask that was sent in time may still serve late waiters for a while.
    fn tell_late(&mut self, now: Timestamp, woken: &mut Vec<Waker>) {
        let patience = if self.asked_at.is_some() { LATEST } else { Period::default() };
        let before = Timestamp::from_nanos(now.as_nanos().saturating_sub(patience.as_nanos()));
        while let Some(late) = self.waiters.late(before) {
            let at = self.clock(now);
            let planned = self.plan.as_ref().and_then(|plan| plan.ready(at, late.hits));
            let retry_after = planned.map_or(self.next.since(now), |planned| planned.since(at));
            self.waiters.answer(late.position, Answer::Rejected(Rejection::Timeout { retry_after }), woken);
        }
    }

    /// Asks at `opening`, in its turn, since others wait for these hits as well.
    fn open(&mut self, opening: Timestamp, now: Timestamp) {
        self.room = None;
        self.next = self.turns.instant(&self.tiers, opening).max(now);
    }

    fn most(&self) -> u64 {
        let instances = self.turns.instances();
        match self.room {
            None => capacity(&self.tiers).div_ceil(instances),
            Some(room) => room.div_ceil((instances / 8).max(1)),
        }
    }

    fn hold(&self) -> Period {
        let longest = self.tiers.iter().map(|tier| tier.period).max().unwrap_or_default();
        if self.tiers.iter().all(Tier::has_windows) {
            // only the end of the window matters, and a reply that comes late serves the line nevertheless
            return longest;
        }
        let [shortest, longest] = HOLD;
        (self.round_trip * 4).clamp(shortest, longest)
    }

    /// Begins a walk along the line with the `plan` of an empty one, unless one has ended lately.
    fn replan(&mut self, plan: Option<LineForecast>, now: Timestamp) {
        let Some(plan) = plan.filter(|_| self.waiting() > 0) else { return };
        if self.sweep.is_none() && now.since(self.swept_at) >= SWEEP_PAUSE {
            (self.sweep, self.swept_at) = (Some(Sweep::new(plan)), now);
        }
    }

    /// Plans again without the waiters that left, so that nobody is rejected because of them. Returns whether it did.
    fn improve(&mut self) -> bool {
        let is_worth_it = self.waiting() <= SHORT || 8 * self.holes >= self.waiting();
        if self.holes == 0 || self.sweep.is_some() || !is_worth_it {
            return false;
        }
        let Some(mut plan) = self.empty.clone() else { return false };
        plan.add_each(&self.waiters);
        (self.plan, self.holes) = (Some(plan), 0);
        true
    }

    /// None if `estimate` is of other tiers: a reload reaches the counters and the lines one after another.
    fn plan_of(&mut self, estimate: Option<Estimate>, now: Timestamp) -> Option<LineForecast> {
        let estimate = estimate.filter(|estimate| estimate.is_of(&self.tiers))?;
        let nanos = |at: Timestamp| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
        self.ahead = nanos(estimate.at) - nanos(now);
        let tiers = estimate.part.as_deref().unwrap_or(&self.tiers);
        let plan = LineForecast::new(tiers, &estimate.counters, 0, Period::from_nanos(1), estimate.at);
        self.empty = Some(plan.clone());
        Some(plan)
    }

    fn forget_plan(&mut self) {
        (self.plan, self.empty, self.sweep, self.holes) = (None, None, None, 0);
    }

    /// Converts an instant on the clock of the waiters to that of the plan.
    fn clock(&self, at: Timestamp) -> Timestamp {
        at.shifted(self.ahead)
    }
}

/// What the store gets back of unused `hits`, by its clock: of a bucket, what has not flowed in since.
pub fn unused(tiers: &[Tier], taken_at: Timestamp, hits: Hits, now: Timestamp) -> Option<Unused> {
    let since = now.since(taken_at);
    let flowed = tiers.iter().filter(|tier| tier.refills()).map(|tier| {
        let period = u128::from(tier.period.as_nanos().max(1));
        (u128::from(since.as_nanos()) * u128::from(tier.requests)).div_ceil(period)
    });
    let flowed = u64::try_from(flowed.max().unwrap_or_default()).unwrap_or(u64::MAX);
    let span = ReservedSpan { from: taken_at, until: taken_at.after(HOLD[1]), is_reported: true };
    let hits = hits.minus(Hits(flowed));
    (hits > Hits(0)).then_some(Unused { hits, span })
}
