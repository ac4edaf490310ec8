//! Requests in flight. First the running requests that a request names end; then its other limits decide; and if none of
//! them rejects it, it takes its places last, which remember what it has reserved.

use std::{
    collections::BTreeMap,
    future::{Future, ready},
    hash::{BuildHasher as _, RandomState},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::{LimitError, Limiter, LoadedRules, Rejection, at_once, find};
use weir_limit::{
    Basis, Code, Coordination, Decision, Descriptor, DescriptorMatch, Direction, Entry, Hits, IN_FLIGHT,
    LimitCheck, Matched, OverLimitPolicy, Period, PlaceAsk, PlaceCheck, PlaceDecision, PlaceDecisions,
    PlaceName, Request, RequestName, Scope, Tally, Timestamp, Verdict,
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

/// What a rejected request gives back of what it has taken: its own hits, and what it has reserved beside them.
struct Returned {
    own: bool,
    reserved: bool,
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
        matched: &mut Matched<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<(Decisions, Option<Box<PlaceDecisions>>), LimitError> {
        let begun = Instant::now();
        if matched.has_ends {
            self.end_named(loaded, request, matched, now).await?;
        }
        if !options.takes_names && matched.places.iter().any(|(_, place)| place.is_limited()) {
            return Err(LimitError::NoName);
        }
        self.add_reserved(loaded, matched, now).await?;
        let left = || TakeOptions { wait: Some(self.wait_left(options, begun)), ..options };
        let decisions = self.take_matched(loaded, matched, now, left()).await?;
        if matched.places.is_empty() {
            return Ok((decisions, None));
        }
        let options = left();
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
        self.end(loaded, request.domain, running, false, now).await
    }

    /// Lets callers that wait for these places ask for them.
    fn note_ends(&self, ended: &[EndedPlace<'_>], now: Timestamp) {
        for place in ended {
            self.asking.places.note_end(place.check.key, now);
        }
    }

    /// Ends the request of `name`, an answer in `domain`, as a request with the entry `in_flight` does, although its caller
    /// may drop the future, and may have no runtime. `cost` is what it has cost, if that is known.
    pub fn end_request(
        self: &Arc<Self>,
        domain: Box<str>,
        name: Box<str>,
        cost: Option<Hits>,
        now: Timestamp,
    ) -> Pin<Box<dyn Future<Output = Result<(), LimitError>> + Send>> {
        let limiter = Arc::clone(self);
        let mut end = Box::pin(async move {
            let entries = std::iter::once(Entry { key: IN_FLIGHT, value: &name }).collect();
            let descriptor = Descriptor { entries, hits: cost.map(|cost| cost.0), ..Descriptor::default() };
            let descriptors = std::iter::once(descriptor).collect();
            limiter.decide(&Request { domain: &domain, descriptors, hits: 0 }, now, |_| ()).await
        });
        // stores wait with the timers of a runtime
        let runtime = self.asking.runtime();
        let entered = runtime.map(Handle::enter);
        let ended = at_once(end.as_mut());
        drop(entered);
        match (ended, runtime) {
            (Some(ended), _) => Box::pin(ready(ended)),
            (None, Some(runtime)) => {
                let task = runtime.spawn(end);
                Box::pin(async { task.await.unwrap_or(Err(STOPPED)) })
            }
            (None, None) => end,
        }
    }

    /// Whether `request`, whose decision may wait, ends requests in flight or reports costs. These count once they were read,
    /// so it has to be decided whatever becomes of its caller.
    pub fn ends(&self, request: &Request<'_>) -> bool {
        let has_ends =
            |matched: &Matched<'_>| matched.has_ends || matched.checks.iter().any(LimitCheck::is_cost);
        self.store.alone().is_none()
            && find(self.loaded.load().as_deref(), request, LoadedRules::check_values)
                .is_ok_and(|(_, matched)| has_ends(&matched))
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
        if self.recorder.is_on() {
            self.record_undone(domain, name, now);
        }
    }

    /// Ends `running` requests, in their order, and counts what they cost beyond what they have reserved.
    async fn end<'a>(
        &self,
        loaded: &LoadedRules,
        domain: &'a str,
        running: Vec<Running<'a>>,
        is_undone: bool,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (names, descriptors): (Vec<PlaceName>, SmallVec<_>) =
            running.into_iter().map(|Running { name, descriptor }| (name, descriptor)).unzip();
        let asked = Request { domain, descriptors, hits: 0 };
        if loaded.rules.check_patterns(&asked).is_err() {
            return Ok(());
        }
        let found = names.iter().zip(&asked.descriptors).filter_map(|(name, descriptor)| {
            Some((*name, descriptor, loaded.rules.place(domain, &descriptor.entries)?))
        });
        let found: Vec<(PlaceName, &Descriptor<'_>, PlaceCheck<'_>)> = found.collect();
        let shared = self.store.shared_counts();
        let is_alone = |check: &PlaceCheck<'_>| {
            shared.store.is_none() || shared.requested(&check.rule.rule) == Coordination::Local
        };
        let cost_of = |i: usize| {
            let (_, descriptor, check) = &found[i];
            descriptor.hits.filter(|_| check.rule.rule.meters() && !descriptor.refund).map(Hits)
        };
        // of several descriptors about one place, one with a cost settles
        let (mut ended, mut settling) = (Vec::new(), Vec::new());
        let mut before = BTreeMap::new();
        for (i, (name, _, check)) in
            found.iter().enumerate().filter(|(_, (name, ..))| *name != PlaceName::NONE)
        {
            self.return_given_up(loaded, check, now).await;
            let stats = loaded.places(check);
            if is_alone(check) && !self.serials.made(*name) {
                stats.end_elsewhere();
            } else if let Some(end) = before.get(&(check.key, *name)) {
                let settles: &mut usize = &mut settling[*end];
                *settles = if cost_of(*settles).is_none() { i } else { *settles };
            } else {
                before.insert((check.key, *name), ended.len());
                let awaits = check.rule.reserve().is_some();
                ended.push(EndedPlace { check, stats, name: Some(*name), awaits, is_undone });
                settling.push(i);
            }
        }
        let mut returned = vec![None; found.len()];
        for (i, hits) in settling.into_iter().zip(self.store.end_places(&ended, now).await?) {
            returned[i] = hits;
        }
        self.note_ends(&ended, now);
        let mut costs = Vec::new();
        for (i, returned) in returned.into_iter().enumerate() {
            let check = &found[i].2;
            if is_undone {
                self.release_reserved(loaded, check, returned, now).await;
                continue;
            }
            let beyond = self.settle(loaded, check, cost_of(i), returned, now).await;
            if beyond > Hits(0) {
                costs.push(check.as_cost(beyond));
            }
        }
        if costs.is_empty() {
            return Ok(());
        }
        let decisions = self.store.take_with(&costs, Scope::Descriptor, now, TakeOptions::default()).await?;
        for (check, decision) in costs.iter().zip(&decisions) {
            self.record_check(loaded, check, decision, Scope::Descriptor);
        }
        Ok(())
    }

    /// Takes the places that a request asks for, if its `decisions` admit it. If it is rejected, it keeps none, and what it
    /// has reserved is given back; if a place is refused, all that it has taken beside that is.
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
        let is_over =
            |descriptor: usize| matched.matches[descriptor].check().is_some_and(|i| decisions[i].over);
        let reserved = |(descriptor, check): &(usize, PlaceCheck<'_>)| {
            if self.is_void(matched, decisions) || is_over(*descriptor) { Hits(0) } else { check.reserved }
        };
        if Verdict::new(request, matched, decisions, modes).code == Code::OverLimit {
            self.give_back_beside(matched, decisions, |_| Returned { own: false, reserved: true }, now).await;
            return Ok(placed);
        }
        // what does not fit, and passes, has a place for its reserved hits nevertheless: a cost closes the newest one
        let is_asked = |(descriptor, check): &(usize, PlaceCheck<'_>)| {
            matches!(check.ask, PlaceAsk::Take | PlaceAsk::Look)
                && !(check.is_limited() && is_over(*descriptor))
        };
        let asked: SmallVec<[(usize, &(usize, PlaceCheck<'_>)); 2]> =
            matched.places.iter().enumerate().filter(|(_, place)| is_asked(place)).collect();
        if asked.is_empty() {
            return Ok(placed);
        }
        let lines = &self.asking.places;
        let is_late = |check: &PlaceCheck<'_>| check.ask == PlaceAsk::Take && !lines.admits_other(check.key);
        if let Some((i, (_, check))) = asked.iter().find(|(_, place)| is_late(&place.1)) {
            // callers that wait are first
            let refused = PlaceDecision { over: true, before: check.limit.most, basis: Basis::Counters };
            placed.decisions[*i] = Some(refused);
            let own = |i| self.scope_of(matched) == Scope::Request || is_refused(matched, &placed, i);
            let back = |i| Returned { own: own(i), reserved: true };
            self.give_back_beside(matched, decisions, back, now).await;
            return Ok(placed);
        }
        let mut requests: SmallVec<[PlaceRequest<'_>; 2]> = SmallVec::new();
        for (_, place) in &asked {
            let check = &place.1;
            requests.push(PlaceRequest { check, stats: loaded.places(check), reserved: reserved(place) });
        }
        let taken = match self.store.take_places(&requests, self.serials.next(), now, options).await {
            Ok(taken) => taken,
            Err(error) => {
                self.give_back_beside(matched, decisions, |_| Returned { own: true, reserved: true }, now)
                    .await;
                return Err(error);
            }
        };
        for ((i, (_, check)), decision) in asked.iter().zip(&taken.decisions) {
            placed.decisions[*i] = Some(*decision);
            if check.ask == PlaceAsk::Take && decision.over {
                lines.refuse_other(check.key);
            }
        }
        let has_place = |(PlaceRequest { check, .. }, decision): &(&PlaceRequest<'_>, &PlaceDecision)| {
            check.ask == PlaceAsk::Take && !decision.over
        };
        let held = || requests.iter().zip(&taken.decisions).filter(has_place).map(|(request, _)| request);
        for PlaceRequest { check, reserved, .. } in held().filter(|held| held.reserved > Hits(0)) {
            loaded.places(check).reserve().reserve(reserved.0);
            placed.reserved = placed.reserved.max(*reserved);
        }
        let is_refused = |i: usize| is_refused(matched, &placed, i);
        let is_rejected =
            Verdict::with_places(request, matched, decisions, Some(&placed), modes).code == Code::OverLimit;
        if is_rejected {
            let undone = held().map(|PlaceRequest { check, stats, reserved, .. }| EndedPlace {
                check,
                stats,
                name: Some(taken.name),
                awaits: *reserved > Hits(0),
                is_undone: true,
            });
            let undone: SmallVec<[EndedPlace<'_>; 2]> = undone.collect();
            let returned = self.store.end_places(&undone, now).await?;
            self.note_ends(&undone, now);
            for (place, returned) in undone.iter().zip(returned) {
                self.release_reserved(loaded, place.check, returned, now).await;
            }
        }
        let gives_back = is_rejected && self.scope_of(matched) == Scope::Request;
        // the places that were taken have returned what was reserved
        let back = |i| Returned { own: gives_back || is_refused(i), reserved: is_refused(i) };
        self.give_back_beside(matched, decisions, back, now).await;
        placed.name = Some(taken.name).filter(|_| !is_rejected);
        Ok(placed)
    }

    /// Whether nothing has counted, since one of all-or-none checks was rejected, although the request may pass.
    fn is_void(&self, matched: &Matched<'_>, decisions: &[Decision]) -> bool {
        let mut enforced = decisions[..matched.enforced().len()].iter();
        self.scope_of(matched) == Scope::Request && enforced.any(|decision| decision.over)
    }

    /// Gives back of what `decisions` have taken what `back` says of each check, by its index.
    async fn give_back_beside(
        &self,
        matched: &Matched<'_>,
        decisions: &[Decision],
        back: impl Fn(usize) -> Returned,
        now: Timestamp,
    ) {
        if self.is_void(matched, decisions) {
            return;
        }
        let mut returned: SmallVec<[LimitCheck<'_>; 2]> = SmallVec::new();
        for (i, (check, decision)) in matched.enforced().iter().zip(decisions).enumerate() {
            if check.direction != Direction::Take || decision.over || check.stands() {
                continue;
            }
            let place =
                matched.places.iter().find(|(descriptor, _)| matched.matches[*descriptor].check() == Some(i));
            let of_place = place.map_or(Hits(0), |(_, place)| place.reserved);
            let Returned { own, reserved } = back(i);
            let own = if own { check.hits.minus(of_place) } else { Hits(0) };
            let hits = own.plus(if reserved { of_place } else { Hits(0) });
            if hits > Hits(0) {
                returned.push(LimitCheck { hits, direction: Direction::GiveBack, ..check.copied() });
            }
        }
        if !returned.is_empty() {
            // what a store cannot be told stays counted
            let _ = self.store.take_with(&returned, Scope::Descriptor, now, TakeOptions::default()).await;
        }
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
            let beside = matched.matches[*descriptor].check().map(|i| &matched.checks[i]);
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

const STOPPED: LimitError =
    LimitError::Store(StoreError::Unsupported("the runtime of the limiter has stopped"));

/// When to ask again, as the answer says.
const RETRY: Period = Period::from_secs(1);

/// Whether check `i` is beside a place that was refused.
pub(super) fn is_refused(matched: &Matched<'_>, placed: &PlaceDecisions, i: usize) -> bool {
    matched.places.iter().zip(&placed.decisions).any(|((descriptor, _), decision)| {
        matched.matches[*descriptor].check() == Some(i) && decision.is_some_and(|decision| decision.over)
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
