//! The `split` mode: this instance enforces its own part of the limit, by the number of instances, and asks nobody.
//!
//! Counters are in this instance's memory, by the store's clock. A fixed window has the part by the number that counts
//! when it begins, until it ends. Before a sliding window or a bucket gets more than it had, what others have admitted
//! by their larger parts must have ended, or flowed in again: so it has the part by the largest number of that time.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::client::{InstanceNumbers, StoreClient};
use crate::{
    limit::{
        Algorithm, Basis, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OwnPart, Period,
        Reservation, ReservationRequest, Scope, Tier, Tiers, Timestamp, line::Estimate, part,
    },
    store::{Decisions, MemoryStore, remote::Remote},
};

/// The largest step back of the store's clock that is not followed: windows do not begin again.
const LARGEST_STEP: Period = Period::from_secs(1);

/// The resolution in which the latest instant is kept, so that decisions rarely write it.
const RESOLUTION: Period = Period::from_millis(1);

/// Just before the end of a window no more is admitted than the next has room for: another thread may have begun it.
const GUARD: Period = Period::from_millis(2);

pub(super) struct Split<R> {
    client: Arc<StoreClient<R>>,
    /// Of a decision, in nanoseconds.
    latest: AtomicU64,
}

/// This instance's part of the limit of a check.
pub(super) struct Own<'a> {
    part: OwnPart<'a>,
    /// What decides instead of the part, or admits it, because the members may have changed.
    policy: Option<OnStoreFailure>,
    /// The earliest time after which a larger part may have room for the hits, if they do not fit this one.
    next: Period,
    /// The time until this instance has a part of all tiers, if it has had none of some yet: these have no capacity.
    begins: Option<Period>,
}

// === impl Split ===

impl<R: Remote> Split<R> {
    pub(super) const fn new(client: Arc<StoreClient<R>>) -> Self {
        Self { client, latest: AtomicU64::new(0) }
    }

    /// From this instance's clock to the store's. Does not step back by less than [`LARGEST_STEP`].
    pub(super) fn time_at(&self, now: Timestamp) -> Timestamp {
        let at = self.client.time_at(now).now;
        let latest = Timestamp::from_nanos(self.latest.load(Ordering::Relaxed));
        if at.since(latest) >= RESOLUTION {
            self.latest.fetch_max(at.as_nanos(), Ordering::Relaxed);
        } else if latest.since(at) > LARGEST_STEP {
            self.latest.store(at.as_nanos(), Ordering::Relaxed);
        } else {
            return at.max(latest);
        }
        at
    }

    /// `at` is on the store's clock. Hits are counted in `memory`.
    pub(super) fn decide(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        scope: Scope,
        at: Timestamp,
    ) -> Decision {
        let own = self.own(check, at);
        self.count(&own);
        if let Some(decided) = own.decide_without_store(memory, check, at) {
            return decided;
        }
        own.report(memory.decide_one(&check.of_part(&own.part), scope, at), check.hits)
    }

    /// Decides `checks` with no other request between: all or none of a request's, or those of one counter in their order.
    /// None if something else than the parts decides one of them.
    pub(super) fn decide_together<'c, 'd: 'c>(
        &self,
        memory: &MemoryStore,
        checks: impl Iterator<Item = &'c LimitCheck<'d>> + Clone,
        scope: Scope,
        at: Timestamp,
    ) -> Option<Decisions> {
        let own: Vec<Own<'_>> = checks.clone().map(|check| self.own(check, at)).collect();
        if own.iter().any(Own::is_without_store) {
            return None;
        }
        for own in &own {
            self.count(own);
        }
        let parts: Vec<LimitCheck<'_>> =
            checks.clone().zip(&own).map(|(check, own)| check.of_part(&own.part)).collect();
        let made = memory.decide(&parts, scope, at).into_iter().zip(checks.zip(&own));
        Some(made.map(|(made, (check, own))| own.report(made, check.hits)).collect())
    }

    pub(super) fn look(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        hits: Hits,
        at: Timestamp,
    ) -> Decision {
        let own = self.own(check, at);
        let looked = own.report(memory.look(&check.of_part(&own.part), hits, at), hits);
        let is_status = hits == Hits(0) && own.policy == Some(OnStoreFailure::Deny);
        if is_status { looked } else { own.decide_by_policy(looked) }
    }

    pub(super) fn undo(&self, memory: &MemoryStore, check: &LimitCheck<'_>, at: Timestamp) {
        let own = self.own(check, at);
        memory.give_back(&check.of_part(&own.part), at);
    }

    /// What a line of callers may expect: as much as present and coming members leave. None if that is not certain.
    pub(super) fn estimate(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> Option<Estimate> {
        let at = self.time_at(now);
        let own = self.own(check, at);
        if own.policy.is_some() || own.begins.is_some() {
            return None;
        }
        // of the fewest instances each has the most
        let numbers = self.client.membership.numbers();
        let fewest = numbers.between(at, Timestamp::from_nanos(u64::MAX)).min()?;
        let part = check.tiers().iter().map(|tier| part::of_tier(tier, fewest)).collect();
        Some(Estimate { counters: memory.counters(&check.of_part(&own.part), at), at, part: Some(part) })
    }

    pub(super) fn reserve(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let at = self.time_at(now);
        let own = self.own(check, at);
        self.count(&own);
        // what is reserved may be used when the members are known to have changed
        let is_stopped = own.policy == Some(OnStoreFailure::Deny);
        let request = if is_stopped {
            ReservationRequest { least: Hits(u64::MAX), want: Hits(u64::MAX), ..request }
        } else {
            request
        };
        let mut reserved = memory.reserve_now(&check.of_part(&own.part), request, at);
        reserved.decision = own.report(reserved.decision, request.least.max(Hits(1)));
        if is_stopped {
            reserved.decision.reset = OnStoreFailure::DENY_RETRY;
        }
        // on the caller's clock
        reserved.until = now.after(reserved.until.since(at));
        reserved
    }

    pub(super) fn release(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) {
        let at = self.time_at(now);
        let own = self.own(check, at);
        memory.release_now(&check.of_part(&own.part), reservation, unused, at);
    }

    fn count(&self, own: &Own<'_>) {
        let decisions = &self.client.metrics.decisions;
        if own.policy.is_some() {
            decisions.fallback.add(1);
        } else {
            decisions.split.add(1);
        }
    }

    fn own<'c>(&self, check: &'c LimitCheck<'_>, at: Timestamp) -> Own<'c> {
        let numbers = self.client.membership.numbers();
        let failure = self.client.failure_policy(check);
        let is_answered = numbers.is_answered();
        let mut is_certain = is_answered || !self.client.is_unavailable();
        let (mut next, mut begins, mut tiers) = (Period::default(), None, Tiers::new());
        for tier in check.tiers() {
            is_certain &= numbers.is_certain(if is_answered { decided_at(tier, at) } else { at }, failure);
            let part = match part_of(&numbers, tier, failure, at) {
                _ if !is_answered => part::of_tier(tier, part::UNKNOWN_INSTANCES.into()),
                Ok((part, wait)) => {
                    next = next.max(wait);
                    part
                }
                Err(wait) => {
                    begins = begins.max(Some(wait));
                    part::nothing_of(tier)
                }
            };
            tiers.push(part);
        }
        if is_certain && !is_answered {
            // the store will say soon which part this instance has
            tiers = check.tiers().iter().map(part::nothing_of).collect();
            begins = Some(OnStoreFailure::DENY_RETRY);
        }
        let policy = (!is_certain).then_some(failure);
        Own { part: OwnPart { of: check.rule.copied(), tiers }, policy, next, begins }
    }
}

/// The instant whose number of instances decides the part of `tier` at `at`.
const fn decided_at(tier: &Tier, at: Timestamp) -> Timestamp {
    match tier.algorithm {
        Algorithm::FixedWindow => at.window_start(tier.period),
        Algorithm::SlidingWindow | Algorithm::TokenBucket(_) => at,
    }
}

/// Also returns the time after which there may be more. The error is the time until there is a part at all.
fn part_of(
    numbers: &InstanceNumbers,
    tier: &Tier,
    failure: OnStoreFailure,
    at: Timestamp,
) -> Result<(Tier, Period), Period> {
    let begins = numbers.begins(failure).ok_or(OnStoreFailure::DENY_RETRY)?;
    let largest = |from, to| numbers.between(from, to).max().unwrap_or(part::UNKNOWN_INSTANCES.into());
    if matches!(tier.algorithm, Algorithm::SlidingWindow | Algorithm::TokenBucket(_)) {
        // what others have admitted since then matters still
        let memory = part::memory(tier, largest(at, at));
        let since = at.before(memory);
        if begins > since {
            return Err(begins.after(memory).since(at).max(OnStoreFailure::DENY_RETRY));
        }
        return Ok((part::of_tier(tier, largest(since, at)), OnStoreFailure::DENY_RETRY));
    }
    let (start, end) = (at.window_start(tier.period), at.window_end(tier.period));
    if begins > start {
        return Err(begins.before(Period::from_nanos(1)).window_end(tier.period).since(at));
    }
    let mut instances = largest(start, start);
    if end.since(at) <= GUARD.min(Period::from_nanos(tier.period.as_nanos() / 64)) {
        instances = instances.max(largest(end, end));
    }
    Ok((part::of_tier(tier, instances), end.since(at)))
}

// === impl Own ===

impl Own<'_> {
    fn is_without_store(&self) -> bool {
        matches!(self.policy, Some(OnStoreFailure::Allow | OnStoreFailure::Deny))
    }

    /// None if the part decides. Such hits are not counted.
    fn decide_without_store(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        at: Timestamp,
    ) -> Option<Decision> {
        if check.direction == Direction::GiveBack || !self.is_without_store() {
            return None;
        }
        let looked = self.report(memory.look(&check.of_part(&self.part), Hits(0), at), Hits(0));
        Some(self.decide_by_policy(looked))
    }

    /// Returns what becomes of `looked` if something else than the part decides.
    fn decide_by_policy(&self, looked: Decision) -> Decision {
        match self.policy {
            Some(OnStoreFailure::Allow) => Decision { over: false, ..looked },
            Some(OnStoreFailure::Deny) => {
                Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
            }
            Some(OnStoreFailure::Local) | None => looked,
        }
    }

    /// Returns `decision` with the part that `hits` were counted against.
    fn report(&self, decision: Decision, hits: Hits) -> Decision {
        let capacity = self.part.tiers[decision.tier].capacity();
        let whole = self.part.of.tiers()[decision.tier].capacity();
        let may_fit_later = decision.over && hits > Hits(capacity.into()) && hits <= Hits(whole.into());
        if let Some(begins) = self.begins
            && capacity == 0
        {
            // a part is not known yet, so that the limit itself is reported
            let reset = if may_fit_later { begins } else { decision.reset };
            return Decision { reset, ..decision };
        }
        let reset = if may_fit_later { decision.reset.max(self.next) } else { decision.reset };
        let basis = if self.policy.is_some() { Basis::Fallback } else { decision.basis };
        Decision { share: Some(capacity), reset, basis, ..decision }
    }
}
