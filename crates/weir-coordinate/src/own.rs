//! What an instance counts by itself, in its memory, and asks nobody: a limit under `local`, its own part under `split`.
//!
//! Parts follow the number of instances, and their counters the store's clock. A fixed window has the part by the number
//! that counts when it begins, until it ends. Before a sliding window or a bucket gets more than it had, what others
//! have admitted by their larger parts must have ended, or flowed in again: so it has the part by the largest number of
//! that time.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    client::{InstanceNumbers, StoreClient},
    counter::TryVerdict,
    modes::record_mode,
};
use weir_limit::{
    Coordination, Decision, Hits, LimitCheck, OnStoreFailure, OwnPart, Period, Reservation,
    ReservationRequest, Scope, Tier, Tiers, Timestamp, line::Estimate, part,
};
use weir_observe::DecisionRecord;
use weir_store::{CounterSight, MemoryStore, SightSource, remote::Remote};

pub(super) struct OwnCounters<R> {
    pub(super) memory: MemoryStore,
    client: Arc<StoreClient<R>>,
}

/// What this instance has of the limit of a check.
struct Own<'a> {
    /// On the store's clock, if it is a part.
    at: Timestamp,
    /// None for all of the limit.
    part: Option<OwnPart<'a>>,
    /// The time until this instance has a part of all tiers, if it has none of some: these have no capacity.
    begins: Option<Period>,
}

// === impl OwnCounters ===

impl<R: Remote> OwnCounters<R> {
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Self {
        Self { memory: MemoryStore::new(client.settings.max_counters), client }
    }

    /// Decides `checks`, which have one counter and one limit, with no other request between.
    pub(super) fn decide(
        &self,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> SmallVec<[TryVerdict; 2]> {
        let own = self.own(checks[0], now);
        let counts = &self.client.metrics.decisions;
        let (mode, count) = match own.part {
            Some(_) => (Coordination::Split, &counts.split),
            None => (Coordination::Local, &counts.local),
        };
        record_mode(record, mode);
        count.add(checks.len() as u64);
        let parts: SmallVec<[LimitCheck<'_>; 1]> = checks.iter().map(|check| own.of(check)).collect();
        let decisions = self.memory.decide(&parts, scope, own.at);
        let is_counted = scope != Scope::Request || !decisions.iter().any(|decision| decision.over);
        let verdict = |decision| TryVerdict { is_counted, ..TryVerdict::new(own.report(decision), own.at) };
        decisions.into_iter().map(verdict).collect()
    }

    pub(super) fn look(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        let own = self.own(check, now);
        own.report(self.memory.look(&own.of(check), hits, own.at))
    }

    /// `at` is when the hits of `check` were counted.
    pub(super) fn give_back(&self, check: &LimitCheck<'_>, at: Timestamp) {
        self.memory.give_back(&self.own_at(check, at).of(check), at);
    }

    /// What a line of callers may expect. None if that is not known.
    pub(super) fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        let own = self.own(check, now);
        if own.begins.is_some() {
            return None;
        }
        let counters = self.memory.counters(&own.of(check), own.at);
        Some(Estimate { counters, at: own.at, part: own.part.map(|part| part.tiers) })
    }

    pub(super) fn sight(
        &self,
        check: &LimitCheck<'_>,
        pool: Option<Decision>,
        now: Timestamp,
    ) -> CounterSight {
        let own = self.own(check, now);
        let counters = self.memory.counters(&own.of(check), own.at);
        let sight = CounterSight::of(counters, pool, SightSource::Memory, own.at);
        CounterSight { part: own.part.map(|part| part.tiers), ..sight }
    }

    pub(super) fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let own = self.own(check, now);
        let reserved = self.memory.reserve_now(&own.of(check), request, own.at);
        // on the caller's clock
        let until = now.after(reserved.until.since(own.at));
        Reservation { until, decision: own.report(reserved.decision), ..reserved }
    }

    pub(super) fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) {
        let own = self.own(check, now);
        self.memory.release_now(&own.of(check), reservation, unused, own.at);
    }

    fn own<'c>(&self, check: &'c LimitCheck<'_>, now: Timestamp) -> Own<'c> {
        let is_part = self.client.requested_mode(check) == Coordination::Split;
        self.own_at(check, if is_part { self.client.time_at(now).now } else { now })
    }

    fn own_at<'c>(&self, check: &'c LimitCheck<'_>, at: Timestamp) -> Own<'c> {
        if self.client.requested_mode(check) != Coordination::Split {
            return Own { at, part: None, begins: None };
        }
        let (numbers, failure) = (self.client.membership.numbers(), self.client.failure_policy(check));
        let (mut begins, mut tiers) = (None, Tiers::new());
        for tier in check.tiers() {
            tiers.push(part_of(&numbers, tier, failure, at).unwrap_or_else(|wait| {
                begins = begins.max(Some(wait));
                part::nothing_of(tier)
            }));
        }
        Own { at, part: Some(OwnPart { of: check.rule, tiers }), begins }
    }
}

/// The error is the time until there is a part at all.
fn part_of(
    numbers: &InstanceNumbers,
    tier: &Tier,
    failure: OnStoreFailure,
    at: Timestamp,
) -> Result<Tier, Period> {
    if failure == OnStoreFailure::Deny && numbers.is_silent(at) {
        return Err(OnStoreFailure::DENY_RETRY);
    }
    let begins = numbers.begins(failure);
    // what others have admitted since then matters still
    let (since, to, first) = if tier.has_windows() {
        let start = tier.window(at).0;
        (start, start, tier.window(begins.before(Period::from_nanos(1))).1)
    } else {
        let memory = part::memory(tier, numbers.largest(at, at));
        (at.before(memory), at, begins.after(memory))
    };
    if begins > since {
        return Err(first.since(at).max(OnStoreFailure::DENY_RETRY));
    }
    Ok(part::of_tier(tier, numbers.largest(since, to)))
}

// === impl Own ===

impl Own<'_> {
    fn of<'p>(&'p self, check: &'p LimitCheck<'_>) -> LimitCheck<'p> {
        self.part.as_ref().map_or_else(|| check.copied(), |part| check.of_part(part))
    }

    fn report(&self, decision: Decision) -> Decision {
        let Some(part) = &self.part else { return decision };
        let own = part.tiers[decision.tier].capacity();
        // until a part is known, the limit itself is reported
        let begins = self.begins.filter(|_| own == 0);
        Decision {
            share: begins.is_none().then_some(own),
            reset: begins.filter(|_| decision.over).unwrap_or(decision.reset),
            ..decision
        }
    }
}
