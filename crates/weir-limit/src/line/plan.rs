//! The plan of a line: its counters as they will be when all waiters have been served.

use smallvec::SmallVec;

use super::waiters::Waiters;
use crate::{
    algorithm::{CounterState, Refill},
    tier::{Tier, Tiers, capacity},
    units::{Hits, Period, Timestamp},
};

/// The counters of a rule, one for each tier.
pub(super) type Counters = SmallVec<[CounterState; 1]>;

/// A copy of the counters, advanced to the end of the line. It says when a newcomer would be served.
#[derive(Clone, Debug)]
pub(super) struct LineForecast {
    /// The tiers, less the part of callers that do not wait.
    tiers: Tiers,
    counters: Counters,
    /// The instant at which the last waiter will be served.
    pub(super) at: Timestamp,
}

/// When `hits` fit, `from` at the earliest; none if never, since a tier without requests refills nothing.
pub(super) fn ready(
    tiers: &[Tier],
    counters: &[CounterState],
    from: Timestamp,
    hits: Hits,
) -> Option<Timestamp> {
    let mut at = from;
    loop {
        // a tier that the hits fit goes on fitting them, so each turn is the last one for some tier
        let waits = tiers.iter().zip(counters).map(|(tier, counter)| counter.wait(tier, at, hits));
        let longest = waits.max().unwrap_or_default();
        if longest == Period::default() {
            return Some(at);
        }
        at = at.after(longest);
        if at == Timestamp::from_nanos(u64::MAX) {
            return None;
        }
    }
}

pub(super) fn fits(tiers: &[Tier], counters: &[CounterState], now: Timestamp, hits: Hits) -> bool {
    tiers.iter().zip(counters).all(|(tier, counter)| counter.probe(tier, now, hits).fits)
}

pub(super) fn take(tiers: &[Tier], counters: &mut [CounterState], now: Timestamp, hits: Hits) {
    for (tier, counter) in tiers.iter().zip(counters) {
        counter.take(tier, now, hits);
    }
}

// === impl LineForecast ===

impl LineForecast {
    /// The plan of an empty line, which leaves `part` of each `period` to callers that do not wait.
    pub(super) fn new(
        tiers: &[Tier],
        counters: &[CounterState],
        part: u32,
        period: Period,
        now: Timestamp,
    ) -> Self {
        let mut tiers = Tiers::from(tiers);
        for tier in tiers.iter_mut().filter(|tier| part > 0 && tier.period == period) {
            tier.requests = tier.requests.saturating_sub(part).max(1);
        }
        Self { tiers, counters: counters.into(), at: now }
    }

    /// Behind all others, `now` or later. Hits beyond the waiters' part of a window wait until one is new.
    pub(super) fn ready(&self, now: Timestamp, hits: Hits) -> Option<Timestamp> {
        let from = self.at.max(now);
        if hits.0 <= capacity(&self.tiers) {
            return ready(&self.tiers, &self.counters, from, hits);
        }
        let mut raised = self.tiers.clone();
        for tier in &mut raised {
            tier.requests = tier.requests.max(u32::try_from(hits.0).unwrap_or(u32::MAX));
        }
        ready(&raised, &self.counters, from, hits)
    }

    pub(super) fn add(&mut self, instant: Timestamp, hits: Hits) {
        take(&self.tiers, &mut self.counters, instant, hits);
        self.at = instant;
    }

    /// Those that can never be served are left out.
    pub(super) fn add_each(&mut self, waiters: &Waiters) {
        for waiter in waiters.iter() {
            if let Some(instant) = self.ready(self.at, waiter.hits) {
                self.add(instant, waiter.hits);
            }
        }
    }

    /// [`LineForecast::add_singles`] then takes a step for each opening, not for each hit.
    pub(super) fn has_few_openings(&self) -> bool {
        match &*self.tiers {
            [_] => true,
            tiers => !tiers.iter().any(is_continuous),
        }
    }

    /// Adds `left` waiters of one hit each: at each instant at which hits fit, as many as do.
    pub(super) fn add_singles(&mut self, mut left: u64) {
        while left > 0 {
            let Some(instant) = self.ready(self.at, Hits(1)) else { return };
            let room = self.room(instant).clamp(1, left);
            self.add(instant, Hits(room));
            left -= room;
            if left > 0
                && let [tier] = &*self.tiers
                && is_continuous(tier)
            {
                return self.drain(left);
            }
        }
    }

    /// For an empty bucket that refills evenly: the last waiter is served when as many tokens have flowed in.
    fn drain(&mut self, left: u64) {
        let ([tier], [bucket]) = (&*self.tiers, &mut *self.counters) else { return };
        let burst = u32::try_from(left).ok().and_then(|more| tier.capacity().checked_add(more));
        let Some(burst) = burst else { return self.drain_slowly(left) };
        // a bucket that is larger by the hits has the room that this one will have
        let larger = tier.with_limits(tier.requests, burst);
        bucket.take(&larger, self.at, Hits(left));
        let wait = bucket.wait(&larger, self.at, Hits(left));
        self.at = self.at.after(wait);
        // dates the state as of that instant
        bucket.take(&larger, self.at, Hits(1));
        bucket.give_back(&larger, self.at, Hits(1));
    }

    fn drain_slowly(&mut self, left: u64) {
        for _ in 0..left {
            let Some(instant) = self.ready(self.at, Hits(1)) else { return };
            self.add(instant, Hits(1));
        }
    }

    pub(super) fn room(&self, now: Timestamp) -> u64 {
        let rooms = self.tiers.iter().zip(&self.counters);
        let rooms = rooms.map(|(tier, counter)| counter.availability(tier, now).remaining);
        rooms.min().unwrap_or_default().into()
    }
}

fn is_continuous(tier: &Tier) -> bool {
    tier.refills() && tier.bucket().refill != Refill::Step
}
