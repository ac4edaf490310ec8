//! What a recording gets of each request, while requests are recorded.

use weir_limit::{
    Basis, Code, CounterKey, Decision, Descriptor, DescriptorMatch, Direction, Entry, Hits, IN_FLIGHT,
    KeyHasher, LimitCheck, LimitMatch, Matched, OverLimitPolicy, Period, PlaceDecisions, Request, RuleRef,
    Scope, Status, Tier, Timestamp, Verdict,
};
use weir_observe::OwnCounts;
use weir_recording::{FirstSight, RecordedKind, RecordedRequest, RecordedStatus, Recorder, RecordingOrder};
use weir_store::{Store, StoreError};

use super::{Limiter, in_flight};

/// What instances tell each other. No reset is written so: these have no space.
const START: &str = "recording/start ";
const STOP: &str = "recording/stop ";

/// The longest time that another instance may have requests kept for, a day in milliseconds.
const MAX_KEEP: u64 = 86_400_000;

/// The most checks of a request that are compared with each other.
const MAX_COMPARED: usize = 64;

/// The recorder, and what finds the descriptors that have no counter of their own.
#[derive(Debug)]
pub(super) struct RequestRecorder {
    recorder: Recorder,
    hasher: KeyHasher,
}

// === impl RequestRecorder ===

impl RequestRecorder {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { recorder: Recorder::new(max_bytes), hasher: KeyHasher::random() }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.recorder.is_on()
    }

    /// None for a descriptor with a limit of its own, which is not a part of the key.
    fn key_of(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<CounterKey> {
        let key = || self.hasher.key(domain, &descriptor.entries, |_| None);
        descriptor.limit.is_none().then(key)
    }
}

impl<S: Store> Limiter<S> {
    /// Records requests, once it is started.
    pub const fn recorder(&self) -> &Recorder {
        &self.recorder.recorder
    }

    /// Starts the recordings of all instances that share the store. Returns whether others have heard of it; an error is about
    /// those alone.
    pub async fn start_recordings(&self, order: RecordingOrder, now: Timestamp) -> Result<bool, StoreError> {
        self.recorder().start(order, now);
        let millis = |period: Period| period.as_nanos() / 1_000_000;
        let ends = order.until.map_or(0, |until| millis(until.since(now)).max(1));
        let note = format!("{START}{} {ends} {}", millis(order.keep), u8::from(order.has_values));
        self.store.announce(note.as_bytes()).await
    }

    /// Stops the recordings of all instances that share the store, as [`Limiter::start_recordings`] starts them.
    pub async fn stop_recordings(&self) -> Result<bool, StoreError> {
        self.recorder().stop();
        self.store.announce(STOP.as_bytes()).await
    }

    /// Does what a `note` of another instance says about recordings, which was written at an `age`. Returns whether it is
    /// about them.
    pub(super) fn follow_recording(&self, note: &[u8], age: Period, now: Timestamp) -> bool {
        if note == STOP.as_bytes() {
            self.recorder().stop();
            return true;
        }
        let Some(order) = std::str::from_utf8(note).ok().and_then(|note| note.strip_prefix(START)) else {
            return false;
        };
        let mut numbers = order.split(' ').map_while(|number| number.parse::<u64>().ok());
        if let (Some(keep), Some(ends), Some(values)) = (numbers.next(), numbers.next(), numbers.next()) {
            let until = (ends > 0).then(|| now.after(Period::from_millis(ends)).before(age));
            if until.is_none_or(|until| until > now) {
                let keep = Period::from_millis(keep.min(MAX_KEEP));
                self.recorder().start(RecordingOrder { keep, until, has_values: values == 1 }, now);
            }
        }
        true
    }

    /// Records a request that matches nothing but limits in memory, if all of its `descriptors` were seen before and have
    /// counters of their own, as most have. Otherwise does nothing, and returns false.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub(super) fn record_known(
        &self,
        (request, descriptors): (&Request<'_>, &[Descriptor<'_>]),
        verdict: &Verdict<'_>,
        now: Timestamp,
        matches: &[LimitMatch<'_, &OwnCounts>],
    ) -> bool {
        let statuses = matches.iter().zip(&verdict.statuses).map(|(found, status)| RecordedStatus {
            key: own_key(found),
            is_over: status.code == Code::OverLimit,
            remaining: status.remaining,
            ..RecordedStatus::default()
        });
        self.recorder().append_known(&recorded_limits(request, verdict, now), descriptors, statuses)
    }

    /// Records a request that matches nothing but limits in memory, whose `decisions` are about those among `matches`.
    #[cold]
    #[inline(never)]
    pub(super) fn record_limits(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        scope: Scope,
        now: Timestamp,
        (matches, decisions): (&[LimitMatch<'_, &OwnCounts>], &[Decision]),
    ) {
        let key_of = |i: usize| {
            own_key(&matches[i]).or_else(|| self.recorder.key_of(request.domain, &request.descriptors[i]))
        };
        // memory always gives an answer
        let status_of = |i: usize| status(&verdict.statuses[i], key_of(i), None);
        let first_sight = |i: usize| self.first_sight_of(request, (matches, decisions), scope, now, i);
        self.recorder().append(&recorded_limits(request, verdict, now), status_of, first_sight);
    }

    /// What is known of the counters of descriptor `i` of `request`, after the request.
    fn first_sight_of(
        &self,
        request: &Request<'_>,
        (matches, decisions): (&[LimitMatch<'_, &OwnCounts>], &[Decision]),
        scope: Scope,
        now: Timestamp,
        i: usize,
    ) -> FirstSight {
        let check_of = |(found, descriptor)| LimitMatch::check(found, request.domain, descriptor);
        let Some(check) = check_of((&matches[i], &request.descriptors[i])) else {
            return FirstSight::default();
        };
        let checks = matches.iter().zip(&request.descriptors).filter_map(check_of);
        let all: Vec<_> = checks
            .zip(decisions)
            .take(MAX_COMPARED + 1)
            .map(|(other, decision)| {
                let taken = taken(&other, decision, scope);
                (other, taken)
            })
            .collect();
        self.first_sight(&check, &all.iter().map(|(other, taken)| (other, *taken)), now)
    }

    /// Records any other request.
    #[cold]
    #[inline(never)]
    pub(super) fn record_matched(
        &self,
        request: &Request<'_>,
        matched: &Matched<'_>,
        (decisions, placed): (&[Decision], Option<&PlaceDecisions>),
        verdict: &Verdict<'_>,
        now: Timestamp,
    ) {
        let has_name = verdict.in_flight.as_ref().is_some_and(|places| places.name.is_some());
        let recorded = RecordedRequest {
            is_over: verdict.code == Code::OverLimit,
            is_shadowed: verdict.shadowed,
            place: placed.and_then(|placed| placed.name).filter(|_| has_name),
            ..RecordedRequest::new(kind_of(request, matched), now, request)
        };
        let check_of = |i: usize| matched.matches[i].check();
        let status_of = |i: usize| {
            let check = check_of(i).map(|check| &matched.checks[check]);
            let own = check.filter(|check| {
                matches!(check.rule, RuleRef::Compiled(rule) if !rule.has_shared_values())
                    && check.entries.len() == request.descriptors[i].entries.len()
            });
            let key = match own {
                Some(check) => Some(check.key),
                None => self.recorder.key_of(request.domain, &request.descriptors[i]),
            };
            status(&verdict.statuses[i], key, check_of(i).map(|check| &decisions[check]))
        };
        let scope = self.scope_of(matched);
        let is_void = scope == Scope::Request && decisions.iter().any(|decision| decision.over);
        // what a rejected request with places has given back
        let given_back = |i: usize| {
            placed.filter(|_| recorded.is_over).map_or(Hits(0), |placed| returned(matched, placed, scope, i))
        };
        let first_sight = |i: usize| match &matched.matches[i] {
            DescriptorMatch::Limited(found) => {
                let check = &matched.checks[*found];
                let enforced = matched.enforced().iter().zip(decisions).enumerate();
                let all = enforced.map(|(i, (other, decision))| match taken(other, decision, scope) {
                    Some(_) if is_void && !other.stands() => (other, Some(Hits(0))),
                    taken => (other, taken.map(|taken| taken.minus(given_back(i)))),
                });
                self.first_sight(check, &all, now)
            }
            DescriptorMatch::Unlimited(rule) => {
                FirstSight { rule: rule.path.to_string(), ..FirstSight::default() }
            }
            DescriptorMatch::NoLimit | DescriptorMatch::Running => FirstSight::default(),
        };
        self.recorder.recorder.append(&recorded, status_of, first_sight);
    }

    /// Records that the request of `name` ends as one that was not admitted.
    #[cold]
    pub(super) fn record_undone(&self, domain: &str, name: &str, now: Timestamp) {
        let entry = Entry { key: IN_FLIGHT, value: name };
        let request = Request::of(domain, &[entry]);
        let recorded =
            RecordedRequest { is_undone: true, ..RecordedRequest::new(RecordedKind::End, now, &request) };
        let status_of = |_| RecordedStatus { is_free: true, ..RecordedStatus::default() };
        self.recorder.recorder.append(&recorded, status_of, |_| FirstSight::default());
    }

    /// What is known of the counters of `check`, after a request with `all` of these checks, each with the hits that it has
    /// taken.
    fn first_sight<'c>(
        &self,
        check: &LimitCheck<'_>,
        all: &(impl Iterator<Item = (&'c LimitCheck<'c>, Option<Hits>)> + Clone),
        now: Timestamp,
    ) -> FirstSight {
        let rule = check.rule.compiled().map_or_else(|| check.rule_text(), |rule| rule.path.to_string());
        let (counters, at) = match self.store.lines_for(check) {
            Some(memory) => (memory.counters(check, now), now),
            None => match self.store.estimate(check, now) {
                Some(estimate) => (estimate.counters, estimate.at),
                None => return FirstSight { rule, ..FirstSight::default() },
            },
        };
        let known = check.own_tiers().iter().zip(counters);
        let known = known.map(|(tier, counter)| {
            let counted = counted(check, tier, all.clone())?;
            Some((tier.clone(), counter, counted))
        });
        FirstSight { rule, counters: known.collect::<Option<_>>().unwrap_or_default(), at }
    }
}

/// The hits that the counter of a `tier` of `check` has counted. None if it is not known, or there are so many checks that
/// it would take too long.
fn counted<'c>(
    check: &LimitCheck<'_>,
    tier: &Tier,
    all: impl Iterator<Item = (&'c LimitCheck<'c>, Option<Hits>)>,
) -> Option<Hits> {
    let mut counted = Hits(0);
    for (i, (other, taken)) in all.enumerate() {
        if i >= MAX_COMPARED {
            return None;
        }
        if other.key == check.key && other.tiers().iter().any(|other| other.shares_counter(tier)) {
            counted = counted.plus(taken?);
        }
    }
    Some(counted)
}

/// The key of the counter of a match, if descriptors with other values have other counters.
#[inline]
fn own_key(found: &LimitMatch<'_, &OwnCounts>) -> Option<CounterKey> {
    match found {
        LimitMatch::Limited(limit, _) if !limit.rule.has_shared_values() => Some(limit.key),
        _ => None,
    }
}

#[inline]
fn recorded_limits<'a, 'r>(
    request: &'a Request<'r>,
    verdict: &Verdict<'_>,
    now: Timestamp,
) -> RecordedRequest<'a, 'r> {
    RecordedRequest {
        is_over: verdict.code == Code::OverLimit,
        is_shadowed: verdict.shadowed,
        ..RecordedRequest::new(RecordedKind::Decision, now, request)
    }
}

#[inline]
fn status(status: &Status<'_>, key: Option<CounterKey>, decision: Option<&Decision>) -> RecordedStatus {
    RecordedStatus {
        key,
        is_over: status.code == Code::OverLimit,
        is_free: status.limit.is_none(),
        is_fallback: decision.is_some_and(|decision| decision.basis == Basis::Fallback),
        remaining: status.remaining,
    }
}

/// The hits that a decision has taken. None if it gave some back: how many that were is not known.
fn taken(check: &LimitCheck<'_>, decision: &Decision, scope: Scope) -> Option<Hits> {
    let is_counted = !decision.over || check.over_limit_policy_in(scope) == OverLimitPolicy::Count;
    match check.direction {
        Direction::Take if is_counted => Some(check.hits),
        Direction::Take | Direction::Look => Some(Hits(0)),
        Direction::GiveBack => None,
    }
}

/// What a rejected request has given back of the hits of check `i`.
fn returned(matched: &Matched<'_>, placed: &PlaceDecisions, scope: Scope, i: usize) -> Hits {
    let is_refused = placed.decisions.iter().flatten().any(|decision| decision.over);
    if is_refused && scope == Scope::Request || in_flight::is_refused(matched, placed, i) {
        return matched.checks[i].hits;
    }
    let mut asked = matched.places.iter();
    let found = asked.find(|(descriptor, _)| matched.matches[*descriptor].check() == Some(i));
    found.map_or(Hits(0), |(_, place)| place.reserved)
}

fn kind_of(request: &Request<'_>, matched: &Matched<'_>) -> RecordedKind {
    if matched.has_ends {
        RecordedKind::End
    } else if matched.checks.iter().any(LimitCheck::is_cost) {
        RecordedKind::Settlement
    } else if request.descriptors.iter().any(|descriptor| descriptor.refund) {
        RecordedKind::GiveBack
    } else {
        RecordedKind::Decision
    }
}
