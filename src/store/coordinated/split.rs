//! The `split` mode: this instance enforces its own part of the limit, by the number of instances, and asks nobody.
//!
//! Counters are in this instance's memory, by the store's clock. A fixed window has the part of the members that are in
//! force when it begins, until it ends. Before a sliding window or a bucket gets more than it had, what others have
//! admitted by their larger parts must have ended, or flowed in again: so it has the least of the parts of that time.
//!
//! When the first instances ever start, nobody has admitted anything. So limits that matter for long begin then, some
//! seconds after the first of them, instead of with their next window.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::client::{AskedHits, Epochs, StoreClient};
use crate::{
    limit::{
        Algorithm, Basis, Decision, Direction, Hits, LimitCheck, OnStoreFailure, OwnPart, Period,
        Reservation, ReservationRequest, Scope, Tier, Tiers, Timestamp,
        demand::FollowedWindow,
        line::Estimate,
        part::{self, Place},
    },
    store::{Decisions, MemoryStore, remote::Remote},
};

/// The largest step back of the store's clock, as this instance estimates it, that is not followed: windows do not
/// begin again.
const LARGEST_STEP: Period = Period::from_secs(1);

/// The resolution in which the latest instant is kept, so that decisions rarely write it.
const RESOLUTION: Period = Period::from_millis(1);

/// The time before the end of a fixed window in which no more is admitted than the next one has room for: another
/// thread may have begun it already.
const GUARD: Period = Period::from_millis(2);

/// Decides by this instance's parts.
pub(super) struct Split<R> {
    client: Arc<StoreClient<R>>,
    /// The latest instant of a decision, in nanoseconds.
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

    /// Returns the instant on the store's clock when this instance's shows `now`. It does not step back by less than
    /// [`LARGEST_STEP`].
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

    /// Decides `check` at the instant `at` on the store's clock, and counts its hits in `memory`.
    pub(super) fn decide(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        scope: Scope,
        at: Timestamp,
    ) -> Decision {
        let own = self.own_asked(check, asked(check), at);
        self.count(&own);
        if let Some(decided) = own.decide_without_store(memory, check, at) {
            return decided;
        }
        own.report(memory.decide_one(&check.of_part(&own.part), scope, at), check.hits)
    }

    /// Decides `checks`, which have one counter and one limit, as [`Split::decide`] does, with no other request between.
    pub(super) fn decide_in_order(
        &self,
        memory: &MemoryStore,
        checks: &[&LimitCheck<'_>],
        scope: Scope,
        at: Timestamp,
    ) -> Decisions {
        let own: Vec<Own<'_>> = checks.iter().map(|check| self.own_asked(check, asked(check), at)).collect();
        if own.iter().any(Own::is_without_store) {
            return checks.iter().map(|check| self.decide(memory, check, scope, at)).collect();
        }
        for own in &own {
            self.count(own);
        }
        let parts: Vec<LimitCheck<'_>> =
            checks.iter().zip(&own).map(|(check, own)| check.of_part(&own.part)).collect();
        let made = memory.decide(&parts, scope, at).into_iter();
        made.zip(checks.iter().zip(&own)).map(|(made, (check, own))| own.report(made, check.hits)).collect()
    }

    /// Decides `checks`, and counts their hits only if all of them are admitted. None if that takes more than this
    /// instance's parts.
    pub(super) fn decide_together(
        &self,
        memory: &MemoryStore,
        checks: &[LimitCheck<'_>],
        at: Timestamp,
    ) -> Option<Decisions> {
        let own: Vec<Own<'_>> = checks.iter().map(|check| self.own_asked(check, asked(check), at)).collect();
        if own.iter().any(Own::is_without_store) {
            return None;
        }
        for own in &own {
            self.count(own);
        }
        let parts: Vec<LimitCheck<'_>> =
            checks.iter().zip(&own).map(|(check, own)| check.of_part(&own.part)).collect();
        let decisions = memory.decide(&parts, Scope::Request, at).into_iter();
        Some(
            decisions
                .zip(checks)
                .zip(&own)
                .map(|((made, check), own)| own.report(made, check.hits))
                .collect(),
        )
    }

    /// Returns the decision about `hits` of `check`, after `earlier` ones, without counting.
    pub(super) fn look(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        earlier: Hits,
        hits: Hits,
        at: Timestamp,
    ) -> Decision {
        let own = self.own(check, at);
        let looked = own.report(memory.look_after(&check.of_part(&own.part), earlier, hits, at), hits);
        match own.policy {
            Some(OnStoreFailure::Deny) if hits > Hits(0) => {
                Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
            }
            Some(OnStoreFailure::Allow) => Decision { over: false, ..looked },
            _ => looked,
        }
    }

    /// Gives back the hits that `check` took at the instant `at`.
    pub(super) fn undo(&self, memory: &MemoryStore, check: &LimitCheck<'_>, at: Timestamp) {
        let own = self.own(check, at);
        memory.give_back(&check.of_part(&own.part), at);
    }

    /// Counts the hits of `check` as demand.
    pub(super) fn note_demand(&self, check: &LimitCheck<'_>, now: Timestamp) {
        self.own_asked(check, asked(check), self.time_at(now));
    }

    /// Returns what a line of callers may expect of this instance's part: as much as the present members, and those to
    /// come, leave it in any window; if it follows demand, all of the limit from the next window on. None if the part is
    /// not certain, or is spread over its window and follows demand.
    pub(super) fn estimate(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> Option<Estimate> {
        let at = self.time_at(now);
        let own = self.own(check, at);
        let epochs = self.client.membership.epochs();
        epochs.at(at).filter(|_| own.policy.is_none())?;
        if check.rule.declared().is_some_and(|rule| rule.coordination.follows_demand) {
            let ([tier], [part]) = (check.tiers(), &own.part.tiers[..]) else { return None };
            if tier.algorithm != Algorithm::FixedWindow {
                return None;
            }
            let mut counters = memory.counters(&check.of_part(&own.part), at);
            // what others have in this window
            counters[0].take(tier, at, Hits((tier.requests - part.requests).into()));
            return Some(Estimate { counters, at, part: None });
        }
        let places = epochs.between(at, Timestamp::from_nanos(u64::MAX)).flatten();
        // of the fewest members each has the most
        let place = places.min_by_key(|place| place.instances)?;
        let part = check.tiers().iter().map(|tier| place.most_of(tier)).collect();
        Some(Estimate { counters: memory.counters(&check.of_part(&own.part), at), at, part: Some(part) })
    }

    /// Takes hits of `check` in advance. What is `asked` is demand.
    pub(super) fn reserve(
        &self,
        memory: &MemoryStore,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        asked: AskedHits,
        now: Timestamp,
    ) -> Reservation {
        let at = self.time_at(now);
        let own = self.own_asked(check, asked, at);
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

    /// Gives `unused` hits of `reservation` back.
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

    /// Returns what this instance has of `tier` at the instant `at`, by demand, and the earliest time after which it
    /// may have room for `hits` if it never has room for as many now. None if it has no part yet, and the time until it
    /// has one. What is `asked` is demand. `counter` identifies the counter.
    fn part_by_demand(
        &self,
        epochs: &Epochs,
        tier: &Tier,
        window: FollowedWindow,
        (hits, asked): (Hits, AskedHits),
        counter: u64,
        at: Timestamp,
    ) -> (Option<Tier>, Period) {
        let (start, end) = (window.start(at), window.start(at).after(tier.period));
        let places = [epochs.at(window_begins(epochs, tier, at)), epochs.at(end)];
        let even = places.map(|place| place.map_or(0, |place| place.of_interval(tier.requests)));
        let parts =
            self.client.membership.demands.ask(window.key(counter), window, asked, [start, end], even);
        // nobody has a part by demand without one by number
        let [mut requests, next] =
            [0, 1].map(|i| if places[i].is_none() { 0 } else { parts[i].min(tier.requests) });
        if at < opening(epochs, tier) {
            return (None, opening(epochs, tier).since(at));
        }
        if places[0].is_none() {
            return (None, end.since(at));
        }
        if end.since(at) <= guard(tier) {
            requests = requests.min(next);
        }
        let wait = if hits <= Hits(requests.into()) { Period::default() } else { end.since(at) };
        let algorithm = match tier.algorithm {
            Algorithm::SmoothWindow { burst } => {
                let part = u64::from(burst) * u64::from(requests) / u64::from(tier.requests.max(1));
                Algorithm::SmoothWindow { burst: u32::try_from(part).unwrap_or(burst).max(1) }
            }
            algorithm => algorithm,
        };
        (Some(Tier { requests, algorithm, ..tier.clone() }), wait)
    }

    fn count(&self, own: &Own<'_>) {
        let decisions = &self.client.caller.metrics.decisions;
        if own.policy.is_some() {
            decisions.fallback.add(1);
        } else {
            decisions.split.add(1);
        }
    }

    /// Returns what this instance has of the limit of `check` at the instant `at`.
    fn own<'c>(&self, check: &'c LimitCheck<'_>, at: Timestamp) -> Own<'c> {
        self.own_asked(check, AskedHits::default(), at)
    }

    /// Like [`Split::own`]. What is `asked` is demand.
    fn own_asked<'c>(&self, check: &'c LimitCheck<'_>, asked: AskedHits, at: Timestamp) -> Own<'c> {
        let epochs = self.client.membership.epochs();
        let follows_demand = check.rule.declared().is_some_and(|rule| rule.coordination.follows_demand);
        let policy = self.client.failure_policy(check);
        let is_lost = !epochs.is_answered() && self.client.is_unavailable();
        let (mut key, mut is_certain, mut next, mut begins) = (None, !is_lost, Period::default(), None);
        let mut tiers = Tiers::new();
        for tier in check.tiers() {
            let mut key = || *key.get_or_insert_with(|| check.split_key());
            let (part, needs) = if epochs.is_answered() {
                let (part, wait) = match follows_demand.then(|| followed(tier)).flatten() {
                    Some(window) => {
                        self.part_by_demand(&epochs, tier, window, (check.hits, asked), key(), at)
                    }
                    None => part_of(&epochs, tier, check.hits, key, at),
                };
                if part.is_some() {
                    next = next.max(wait);
                } else {
                    begins = begins.max(Some(wait));
                }
                (part.unwrap_or_else(|| part::nothing_of(tier)), window_begins(&epochs, tier, at))
            } else {
                (Place::unranked(part::UNKNOWN_INSTANCES.into()).of_tier(tier), at)
            };
            is_certain &= match policy {
                // a few rejections more, rather than a hit too many
                OnStoreFailure::Deny => epochs.is_complete(needs),
                OnStoreFailure::Local | OnStoreFailure::Allow => epochs.is_certain(needs),
            };
            tiers.push(part);
        }
        if is_certain && !epochs.is_answered() {
            // the store will say soon which part this instance has
            tiers = check.tiers().iter().map(part::nothing_of).collect();
            begins = Some(OnStoreFailure::DENY_RETRY);
        }
        let policy = (!is_certain).then_some(policy);
        Own { part: OwnPart { of: check.rule.copied(), tiers }, policy, next, begins }
    }
}

/// Returns what `check` asks for.
fn asked(check: &LimitCheck<'_>) -> AskedHits {
    let new = if check.direction == Direction::GiveBack { Hits(0) } else { check.hits };
    AskedHits { new, ..AskedHits::default() }
}

/// Returns the window of `tier`, whose parts may follow demand; none if they cannot, since the limit came with a
/// request.
fn followed(tier: &Tier) -> Option<FollowedWindow> {
    let is_window = matches!(tier.algorithm, Algorithm::FixedWindow | Algorithm::SmoothWindow { .. });
    let is_whole = tier.period.as_nanos().is_multiple_of(1_000_000);
    (is_window && is_whole).then_some(FollowedWindow { limit: tier.requests, period: tier.period })
}

/// Returns the instant before which nobody has had a part of `tier`, if that is known; otherwise that of the epoch.
fn opening(epochs: &Epochs, tier: &Tier) -> Timestamp {
    epochs.opening(part::memory(tier, NonZeroU32::MIN)).unwrap_or_default()
}

/// Returns the instant whose members have a part of `tier` at the instant `at`.
fn window_begins(epochs: &Epochs, tier: &Tier, at: Timestamp) -> Timestamp {
    match tier.algorithm {
        Algorithm::FixedWindow | Algorithm::SmoothWindow { .. } => {
            start_of(tier, part::window_number(tier, at)).max(opening(epochs, tier)).min(at)
        }
        Algorithm::SlidingWindow | Algorithm::TokenBucket(_) => at,
    }
}

fn start_of(tier: &Tier, window: u64) -> Timestamp {
    Timestamp::from_nanos(window.saturating_mul(tier.period.as_nanos()))
}

/// Returns what the instance of `epochs` has of `tier` at the instant `at`, and the earliest time after which it may
/// have room for `hits` if it never has room for as many now. None if it has no part yet, and the time until it has one.
/// `key` identifies the counter.
fn part_of(
    epochs: &Epochs,
    tier: &Tier,
    hits: Hits,
    key: impl FnOnce() -> u64,
    at: Timestamp,
) -> (Option<Tier>, Period) {
    let opening = opening(epochs, tier);
    if at < opening {
        return (None, opening.since(at));
    }
    // once no time without a part matters any more
    let until_part = |memory: Period| {
        let since = epochs.part_since(at).map_or(Period::default(), |from| from.after(memory).since(at));
        (None, since.max(OnStoreFailure::DENY_RETRY))
    };
    let since =
        |period: Period| Timestamp::from_nanos(at.as_nanos().saturating_sub(period.as_nanos())).max(opening);
    match tier.algorithm {
        Algorithm::FixedWindow | Algorithm::SmoothWindow { .. } => {
            part_of_window(epochs, tier, hits, key, at)
        }
        Algorithm::SlidingWindow => {
            let parts = epochs.between(since(tier.period), at);
            let parts = parts.map(|place| place.map(|place| place.of_interval(tier.requests)));
            match parts.min().flatten() {
                Some(requests) => {
                    (Some(Tier { requests, ..tier.clone() }), at_least_for_retry(requests, hits))
                }
                None => until_part(tier.period),
            }
        }
        Algorithm::TokenBucket(_) => {
            if let Some(place) = place_since_full(epochs, tier, since, at) {
                let part = place.of_tier(tier);
                let wait = at_least_for_retry(part.capacity(), hits);
                return (Some(part), wait);
            }
            let place = epochs.part_since(at).and_then(|from| epochs.at(from.max(at)));
            until_part(part::memory(tier, place.map_or(NonZeroU32::MIN, |place| place.instances)))
        }
    }
}

/// Returns the time after which a caller tries again whose hits do not fit the whole part.
fn at_least_for_retry(part: u32, hits: Hits) -> Period {
    if hits > Hits(part.into()) { OnStoreFailure::DENY_RETRY } else { Period::default() }
}

/// Returns the time before the end of a window of `tier` in which no more is admitted than the next one has room for.
fn guard(tier: &Tier) -> Period {
    GUARD.min(Period::from_nanos(tier.period.as_nanos() / 64))
}

fn part_of_window(
    epochs: &Epochs,
    tier: &Tier,
    hits: Hits,
    key: impl FnOnce() -> u64,
    at: Timestamp,
) -> (Option<Tier>, Period) {
    let window = part::window_number(tier, at);
    let end = start_of(tier, window.saturating_add(1));
    let (place, next) = (epochs.at(window_begins(epochs, tier, at)), epochs.at(end));
    let is_divided = |place: Option<Place>| {
        place.is_some_and(|place| !tier.requests.is_multiple_of(place.instances.get()))
    };
    let key = if is_divided(place) || is_divided(next) { key() } else { 0 };
    let part =
        |place: Option<Place>, window| place.map_or(0, |place| place.of_window(tier.requests, window, key));
    let mut requests = part(place, window);
    if end.since(at) <= guard(tier) {
        requests = requests.min(part(next, window + 1));
    }
    let is_too_small = place.is_none() || hits > Hits(requests.into());
    let wait = is_too_small.then(|| {
        let later = match place.or(next) {
            Some(place) => place.next_window(tier.requests, hits.0, window, key).map(|w| start_of(tier, w)),
            None => epochs.next_part(at).map(|from| {
                let first = Timestamp::from_nanos(from.as_nanos().saturating_add(tier.period.as_nanos() - 1));
                start_of(tier, part::window_number(tier, first))
            }),
        };
        later.unwrap_or(end).max(end).since(at)
    });
    let part = place.map(|place| Tier { requests, algorithm: place.of_algorithm(tier), ..tier.clone() });
    (part, wait.unwrap_or_default())
}

/// Returns the smallest place that the instance of `epochs` has had since a bucket of `tier` that is full at `at` may
/// have been empty; none if it had no part for some time.
fn place_since_full(
    epochs: &Epochs,
    tier: &Tier,
    since: impl FnOnce(Period) -> Timestamp,
    at: Timestamp,
) -> Option<Place> {
    let instances = epochs.at(at)?.instances;
    let filled = part::memory(tier, instances);
    epochs
        .between(since(filled), at)
        .reduce(|a, b| {
            let (a, b) = (a?, b?);
            // of different divisions, what everybody has of the smaller parts
            Some(if a == b { a } else { Place::unranked(a.instances.max(b.instances)) })
        })
        .flatten()
}

// === impl Own ===

impl Own<'_> {
    /// Returns whether something else than the part decides.
    fn is_without_store(&self) -> bool {
        matches!(self.policy, Some(OnStoreFailure::Allow | OnStoreFailure::Deny))
    }

    /// Decides `check` if something else than the part does. Such hits are not counted.
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
        Some(if self.policy == Some(OnStoreFailure::Allow) {
            Decision { over: false, ..looked }
        } else {
            Decision { over: true, remaining: 0, reset: OnStoreFailure::DENY_RETRY, ..looked }
        })
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
