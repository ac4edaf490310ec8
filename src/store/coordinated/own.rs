//! What an instance counts by itself, in its memory, and asks nobody: a limit under `local`, its own part under `split`.
//!
//! Parts follow the number of instances, and their counters the store's clock. A fixed window has the part by the number
//! that counts when it begins, until it ends. Before a sliding window or a bucket gets more than it had, what others
//! have admitted by their larger parts must have ended, or flowed in again: so it has the part by the largest number of
//! that time.

use smallvec::SmallVec;

use super::{
    Coordinated,
    client::InstanceNumbers,
    fallback::denied,
    modes::{Made, record_mode},
};
use crate::{
    limit::{
        Algorithm, Basis, Coordination, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OwnPart,
        Period, Reservation, ReservationRequest, Scope, Tier, Tiers, Timestamp, line::Estimate, part,
    },
    observe::DecisionRecord,
    store::{Decisions, remote::Remote},
};

/// What this instance has of the limit of a check.
struct Own<'a> {
    /// On the store's clock, if it is a part.
    at: Timestamp,
    /// None for all of the limit.
    part: Option<OwnPart<'a>>,
    /// What decides instead of the part, or admits it, because the members may have changed.
    policy: Option<OnStoreFailure>,
    /// The time until this instance has a part of all tiers, if it has had none of some yet: these have no capacity.
    begins: Option<Period>,
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Decides `checks`, which have one counter and one limit, with no other request between.
    pub(super) fn decide_own(
        &self,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> SmallVec<[Made; 2]> {
        let own = self.own(checks[0], now);
        record_mode(record, own.mode());
        let (counts, count) = (&self.client.metrics.decisions, checks.len() as u64);
        match own.mode() {
            _ if own.policy.is_some() => counts.fallback.add(count),
            Coordination::Split => counts.split.add(count),
            _ => counts.local.add(count),
        }
        let parts = checks.iter().map(|check| {
            let takes_none = own.is_without_part() && check.direction == Direction::Take;
            LimitCheck { hits: if takes_none { Hits(0) } else { check.hits }, ..own.of(check) }
        });
        let parts: SmallVec<[LimitCheck<'_>; 1]> = parts.collect();
        let decided = self.memory.decide(&parts, scope, own.at).into_iter().zip(&parts);
        let decided = decided.map(|(decision, part)| match part.direction {
            Direction::Take => own.decide_by_policy(own.report(decision, part.hits)),
            Direction::GiveBack => own.report(decision, part.hits),
        });
        let decisions: Decisions = decided.collect();
        let is_rejected = scope == Scope::Request && decisions.iter().any(|decision| decision.over);
        let is_counted = !is_rejected && !own.is_without_part();
        decisions.into_iter().map(|decision| Made { is_counted, ..Made::new(decision, own.at) }).collect()
    }

    pub(super) fn look_own(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        let own = self.own(check, now);
        let looked = own.report(self.memory.look(&own.of(check), hits, own.at), hits);
        if hits == Hits(0) { looked } else { own.decide_by_policy(looked) }
    }

    /// `at` is when the hits of `check` were counted.
    pub(super) fn give_back_own(&self, check: &LimitCheck<'_>, at: Timestamp) {
        self.memory.give_back(&self.own_at(check, at).of(check), at);
    }

    /// What a line of callers may expect. None if that is not certain.
    pub(super) fn estimate_own(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        let own = self.own(check, now);
        if own.policy.is_some() || own.begins.is_some() {
            return None;
        }
        let counters = self.memory.counters(&own.of(check), own.at);
        Some(Estimate { counters, at: own.at, part: own.part.map(|part| part.tiers) })
    }

    pub(super) fn reserve_own(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let own = self.own(check, now);
        // what is reserved may be used when the members are known to have changed
        let is_stopped = own.policy == Some(OnStoreFailure::Deny);
        let least = if is_stopped { Hits(u64::MAX) } else { request.least };
        let asked = ReservationRequest { least, ..request };
        let mut reserved = self.memory.reserve_now(&own.of(check), asked, own.at);
        reserved.decision = own.report(reserved.decision, request.least.max(Hits(1)));
        if is_stopped {
            reserved.decision.reset = OnStoreFailure::DENY_RETRY;
        }
        // on the caller's clock
        reserved.until = now.after(reserved.until.since(own.at));
        reserved
    }

    pub(super) fn release_own(
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
        let is_part = self.table.requested_mode(check) == Coordination::Split;
        self.own_at(check, if is_part { self.client.time_at(now).now } else { now })
    }

    fn own_at<'c>(&self, check: &'c LimitCheck<'_>, at: Timestamp) -> Own<'c> {
        if self.table.requested_mode(check) != Coordination::Split {
            return Own { at, part: None, policy: None, begins: None };
        }
        let numbers = self.client.membership.numbers();
        let failure = self.client.failure_policy(check);
        let is_answered = numbers.is_answered();
        // the store will say soon which part this instance has
        let is_awaited = !is_answered && !self.client.is_unavailable() && numbers.is_certain(at, failure);
        let (mut is_certain, mut begins, mut tiers) = (is_answered || is_awaited, None, Tiers::new());
        for tier in check.tiers() {
            let is_fixed = tier.algorithm == Algorithm::FixedWindow;
            let begun = if is_fixed { at.window_start(tier.period) } else { at };
            is_certain &= is_awaited || numbers.is_certain(begun, failure);
            let part = match part_of(&numbers, tier, failure, at) {
                _ if !is_answered && !is_awaited => part::of_tier(tier, part::UNKNOWN_INSTANCES.into()),
                Ok(part) => part,
                Err(wait) => {
                    begins = begins.max(Some(wait));
                    part::nothing_of(tier)
                }
            };
            tiers.push(part);
        }
        let part = Some(OwnPart { of: check.rule.copied(), tiers });
        Own { at, part, policy: (!is_certain).then_some(failure), begins }
    }
}

/// The error is the time until there is a part at all.
fn part_of(
    numbers: &InstanceNumbers,
    tier: &Tier,
    failure: OnStoreFailure,
    at: Timestamp,
) -> Result<Tier, Period> {
    let begins = numbers.begins(failure).ok_or(OnStoreFailure::DENY_RETRY)?;
    let largest = |from, to| numbers.between(from, to).max().unwrap_or(part::UNKNOWN_INSTANCES.into());
    if tier.algorithm == Algorithm::FixedWindow {
        let start = at.window_start(tier.period);
        if begins > start {
            return Err(begins.before(Period::from_nanos(1)).window_end(tier.period).since(at));
        }
        return Ok(part::of_tier(tier, largest(start, start)));
    }
    // what others have admitted since then matters still
    let memory = part::memory(tier, largest(at, at));
    let since = at.before(memory);
    if begins > since {
        return Err(begins.after(memory).since(at).max(OnStoreFailure::DENY_RETRY));
    }
    Ok(part::of_tier(tier, largest(since, at)))
}

// === impl Own ===

impl Own<'_> {
    const fn mode(&self) -> Coordination {
        if self.part.is_some() { Coordination::Split } else { Coordination::Local }
    }

    fn of<'p>(&'p self, check: &'p LimitCheck<'_>) -> LimitCheck<'p> {
        self.part.as_ref().map_or_else(|| check.copied(), |part| check.of_part(part))
    }

    /// Then hits are not counted.
    const fn is_without_part(&self) -> bool {
        matches!(self.policy, Some(OnStoreFailure::Allow | OnStoreFailure::Deny))
    }

    /// Returns what becomes of `looked` if something else than the part decides.
    fn decide_by_policy(&self, looked: Decision) -> Decision {
        match self.policy {
            Some(OnStoreFailure::Allow) => Decision { over: false, ..looked },
            Some(OnStoreFailure::Deny) => denied(looked),
            Some(OnStoreFailure::Local) | None => looked,
        }
    }

    /// Returns `decision` with the part that `hits` were counted against.
    fn report(&self, decision: Decision, hits: Hits) -> Decision {
        let Some(OwnPart { of, tiers }) = &self.part else { return decision };
        let (own, whole) = (tiers[decision.tier].capacity(), of.tiers()[decision.tier].capacity());
        // until a part is known, the limit itself is reported
        let begins = self.begins.filter(|_| own == 0);
        // a larger part may have room for them
        let may_fit_later = decision.over && hits > Hits(own.into()) && hits <= Hits(whole.into());
        let later = begins.unwrap_or(decision.reset.max(OnStoreFailure::DENY_RETRY));
        Decision {
            share: begins.is_none().then_some(own),
            reset: if may_fit_later { later } else { decision.reset },
            basis: if self.policy.is_some() { Basis::Fallback } else { decision.basis },
            ..decision
        }
    }
}
