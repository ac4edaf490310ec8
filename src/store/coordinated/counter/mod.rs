//! What this instance knows and owes of one target's counters. Pure: no clock, no store, no lock.
//!
//! The *view* is what the shared store told last, with everything that was counted here since. What was counted here and
//! the store was not told of is *unsent*; it belongs to the instant at which it was counted, since hits of one window must
//! not be counted in the next. What the store granted in advance is a *lease*.

mod leases;
mod pace;
mod pending;
mod schedule;
mod tiers;

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::Notify;

use self::{
    schedule::FlushSchedule,
    tiers::{capacity, same_windows},
};
use super::demand::{Demand, Flow};
use crate::{
    limit::{
        Algorithm, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, RuleId, Tier, Timestamp,
        algorithm::CounterState, decide, decision_from_store,
    },
    store::remote::{Op, Target},
};

/// One counter for each tier.
type Counters = SmallVec<[CounterState; 2]>;

/// What this instance knows and owes of one target's counters. Laid out as it is written, what decisions look at first: where
/// there are thousands, most are in no cache, and each further line of memory is waited for.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LocalCounter {
    pub(super) target: Arc<Target>,
    /// The rule that the target was last found to be of; none if the caller brought it along.
    rule: Option<RuleId>,
    pub(super) asked_at: Timestamp,
    view: Counters,
    unsent: SmallVec<[Owed; 1]>,
    /// Oldest first: those end first.
    leases: SmallVec<[Lease; 1]>,
    pub(super) demand: Demand,
    pub(super) sync: FlushSchedule,
    in_flight: Vec<Owed>,
    /// When the store told last, on its clock.
    heard_at: Option<Timestamp>,
    /// What remained when the store told last.
    room: u64,
    /// How many instances there are, by the last decision.
    instances: usize,
    /// No hit fits before this instant, by what the store told.
    denied_until: Timestamp,
    /// What the store is not asked about is counted here as if every instance did the same; none while it answers.
    alone: Option<Box<Counters>>,
    pub(super) fetch: Fetch,
    flow: Flow,
    /// Hits that the store was told of since it told last.
    acknowledged: u64,
}

/// Hits that were counted here, or given back if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owed {
    at: Timestamp,
    hits: i64,
    /// As many of them were counted though they were refused.
    refused: u64,
    /// They were granted to be used until then, and were not: to be had again only once the store knows.
    returned: Option<Timestamp>,
}

/// Hits that may be taken without asking.
#[derive(Clone, Copy, Debug)]
struct Lease {
    left: u64,
    /// Granted at.
    at: Timestamp,
    until: Timestamp,
}

/// The state of asking for a lease.
#[derive(Debug, Default)]
pub(super) struct Fetch {
    /// One is being asked for.
    pub(super) running: bool,
    /// What came of the last one.
    pub(super) answer: Answer,
    /// Whoever waits for it, if anybody ever did.
    pub(super) done: Option<Arc<Notify>>,
    /// Hits that are waited for.
    waiting: u64,
    /// The fewest hits that are waited for.
    least: u64,
    /// Which one is being asked for, or was last, from 1.
    pub(super) round: u64,
    /// What it asked for.
    want: u64,
    /// Somebody sees to it that what is left of a lease does not end with it.
    pub(super) watched: bool,
    /// The store has had nothing more to give since there was last enough for everybody.
    scarce: bool,
    /// While nothing is left: when to look again whether another instance has given something back, and how long to
    /// leave it after that.
    probe_at: Timestamp,
    /// None while something is left.
    probe_after: Period,
}

/// What came of asking for a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// All of it.
    #[default]
    Enough,
    /// Less.
    Short,
    /// None: the store did not tell.
    Nothing,
}

/// What became of what the store was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Hits that it counted with the last command, and that were admitted here.
    pub(super) admitted: u64,
    /// Hits of which nobody knows whether it counted them.
    pub(super) unknown: u64,
}

/// What was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Hits that the store was never told of, since their windows had ended.
    pub(super) uncounted: u64,
    /// Granted hits that nobody used before they ended.
    pub(super) stranded: u64,
}

// === impl Fetch ===

impl Fetch {
    /// Puts `hits`, of which `missing` are not there, among those that are waited for. Which round will ask for them: the
    /// next one, for one that is under way asks for others.
    pub(super) fn wait_for(&mut self, hits: Hits, missing: Hits) -> u64 {
        let missing = missing.0.max(1);
        self.waiting = self.waiting.saturating_add(hits.0);
        self.least = if self.least == 0 { missing } else { self.least.min(missing) };
        self.round + 1
    }

    /// Whether the store has answered `round`.
    pub(super) const fn has_answered(&self, round: u64) -> bool {
        self.round > round || (self.round == round && !self.running)
    }
}

// === impl Owed ===

impl Owed {
    const fn op(&self) -> Op {
        match self.returned {
            Some(until) => Op::Return { hits: self.hits.unsigned_abs(), until },
            None => Op::Add { hits: self.hits },
        }
    }
}

// === impl LocalCounter ===

impl LocalCounter {
    pub(super) fn new(target: Arc<Target>, interval: Period, now: Timestamp) -> Self {
        Self {
            view: target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect(),
            alone: None,
            rule: None,
            unsent: SmallVec::new(),
            in_flight: Vec::new(),
            leases: SmallVec::new(),
            denied_until: Timestamp::default(),
            room: capacity(&target.tiers),
            flow: Flow::new(now),
            acknowledged: 0,
            instances: 1,
            heard_at: None,
            demand: Demand::default(),
            asked_at: now,
            sync: FlushSchedule::new(interval),
            fetch: Fetch::default(),
            target,
        }
    }

    /// Makes sure that it is about what `ask` is about now, which has its key.
    pub(super) fn meet(&mut self, check: &LimitCheck<'_>, now: Timestamp) {
        let rule = check.rule.id();
        if rule.is_some() && rule == self.rule {
            return;
        }
        if !self.target.is_of(check) {
            self.adopt(Arc::new(Target::of(check)), now);
        }
        self.rule = rule;
    }

    /// Takes over changed limits; starts afresh with changed algorithms or periods, as every store does.
    fn adopt(&mut self, target: Arc<Target>, now: Timestamp) {
        let same = |(old, new): (&Tier, &Tier)| {
            old.period == new.period
                && std::mem::discriminant(&old.algorithm) == std::mem::discriminant(&new.algorithm)
        };
        let tiers = (&self.target.tiers, &target.tiers);
        if tiers.0.len() == tiers.1.len() && tiers.0.iter().zip(tiers.1).all(same) {
            // what was granted under another limit is not to be spent under this one
            self.denied_until = Timestamp::default();
            self.give_leases_back();
            self.target = target;
        } else {
            let fetch = std::mem::take(&mut self.fetch);
            let interval = self.sync.interval;
            *self = Self { fetch, ..Self::new(target, interval, now) };
        }
    }

    /// Decides by the view, and counts. Where there is a bucket, each hit weighs in the view as if every one of `instances`
    /// had taken it: a bucket forgets what was taken from it when it was empty, so what all admit of the same inflow is never
    /// made up for, as it is in windows.
    pub(super) fn count(
        &mut self,
        instances: usize,
        direction: Direction,
        refused: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        self.instances = instances;
        let tiers = &self.target.tiers;
        let has_bucket = tiers.iter().any(|tier| matches!(tier.algorithm, Algorithm::TokenBucket(_)));
        // but no more than fit at all
        let most = capacity(tiers) / hits.0.max(1);
        let weight = if has_bucket { (instances as u64).min(most).max(1) } else { 1 };
        let weighed = Hits(hits.0.saturating_mul(weight));
        let decision = decide(tiers, &mut self.view, refused, direction, weighed, now);
        if direction == Direction::GiveBack {
            self.owe(negative(hits.0), now);
        } else if !decision.over {
            self.owe(positive(hits.0), now);
        } else if refused == OverLimitPolicy::Count {
            self.owe_as(Owed { at: now, hits: positive(hits.0), refused: hits.0, returned: None });
        }
        decision
    }

    /// Decides as if every one of `instances` did the same and none could tell the others: each hit counts for all of
    /// them.
    pub(super) fn count_without_store(
        &mut self,
        instances: usize,
        direction: Direction,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let instances = instances as u64;
        let alone = self.alone.get_or_insert_with(|| Box::new(self.view.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, alone, OverLimitPolicy::Ignore, direction, all, now);
        if direction == Direction::GiveBack || !decision.over {
            self.count_anyway(direction, hits, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts `hits` that were let through unasked; what the answer tells is as of before.
    pub(super) fn count_unasked(&mut self, hits: Hits, now: Timestamp) -> Decision {
        let decision =
            decision_from_store(&self.target.tiers, &self.view, OverLimitPolicy::Ignore, false, Hits(0), now);
        self.count_anyway(Direction::Take, hits, now);
        decision
    }

    /// Counts `hits` that were not decided by the view: that is to know of them, too, for the store may be back before it
    /// has been told.
    fn count_anyway(&mut self, direction: Direction, hits: Hits, now: Timestamp) {
        for (tier, counter) in self.target.tiers.iter().zip(&mut self.view) {
            match direction {
                Direction::Take => counter.take(tier, now, hits),
                Direction::GiveBack => counter.give_back(tier, now, hits),
            }
        }
        self.owe(if direction == Direction::Take { positive(hits.0) } else { negative(hits.0) }, now);
    }

    /// How it stands by the view, counting nothing.
    pub(super) fn look(&self, now: Timestamp) -> Decision {
        let mut decision =
            decision_from_store(&self.target.tiers, &self.view, OverLimitPolicy::Ignore, false, Hits(0), now);
        let left = u64::from(decision.remaining).saturating_add(self.leased());
        decision.remaining = u32::try_from(left).unwrap_or(u32::MAX);
        decision.over =
            self.view.iter().zip(&self.target.tiers).any(|(c, tier)| !c.probe(tier, now, Hits(0)).fits);
        decision
    }

    /// Notes that the store has to be told of `hits` at `now`.
    pub(super) fn owe(&mut self, hits: i64, now: Timestamp) {
        self.owe_as(Owed { at: now, hits, refused: 0, returned: None });
    }

    fn owe_as(&mut self, owed: Owed) {
        if owed.hits == 0 {
            return;
        }
        let tiers = &self.target.tiers;
        match self.unsent.last_mut() {
            Some(last) if last.returned == owed.returned && same_windows(tiers, last.at, owed.at) => {
                last.hits = last.hits.saturating_add(owed.hits);
                last.refused = last.refused.saturating_add(owed.refused);
            }
            _ => self.unsent.push(owed),
        }
    }

    /// Notes that what is left of `lease` goes back.
    fn give_back(&mut self, lease: Lease) {
        let (hits, returned) = (negative(lease.left), Some(lease.until));
        self.owe_as(Owed { at: lease.at, hits, refused: 0, returned });
    }

    /// Hits that were taken here since the store told last.
    fn own(&self) -> u64 {
        self.unsent.iter().chain(&self.in_flight).filter_map(|owed| u64::try_from(owed.hits).ok()).sum()
    }

    /// Whether the store should be told before the interval is over: half-way to the end of what remained, at the rate at
    /// which all instances take; once this instance has taken its part of it, or will have by the time that an answer is
    /// here; when it takes more than was planned for; and when it is heard of for the first time, or has not been for long. What
    /// is not urgent travels together.
    pub(super) fn is_urgent(&self, instances: usize, round_trip: Period, now: Timestamp) -> bool {
        let Some(heard_at) = self.heard_at else {
            return self.in_flight.is_empty();
        };
        let own = self.own();
        // it is being told already, and is looked at again when that is done
        if own == 0 || !self.in_flight.is_empty() {
            return false;
        }
        let soon = own.saturating_add(self.demand.in_the_next(round_trip, now));
        let part = self.room / instances as u64;
        soon >= part
            || self.sync.is_outrun(own, part)
            || self.sync.early.is_some_and(|early| now >= early)
            || now.since(heard_at).as_nanos() > 2 * self.sync.pause.as_nanos()
    }
}

/// Hits that are taken, as the store is told of them.
pub(super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

/// Hits that are given back, as the store is told of them.
pub(super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}
