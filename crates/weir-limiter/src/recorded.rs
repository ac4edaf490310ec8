//! What a recording gets of each request, while requests are recorded.

use smallvec::SmallVec;
use weir_limit::{
    Basis, Code, CounterKey, Decision, Descriptor, DescriptorMatch, Direction, Entry, Hits, IN_FLIGHT,
    KeyHasher, LimitCheck, LimitMatch, Matched, OverLimitPolicy, PlaceDecisions, Request, RuleRef, Scope,
    Status, Timestamp, Verdict,
};
use weir_observe::OwnCounts;
use weir_recording::{FirstSight, RecordedKind, RecordedRequest, RecordedStatus, Recorder};
use weir_store::Store;

use super::Limiter;

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

    /// Records a request that matches nothing but limits in memory.
    #[inline(never)]
    pub(super) fn record_limits(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        scope: Scope,
        now: Timestamp,
        decided: &[DecidedMatch<'_, '_>],
    ) {
        let recorded = RecordedRequest {
            is_over: verdict.code == Code::OverLimit,
            is_shadowed: verdict.shadowed,
            ..RecordedRequest::new(RecordedKind::Decision, now, request)
        };
        let status_of = |i: usize| {
            let key = match decided[i].0 {
                LimitMatch::Limited(limit, _) if !limit.rule.has_shared_values() => Some(limit.key),
                _ => self.recorder.key_of(request.domain, &request.descriptors[i]),
            };
            status(&verdict.statuses[i], key, decided[i].1.as_ref())
        };
        let first_sight = |i: usize| {
            let (found, decision) = &decided[i];
            let check = found.check(request.domain, &request.descriptors[i]);
            check.zip(*decision).map_or_else(FirstSight::default, |(check, decision)| {
                self.first_sight(&check, counted(&check, &decision, scope), now)
            })
        };
        self.recorder.recorder.append(&recorded, status_of, first_sight);
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
        let is_void =
            self.scope_of(matched) == Scope::Request && decisions.iter().any(|decision| decision.over);
        let first_sight = |i: usize| match &matched.matches[i] {
            DescriptorMatch::Limited(found) => {
                let (check, decision) = (&matched.checks[*found], &decisions[*found]);
                let counted = counted(check, decision, self.scope_of(matched));
                // what a place refuses was given back
                let is_refused = verdict.code == Code::OverLimit && placed.is_some();
                let counted = if is_void && !check.stands() || is_refused { Hits(0) } else { counted };
                self.first_sight(check, counted, now)
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

    /// What is known of the counters of `check`, after a decision that has `counted` hits.
    fn first_sight(&self, check: &LimitCheck<'_>, counted: Hits, now: Timestamp) -> FirstSight {
        let rule = check.rule.compiled().map_or_else(|| check.rule_text(), |rule| rule.path.to_string());
        if check.direction == Direction::GiveBack {
            // how much was given back is not known
            return FirstSight { rule, ..FirstSight::default() };
        }
        let (counters, at) = match self.store.lines_for(check) {
            Some(memory) => (memory.counters(check, now), now),
            None => match self.store.estimate(check, now) {
                Some(estimate) => (estimate.counters, estimate.at),
                None => return FirstSight { rule, ..FirstSight::default() },
            },
        };
        FirstSight { rule, counters: check.own_tiers().iter().cloned().zip(counters).collect(), counted, at }
    }
}

/// A descriptor's match, and the decision about it, if there was one.
type DecidedMatch<'m, 'a> = (&'m LimitMatch<'a, &'a OwnCounts>, Option<Decision>);

/// Those of a request, whose `decisions` are about the limits among `matches`.
pub(super) fn decided<'m, 'a>(
    matches: &'m [LimitMatch<'a, &'a OwnCounts>],
    decisions: &[Decision],
) -> SmallVec<[DecidedMatch<'m, 'a>; 2]> {
    let mut decisions = decisions.iter().copied();
    let mut of = |found: &'m LimitMatch<'a, &'a OwnCounts>| match found {
        LimitMatch::Limited(..) => (found, decisions.next()),
        LimitMatch::NoLimit | LimitMatch::Unlimited => (found, None),
    };
    matches.iter().map(&mut of).collect()
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

/// The hits that a decision has taken.
fn counted(check: &LimitCheck<'_>, decision: &Decision, scope: Scope) -> Hits {
    let is_counted = !decision.over || check.over_limit_policy_in(scope) == OverLimitPolicy::Count;
    if is_counted && check.direction == Direction::Take { check.hits } else { Hits(0) }
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
