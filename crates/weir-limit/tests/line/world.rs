//! A line, its counters and its callers, over a schedule.

use std::task::{Poll, Waker};

use proptest::prelude::*;
use weir_limit::{
    Algorithm, Direction, Hits, OverLimitPolicy, Period, Refill, SharedTiers, Tier, Timestamp,
    algorithm::CounterState,
    line::{self, Answer, Entered, Line, QueuePosition, Rejection},
};

use super::cases::{Case, Event, Mix};

/// The time by which deadlines take effect late.
pub(crate) const GRACE: Period = Period::from_millis(1);

/// A line with its counters.
#[derive(Clone)]
pub(crate) struct Limited {
    pub(crate) line: Line,
    pub(crate) counters: Vec<CounterState>,
}

/// A caller that waits or waited.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) position: Option<QueuePosition>,
    pub(crate) hits: u64,
    pub(crate) deadline: Timestamp,
    pub(crate) answer: Option<Answer>,
    /// When it got the answer.
    pub(crate) answered_at: Timestamp,
    pub(crate) has_left: bool,
    pub(crate) gave_back: bool,
}

/// Hits that were taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) at: Timestamp,
    pub(crate) hits: u64,
    /// The caller, if it waited or could.
    pub(crate) caller: Option<usize>,
}

pub(crate) struct World<'a> {
    pub(crate) case: &'a Case,
    pub(crate) limited: Limited,
    pub(crate) callers: Vec<Caller>,
    pub(crate) taken: Vec<Taken>,
    /// The tiers, from which instant on.
    pub(crate) tiers: Vec<(Timestamp, Vec<Tier>)>,
    now: Timestamp,
    timers: usize,
}

// === impl Limited ===

impl Limited {
    pub(crate) fn new(tiers: &[Tier], now: Timestamp) -> Self {
        Self {
            line: Line::new(tiers.iter().cloned().collect()),
            counters: tiers.iter().map(|tier| CounterState::unused(tier, now)).collect(),
        }
    }

    pub(crate) fn turn(&mut self, now: Timestamp) {
        self.line.turn(&mut self.counters, now, &mut Vec::new());
    }

    pub(crate) fn enter(&mut self, now: Timestamp, hits: u64, max_wait: Period) -> Entered {
        self.line.enter(&mut self.counters, now, Hits(hits), max_wait, true, &mut Vec::new())
    }

    /// Returns whether an ordinary caller is admitted.
    pub(crate) fn ask(&mut self, now: Timestamp, hits: u64) -> bool {
        let (policy, direction) = (OverLimitPolicy::Ignore, Direction::Take);
        let counters = &mut self.counters;
        !self.line.decide(counters, now, policy, direction, Hits(hits), &mut Vec::new()).over
    }

    pub(crate) fn leave(&mut self, position: QueuePosition, now: Timestamp) {
        self.line.leave(&mut self.counters, position, now, &mut Vec::new());
    }

    pub(crate) fn change(&mut self, tiers: SharedTiers, now: Timestamp) {
        self.turn(now);
        self.line.change_tiers(tiers, &mut self.counters, now, &mut Vec::new());
    }

    pub(crate) fn poll(&mut self, position: QueuePosition) -> Option<Answer> {
        match self.line.poll(position, Waker::noop()) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Makes all turns that are due until `end`, each at its instant. Returns the last answer of `position`, and when it
    /// came.
    pub(crate) fn run_until(
        &mut self,
        end: Timestamp,
        position: Option<QueuePosition>,
    ) -> Option<(Answer, Timestamp)> {
        for _ in 0..100_000 {
            let timer = self.line.timer().filter(|timer| *timer <= end)?;
            self.turn(timer);
            if let Some(answer) = position.and_then(|position| self.poll(position)) {
                return Some((answer, timer));
            }
        }
        panic!("the line makes turns without end");
    }

    pub(crate) fn check(&mut self, now: Timestamp) {
        self.line.check_invariants(&self.counters, now);
    }
}

// === impl World ===

impl<'a> World<'a> {
    pub(crate) fn new(case: &'a Case) -> Self {
        let now = Timestamp::from_secs(1_000_000);
        Self {
            case,
            limited: Limited::new(&case.tiers, now),
            callers: Vec::new(),
            taken: Vec::new(),
            tiers: vec![(Timestamp::default(), case.tiers.clone())],
            now,
            timers: 0,
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), TestCaseError> {
        let mut at = self.now;
        for (gap, event) in &self.case.events {
            at = at.after(Period::from_nanos(*gap)).max(self.now);
            self.run_timers(Some(at))?;
            self.now = at.max(self.now);
            self.act(event)?;
            self.after()?;
        }
        self.run_timers(None)
    }

    fn run_timers(&mut self, until: Option<Timestamp>) -> Result<(), TestCaseError> {
        let mut idle = 0;
        while let Some(timer) = self.limited.line.timer() {
            if until.is_some_and(|until| timer > until) {
                break;
            }
            let delay = self.case.delays[self.timers % self.case.delays.len()];
            self.timers += 1;
            let late =
                timer.after(Period::from_nanos(if self.case.mix == Mix::LateTimers { delay } else { 0 }));
            self.now = self.now.max(until.map_or(late, |until| late.min(until)));
            let before = self.limited.line.waiting();
            self.limited.turn(self.now);
            idle = if self.limited.line.waiting() == before { idle + 1 } else { 0 };
            prop_assert!(idle < 2_000, "the timer makes turns that do nothing");
            self.after()?;
        }
        prop_assert!(until.is_some() || self.limited.line.is_unused(), "waiters are left without a timer");
        Ok(())
    }

    fn act(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Enter { hits, max_wait } => self.enter(*hits, Period::from_nanos(*max_wait))?,
            Event::Ask { hits } => {
                if self.limited.ask(self.now, *hits) {
                    self.taken.push(Taken { at: self.now, hits: *hits, caller: None });
                }
            }
            Event::Leave { caller } if !self.callers.is_empty() => {
                let caller = caller.index(self.callers.len());
                if let (Some(position), None) = (self.callers[caller].position, self.callers[caller].answer) {
                    self.limited.leave(position, self.now);
                    self.callers[caller].has_left = true;
                    self.callers[caller].position = None;
                }
            }
            Event::PutBack { caller } if !self.callers.is_empty() => {
                let caller = caller.index(self.callers.len());
                let (answer, gave_back) = (self.callers[caller].answer, self.callers[caller].gave_back);
                // the holder of a permit knows that other limits apply since
                if let (Some(Answer::Admitted(at)), false) = (answer, gave_back)
                    && self.tiers.last().is_some_and(|(since, _)| *since < at)
                {
                    let hits = Hits(self.callers[caller].hits);
                    let Limited { line, counters } = &mut self.limited;
                    line::put_back(&line.tiers().clone(), counters, at, hits, self.now);
                    line.note_room(counters, self.now, &mut Vec::new());
                    self.callers[caller].gave_back = true;
                }
            }
            Event::Leave { .. } | Event::PutBack { .. } => {}
            Event::Change { halves } => {
                let mut tiers = self.limited.line.tiers().to_vec();
                for tier in &mut tiers {
                    let scale = |number: u32| (number * halves / 2).clamp(1, 1_000);
                    tier.requests = scale(tier.requests);
                    if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
                        bucket.burst = scale(bucket.burst);
                    }
                }
                self.limited.change(tiers.iter().cloned().collect(), self.now);
                self.tiers.push((self.now, tiers));
            }
        }
        Ok(())
    }

    fn enter(&mut self, hits: u64, max_wait: Period) -> Result<(), TestCaseError> {
        let mut before = self.limited.clone();
        let entered = self.limited.enter(self.now, hits, max_wait);
        let mut caller = Caller {
            position: None,
            hits,
            deadline: self.now.after(max_wait),
            answer: None,
            answered_at: self.now,
            has_left: false,
            gave_back: false,
        };
        match entered {
            Entered::Admitted => {
                caller.answer = Some(Answer::Admitted(self.now));
                self.taken.push(Taken { at: self.now, hits, caller: Some(self.callers.len()) });
            }
            Entered::Waits(position) => caller.position = Some(position),
            Entered::Rejected(rejection) => {
                caller.answer = Some(Answer::Rejected(rejection));
                let capacity = self.limited.line.tiers().iter().map(Tier::capacity).min();
                prop_assert_eq!(
                    rejection == Rejection::Never,
                    hits > u64::from(capacity.unwrap_or_default())
                );
                if let (Rejection::Timeout { retry_after }, Mix::Waiters) = (rejection, self.case.mix)
                    && !self.is_inexact()
                {
                    prop_assert!(retry_after > max_wait);
                    before.turn(self.now);
                    super::checks::check_rejection(&before, self.now, hits, retry_after)?;
                }
            }
        }
        self.callers.push(caller);
        Ok(())
    }

    /// Returns whether waits may be longer than foretold: the hits that take the place of those that left or came back
    /// may join an older span of a sliding window, which then expires later, or empty a bucket later, whose steps then
    /// begin later.
    pub(crate) fn is_inexact(&self) -> bool {
        let is_inexact = |tier: &Tier| match tier.algorithm {
            Algorithm::SlidingWindow => true,
            Algorithm::TokenBucket(bucket) => bucket.refill == Refill::Step,
            Algorithm::FixedWindow => false,
        };
        self.case.tiers.iter().any(is_inexact)
            && self.callers.iter().any(|caller| caller.has_left || caller.gave_back)
    }

    /// Collects answers, and checks what holds at any time.
    fn after(&mut self) -> Result<(), TestCaseError> {
        for i in 0..self.callers.len() {
            let (Some(position), None) = (self.callers[i].position, self.callers[i].answer) else { continue };
            let Some(answer) = self.limited.poll(position) else {
                let limit = self.callers[i].deadline.after(GRACE);
                prop_assert!(self.now < limit, "caller {} waits past its deadline", i);
                continue;
            };
            self.callers[i].answer = Some(answer);
            self.callers[i].answered_at = self.now;
            if let Answer::Admitted(at) = answer {
                prop_assert_eq!(at, self.now);
                self.taken.push(Taken { at, hits: self.callers[i].hits, caller: Some(i) });
            }
        }
        self.limited.check(self.now);
        let waiting: Vec<_> = self
            .callers
            .iter()
            .filter(|caller| caller.position.is_some() && caller.answer.is_none())
            .collect();
        prop_assert_eq!(waiting.len(), self.limited.line.waiting());
        prop_assert_eq!(
            Hits(waiting.iter().map(|caller| caller.hits).sum()),
            self.limited.line.waiting_hits()
        );
        Ok(())
    }
}

/// Gives back, for examples.
pub(crate) fn put_back(limited: &mut Limited, taken_at: Timestamp, hits: u64, now: Timestamp) {
    let tiers = limited.line.tiers().clone();
    line::put_back(&tiers, &mut limited.counters, taken_at, Hits(hits), now);
}
