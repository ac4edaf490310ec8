//! Limits on requests in flight. First the running requests that a request names end; then its other limits decide; and
//! if none of them rejects it, it takes its places last.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::{LimitError, Limiter, LoadedRules, Rejection, at_once};
use weir_limit::{
    Basis, Code, Coordination, Decision, Descriptor, DescriptorMatch, Direction, Entry, Hits, IN_FLIGHT,
    LimitCheck, Matched, OverLimitPolicy, Period, PlaceAsk, PlaceCheck, PlaceDecision, PlaceDecisions,
    PlaceName, Request, RequestName, RuleRef, Scope, Tally, Timestamp, Verdict,
};
use weir_observe::{PlaceStats, RuleCounts};
use weir_store::{Decisions, EndedPlace, PlaceRequest, Store, StoreError, TakeOptions};

/// The bits of a name's serial that count the names of this instance; those above are the instance's own.
const SEQUENCE_BITS: u32 = 24;

/// Numbers the names of this instance.
#[derive(Debug)]
pub(super) struct Serials {
    instance: u64,
    next: AtomicU64,
}

/// A descriptor of a running request.
struct Running<'a> {
    name: PlaceName,
    descriptor: Descriptor<'a>,
}

impl<S: Store> Limiter<S> {
    /// Ends the requests that `request` names, and takes its hits and then its places, all within the same wait.
    #[cold]
    pub(super) async fn take_in_flight(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matched: &Matched<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<(Decisions, Option<Box<PlaceDecisions>>), LimitError> {
        if matched.has_ends {
            self.end_named(loaded, request, matched, now).await?;
        }
        if !matched.places.is_empty() && !options.takes_names {
            return Err(LimitError::NoName);
        }
        let begun = Instant::now();
        let decisions = self.take_matched(loaded, matched, now, options).await?;
        if matched.places.is_empty() {
            return Ok((decisions, None));
        }
        let options = TakeOptions { wait: Some(self.wait_left(options, begun)), ..options };
        let placed = self.take_places(loaded, request, matched, &decisions, now, options).await?;
        Ok((decisions, Some(Box::new(placed))))
    }

    /// Ends the requests that `request` names, and counts their costs.
    async fn end_named(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matched: &Matched<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let named = request.descriptors.iter().zip(&matched.matches);
        let named = named.filter(|(_, found)| matches!(found, DescriptorMatch::Running));
        let named: Vec<(&Descriptor<'_>, Option<RequestName>)> = named
            .map(|(descriptor, _)| {
                let whole = descriptor.entries.first().filter(|_| descriptor.entries.len() == 1);
                (descriptor, whole.and_then(|entry| RequestName::read(entry.value)))
            })
            .collect();
        let mut running = Vec::new();
        for (descriptor, whole) in &named {
            let of = |name, entries| Running {
                name,
                descriptor: Descriptor {
                    entries,
                    limit: None,
                    hits: descriptor.hits,
                    refund: descriptor.refund,
                },
            };
            match (whole, &*descriptor.entries) {
                (Some(whole), _) => {
                    running.extend(whole.descriptors().map(|entries| of(whole.place, entries)));
                }
                (None, [above @ .., last]) => {
                    let name = RequestName::read_place(last.value).filter(|_| !above.is_empty());
                    running.extend(name.map(|name| of(name, above.into())));
                }
                (None, []) => {}
            }
        }
        let costs = self.end(loaded, request.domain, running, false, now).await?;
        self.take_costs(loaded, &costs, now).await
    }

    /// Lets callers that wait for these places ask for them.
    fn note_ends(&self, ended: &[EndedPlace<'_>], now: Timestamp) {
        for place in ended {
            self.asking.places.note_end(place.check.key, now);
        }
    }

    /// Ends the request of `name`, an answer in `domain`, as a request with the entry `in_flight` does. `cost` is what it
    /// has cost, if that is known.
    pub async fn end_request(
        &self,
        domain: &str,
        name: &str,
        cost: Option<Hits>,
        now: Timestamp,
    ) -> Result<(), LimitError> {
        let entries = std::iter::once(Entry { key: IN_FLIGHT, value: name }).collect();
        let descriptor = Descriptor { entries, hits: cost.map(|cost| cost.0), ..Descriptor::default() };
        let request = Request { domain, descriptors: std::iter::once(descriptor).collect(), hits: 0 };
        self.decide(&request, now, |_| ()).await
    }

    /// [`Limiter::end_request`] for callers that do not wait, and may have no runtime.
    pub fn end_soon(self: &Arc<Self>, domain: Box<str>, name: Box<str>, cost: Option<Hits>, now: Timestamp) {
        let limiter = Arc::clone(self);
        let mut end = Box::pin(async move {
            // a store that does not reply gives the place up
            let _ = limiter.end_request(&domain, &name, cost, now).await;
        });
        // stores wait with the timers of a runtime
        let runtime = self.asking.runtime();
        let _entered = runtime.map(Handle::enter);
        if at_once(end.as_mut()).is_none()
            && let Some(runtime) = runtime
        {
            drop(runtime.spawn(end));
        }
    }

    /// Ends the request of `name`, an answer in `domain`, as one that was not admitted.
    pub async fn undo(&self, domain: &str, name: &str, now: Timestamp) {
        let loaded = self.loaded.load_full();
        let (Some(loaded), Some(read)) = (loaded, RequestName::read(name)) else { return };
        let running = read.descriptors().map(|entries| Running {
            name: read.place,
            descriptor: Descriptor { entries, ..Descriptor::default() },
        });
        // a store that does not reply gives the places up
        let _ = self.end(&loaded, domain, running.collect(), true, now).await;
    }

    /// Returns the request that costs of `running` make.
    async fn end<'a>(
        &self,
        loaded: &LoadedRules,
        domain: &'a str,
        running: Vec<Running<'a>>,
        is_undone: bool,
        now: Timestamp,
    ) -> Result<Request<'a>, StoreError> {
        let (names, descriptors): (Vec<PlaceName>, SmallVec<_>) =
            running.into_iter().map(|Running { name, descriptor }| (name, descriptor)).unzip();
        let mut asked = Request { domain, descriptors, hits: 0 };
        if loaded.rules.check_patterns(&asked).is_err() {
            asked.descriptors.clear();
            return Ok(asked);
        }
        let places =
            asked.descriptors.iter().map(|descriptor| loaded.rules.place(domain, &descriptor.entries));
        let places: Vec<Option<PlaceCheck<'_>>> = places.collect();
        let shared = self.store.shared_counts();
        let is_alone = |check: &PlaceCheck<'_>| {
            shared.store.is_none() || shared.requested(&check.rule.rule) == Coordination::Local
        };
        let mut ended = Vec::new();
        for (name, check) in names.into_iter().zip(&places) {
            let Some(check) = check else { continue };
            let stats = loaded.places(check);
            if is_alone(check) && !self.serials.made(name) {
                stats.end_elsewhere();
            } else {
                ended.push(EndedPlace { check, stats, name: Some(name), awaits: false, is_undone });
            }
        }
        self.store.end_places(&ended, now).await?;
        self.note_ends(&ended, now);
        let is_cost = |i: usize, descriptor: &Descriptor<'_>| {
            let meters = places[i].is_some_and(|check| RuleRef::Compiled(check.rule).meters());
            meters && !descriptor.refund && descriptor.hits.is_some_and(|hits| hits > 0)
        };
        let costs = asked.descriptors.iter().enumerate().filter(|(i, descriptor)| is_cost(*i, descriptor));
        let costs = costs.map(|(_, descriptor)| descriptor.clone()).collect();
        Ok(Request { descriptors: costs, ..asked })
    }

    async fn take_costs(
        &self,
        loaded: &LoadedRules,
        costs: &Request<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if costs.descriptors.is_empty() {
            return Ok(());
        }
        let matched = Matched::new(&loaded.rules, costs);
        let checks = matched.enforced();
        let decisions = self.store.take_with(checks, Scope::Descriptor, now, TakeOptions::default()).await?;
        for (check, decision) in checks.iter().zip(&decisions) {
            self.record_check(loaded, check, decision, Scope::Descriptor);
        }
        Ok(())
    }

    /// Takes the places that a request asks for, if its `decisions` admit it. If it is rejected then, it keeps none, and
    /// what it has taken beside them is given back.
    async fn take_places(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matched: &Matched<'_>,
        decisions: &Decisions,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<PlaceDecisions, StoreError> {
        let modes = &self.settings.modes;
        let mut placed = PlaceDecisions::default();
        placed.decisions.resize(matched.places.len(), None);
        for (_, check) in matched.places.iter().filter(|(_, check)| check.ask == PlaceAsk::Nothing) {
            loaded.places(check).end_unnamed();
        }
        if Verdict::new(request, matched, decisions, modes).code == Code::OverLimit {
            return Ok(placed);
        }
        let is_over = |descriptor: usize| matches!(matched.matches[descriptor], DescriptorMatch::Limited(i) if decisions[i].over);
        let asked: SmallVec<[(usize, &PlaceCheck<'_>); 2]> = (0..)
            .zip(&matched.places)
            .filter(|(_, (descriptor, check))| check.ask != PlaceAsk::Nothing && !is_over(*descriptor))
            .map(|(i, (_, check))| (i, check))
            .collect();
        if asked.is_empty() {
            return Ok(placed);
        }
        let lines = &self.asking.places;
        let is_late = |check: &PlaceCheck<'_>| check.ask == PlaceAsk::Take && !lines.admits_other(check.key);
        if let Some((i, check)) = asked.iter().find(|(_, check)| is_late(check)) {
            // callers that wait are first
            let refused = PlaceDecision { over: true, before: check.limit.most, basis: Basis::Counters };
            placed.decisions[*i] = Some(refused);
            let is_void = self.scope_of(matched) == Scope::Request;
            self.give_back_beside(matched, decisions, |i| is_void || is_refused(matched, &placed, i), now)
                .await;
            return Ok(placed);
        }
        let mut requests: SmallVec<[PlaceRequest<'_>; 2]> = SmallVec::new();
        for (_, check) in &asked {
            let (stats, rejects) = (loaded.places(check), check.rejects(modes.quota) && !modes.shadow);
            requests.push(PlaceRequest { check, stats, rejects, reserved: Hits(0) });
        }
        let taken = match self.store.take_places(&requests, self.serials.next(), now, options).await {
            Ok(taken) => taken,
            Err(error) => {
                self.give_back_beside(matched, decisions, |_| true, now).await;
                return Err(error);
            }
        };
        for ((i, check), decision) in asked.iter().zip(&taken.decisions) {
            placed.decisions[*i] = Some(*decision);
            if check.ask == PlaceAsk::Take && decision.over {
                lines.refuse_other(check.key);
            }
        }
        let is_refused = |i: usize| is_refused(matched, &placed, i);
        let is_rejected =
            Verdict::with_places(request, matched, decisions, Some(&placed), modes).code == Code::OverLimit;
        if is_rejected {
            let has_place = |(PlaceRequest { check, .. }, decision): &(&PlaceRequest<'_>, &PlaceDecision)| {
                check.ask == PlaceAsk::Take && !decision.over
            };
            let undone = requests.iter().zip(&taken.decisions).filter(has_place);
            let undone: SmallVec<[EndedPlace<'_>; 2]> = undone
                .map(|(PlaceRequest { check, stats, .. }, _)| EndedPlace {
                    check,
                    stats,
                    name: Some(taken.name),
                    awaits: false,
                    is_undone: true,
                })
                .collect();
            self.store.end_places(&undone, now).await?;
            self.note_ends(&undone, now);
        }
        let is_void = is_rejected && self.scope_of(matched) == Scope::Request;
        if is_void || matched.enforced().iter().enumerate().any(|(i, _)| is_refused(i)) {
            self.give_back_beside(matched, decisions, |i| is_void || is_refused(i), now).await;
        }
        placed.name = Some(taken.name).filter(|_| !is_rejected);
        Ok(placed)
    }

    /// Gives back what `decisions` have taken, of the checks with these indexes.
    async fn give_back_beside(
        &self,
        matched: &Matched<'_>,
        decisions: &[Decision],
        of: impl Fn(usize) -> bool,
        now: Timestamp,
    ) {
        let taken = matched.enforced().iter().zip(decisions).enumerate().filter(|(i, (check, decision))| {
            of(*i) && check.direction == Direction::Take && !decision.over && !check.stands()
        });
        let back: SmallVec<[LimitCheck<'_>; 2]> = taken
            .map(|(_, (check, _))| LimitCheck { direction: Direction::GiveBack, ..check.copied() })
            .collect();
        // what a store cannot be told stays counted
        let _ = self.store.take_with(&back, Scope::Descriptor, now, TakeOptions::default()).await;
    }

    /// Counts decisions on places whose rules have nothing beside them, and reports rejections.
    #[cold]
    pub(super) fn record_places(
        &self,
        loaded: &LoadedRules,
        matched: &Matched<'_>,
        placed: &PlaceDecisions,
        verdict: &Verdict<'_>,
        now: Timestamp,
    ) {
        for ((descriptor, place), decision) in matched.places.iter().zip(&placed.decisions) {
            let Some(PlaceDecision { over, before, basis }) = *decision else { continue };
            let decision = Decision { over, before: Hits(before.into()), basis, ..Decision::unknown(RETRY) };
            let hits = Hits(u64::from(place.ask == PlaceAsk::Take));
            let alone = LimitCheck { hits, ..place.as_limit_check() };
            let beside = match matched.matches[*descriptor] {
                DescriptorMatch::Limited(i) => Some(&matched.checks[i]),
                _ => None,
            };
            let most = place.limit.most;
            if beside.is_none() {
                let policy = OverLimitPolicy::Ignore;
                let tally = Tally::of(&decision, most, policy, hits, self.settings.near_limit_ratio);
                let counts = RuleCounts {
                    total_hits: hits.0,
                    over_limit: tally.over_limit,
                    near_limit: tally.near_limit,
                    within_limit: tally.within_limit,
                    shadow_mode: if place.rule.shadow_mode() { tally.over_limit } else { 0 },
                    ..RuleCounts::default()
                };
                self.with_stats(loaded, &alone, hits, |stats| stats.add(counts));
            }
            if over && verdict.code == Code::OverLimit {
                self.report_refusal(loaded, beside.unwrap_or(&alone), &decision, most, now);
            }
        }
    }

    fn report_refusal(
        &self,
        loaded: &LoadedRules,
        check: &LimitCheck<'_>,
        decision: &Decision,
        most: u32,
        now: Timestamp,
    ) {
        if let Some(log) = self.rejection_log.as_deref()
            && !check.rule.shadow_mode()
            && self.is_reported(loaded, check, decision, now)
        {
            let mode = check.rule.declared().and_then(|rule| self.store.shared_counts().mode_now(rule));
            log.rejected(&Rejection { check, decision, in_flight: Some(most), at: now, mode });
        }
    }
}

/// When to ask again, as the answer says.
const RETRY: Period = Period::from_secs(1);

/// Whether check `i` is beside a place that was refused.
fn is_refused(matched: &Matched<'_>, placed: &PlaceDecisions, i: usize) -> bool {
    matched.places.iter().zip(&placed.decisions).any(|((descriptor, _), decision)| {
        matches!(matched.matches[*descriptor], DescriptorMatch::Limited(check) if check == i)
            && decision.is_some_and(|decision| decision.over)
    })
}

/// The decisions as they count: a rule whose place is refused rejects its hits.
#[cold]
pub(super) fn counted(matched: &Matched<'_>, decisions: &[Decision], placed: &PlaceDecisions) -> Decisions {
    let decide = |(i, decision): (usize, &Decision)| Decision {
        over: decision.over || is_refused(matched, placed, i),
        ..*decision
    };
    decisions.iter().enumerate().map(decide).collect()
}

// === impl LoadedRules ===

impl LoadedRules {
    pub(super) fn places(&self, check: &PlaceCheck<'_>) -> &Arc<PlaceStats> {
        self.stats[check.rule.index()].places()
    }
}

// === impl Serials ===

impl Default for Serials {
    /// The instance is random: few run at a time, and the time is a part of the name, too.
    fn default() -> Self {
        let bits = PlaceName::SERIAL_BITS - SEQUENCE_BITS;
        Self { instance: RandomState::new().hash_one(0) >> (64 - bits), next: AtomicU64::new(0) }
    }
}

impl Serials {
    pub(super) fn next(&self) -> u64 {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed) & ((1 << SEQUENCE_BITS) - 1);
        self.instance << SEQUENCE_BITS | sequence
    }

    /// Whether this instance has made `name`.
    fn made(&self, name: PlaceName) -> bool {
        name.serial() >> SEQUENCE_BITS == self.instance
    }
}
