//! The path of one request: rules, store, verdict, statistics. Every server calls it.
//!
//! | to | see |
//! | --- | --- |
//! | decide requests | [`Limiter`], [`DecisionSettings`] |
//! | decide again and again about the same entries | [`Key`] |
//! | wait for hits | [`Acquired`], [`WaiterThread`] |
//! | log rejections | [`RejectionLog`], [`ReportedRejections`] |
//! | write rules, and read verdicts | [`limit`] |
//! | keep counters, and tell the time | [`store`], [`clock`] |
//! | read statistics | [`observe`] |
//! | record requests | [`Limiter::recorder`] |

mod acquire;
mod asking;
mod costs;
mod did_you_mean;
mod in_flight;
mod key;
mod key_text;
mod look;
mod recorded;
mod rejections;
mod reserve;
mod reset;
mod shadow;
pub mod waiter_thread;

use std::{
    pin::pin,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;

pub use self::did_you_mean::did_you_mean;
pub use self::key_text::{MASK, counter_number, key_text};
pub use self::{
    acquire::{AcquireError, Acquired},
    key::{Key, KeyDecision},
    look::Looked,
    rejections::{Rejection, RejectionLog, ReportedRejections},
    reset::{ResetError, ResetOutcome},
    waiter_thread::WaiterThread,
};
pub use weir_limit as limit;
pub use weir_observe as observe;
pub use weir_store::{self as store, clock};

use self::{
    asking::AskingLines, in_flight::Serials, recorded::RequestRecorder, rejections::LastReports,
    reserve::CostTable,
};
use weir_limit::{
    Basis, Code, CompiledRule, Decision, Descriptor, DescriptorMatch, Direction, Entry, GiveBack, Hits,
    Limit, LimitCheck, LimitMatch, Matched, Modes, Period, PlaceDecisions, Request, Root, RulePath, RuleSet,
    Scope, Status, Tally, Tier, Timestamp, TooManyPatterns, Verdict,
};
use weir_observe::{
    DecisionRecord, Metric, OwnCounts, RareCounts, RuleCounts, RuleLimit, RuleStats, Source, Stats,
    hot_keys::{HotKeyValues, HotKeys, HotName, Sample},
};
use weir_recording::RecordingSettings;
use weir_store::{Decisions, MemoryStore, Store, StoreError, TakeOptions, TakeRequest};

/// The longest keys and values of a hot key that are kept whole, in bytes, and the most of them.
const MAX_HOT_NAME: usize = 256;
const MAX_HOT_ENTRIES: usize = 8;

#[derive(Debug)]
pub struct Limiter<S> {
    /// Replaced by a reload; a request keeps the rules that it started with. None before the first load.
    loaded: ArcSwapOption<LoadedRules>,
    /// The number of reloads, by which keys notice them.
    generation: AtomicU64,
    store: S,
    stats: Arc<Stats>,
    settings: DecisionSettings,
    hot_keys: Option<Box<HotKeys>>,
    rejection_log: Option<Arc<dyn RejectionLog>>,
    recorder: RequestRecorder,
    serials: Serials,
    costs: CostTable,
    asking: Arc<AskingLines>,
    /// Whether rules were loaded that the lines of waiting callers do not follow yet: those in memory, and the others.
    lines_are_stale: [AtomicBool; 2],
}

#[derive(Clone, Debug)]
pub struct DecisionSettings {
    pub modes: Modes,
    /// What a rejection affects at least, in every domain.
    pub scope: Scope,
    /// `NEAR_LIMIT_RATIO`: the fraction of a limit above which hits count as near it; above 0.
    pub near_limit_ratio: f32,
    /// `WEIR_HOT_KEYS`: whether the counters with the most hits are found, and whether their values are shown.
    pub hot_keys: HotKeyValues,
    /// `WEIR_LOG_REJECTIONS`: the rejections that the log of rejections receives, if there is one.
    pub reported_rejections: ReportedRejections,
    /// `WEIR_RECORD`: what is recorded, once [`Limiter::recorder`] is started.
    pub recording: RecordingSettings,
}

#[derive(Debug)]
struct LoadedRules {
    rules: RuleSet,
    /// By rule index.
    stats: Vec<Arc<RuleStats>>,
    last_reports: LastReports,
    /// Whether the requests of a rule have places.
    has_places: bool,
    /// Whether time gives a rule another limit.
    has_schedules: bool,
}

#[derive(Clone, Copy, Debug)]
struct RejectionReport {
    /// If it is sampled for the hot keys: the number of requests that it stands for.
    weight: Option<u32>,
    rejected: bool,
}

/// Why a request was not decided. Callers see the texts, which are exactly those of envoyproxy/ratelimit.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LimitError {
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error(transparent)]
    TooManyPatterns(#[from] TooManyPatterns),
    /// It would begin a request in flight, and its caller gets no name to end it by.
    #[error(
        "the request matches a limit on requests in flight, which this protocol cannot end: use ShouldRateLimit, \
         /json or Acquire"
    )]
    NoName,
    #[error(transparent)]
    Store(#[from] StoreError),
}

// === impl DecisionSettings ===

impl Default for DecisionSettings {
    fn default() -> Self {
        Self {
            modes: Modes::default(),
            scope: Scope::default(),
            near_limit_ratio: 0.8,
            hot_keys: HotKeyValues::default(),
            reported_rejections: ReportedRejections::default(),
            recording: RecordingSettings::default(),
        }
    }
}

// === impl LoadedRules ===

impl LoadedRules {
    fn check_values(&self, request: &Request<'_>) -> Result<(), TooManyPatterns> {
        self.rules.check_patterns(request)
    }

    /// Checks the values of a request that is decided, and counts those that are no addresses.
    #[inline]
    fn count_values(&self, request: &Request<'_>) -> Result<(), TooManyPatterns> {
        if self.rules.has_plain_values(request) {
            return Ok(());
        }
        self.rules.check_patterns(request)?;
        for rule in self.rules.invalid_addresses(request) {
            self.stats[rule.index()].add_rare(RareCounts { addresses_invalid: 1, ..RareCounts::default() });
        }
        Ok(())
    }
}

// === impl Limiter ===

impl<S: Store> Limiter<S> {
    pub fn new(store: S, stats: Arc<Stats>, settings: DecisionSettings) -> Self {
        let hot_keys = (settings.hot_keys != HotKeyValues::Off).then(Box::default);
        let asking = AskingLines::new(store.wait_room().cloned().unwrap_or_default());
        let recorder = RequestRecorder::new(settings.recording.max_bytes);
        Self {
            asking: Arc::new(asking),
            loaded: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            store,
            stats,
            settings,
            hot_keys,
            rejection_log: None,
            recorder,
            serials: Serials::default(),
            costs: CostTable::default(),
            lines_are_stale: Default::default(),
        }
    }

    /// Reports rejections to `log`, as [`DecisionSettings::reported_rejections`] says.
    pub fn with_rejection_log(self, log: Arc<dyn RejectionLog>) -> Self {
        let is_on = self.settings.reported_rejections != ReportedRejections::None;
        Self { rejection_log: is_on.then_some(log), ..self }
    }

    /// Returns what finds the counters with the most hits, if that is on.
    pub fn hot_keys(&self) -> Option<&HotKeys> {
        self.hot_keys.as_deref()
    }

    /// Replaces the rules. Counts are kept: counters are found by domain and entries, not by rule. Callers that wait
    /// are told, by [`Limiter::serve_waiters`], if they cannot be served in time any more.
    pub fn load(&self, rules: RuleSet) {
        let stats: Vec<_> = rules.rules().iter().map(|rule| self.stats.rule(rule.path.parts())).collect();
        self.stats.set_in_force(&stats);
        let last_reports = LastReports::new(rules.rules().len());
        self.stats.set_rule_limits(rules.rules().iter().flat_map(rule_limits).collect());
        let has_places = rules.rules().iter().any(|rule| rule.places().is_some());
        let has_schedules = rules.rules().iter().any(|rule| rule.rule.until.is_some());
        let loaded = LoadedRules { rules, stats, last_reports, has_places, has_schedules };
        self.loaded.store(Some(Arc::new(loaded)));
        self.generation.fetch_add(1, Ordering::Release);
        self.recorder().append_reload();
        self.refresh_lines();
    }

    pub fn rules<T>(&self, read: impl FnOnce(&RuleSet) -> T) -> Option<T> {
        self.loaded.load().as_deref().map(|loaded| read(&loaded.rules))
    }

    /// Returns whether the requests of a rule have places, which end.
    pub fn has_places(&self) -> bool {
        self.loaded.load().as_deref().is_some_and(|loaded| loaded.has_places)
    }

    pub const fn modes(&self) -> &Modes {
        &self.settings.modes
    }

    pub const fn scope(&self) -> Scope {
        self.settings.scope
    }

    fn scope_of(&self, matched: &Matched<'_>) -> Scope {
        self.settings.scope.max(matched.scope)
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides `request` as of `now`. `encode` gets the verdict, which borrows from the rules.
    pub async fn decide<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        self.decide_with(request, now, TakeOptions::default(), encode).await
    }

    /// Decides like [`Limiter::decide`], as `options` say, and adds the rules that apply to their record.
    pub async fn decide_with<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        let encode = match self.decide_limits(request, now, options.record, encode) {
            Ok(encoded) => return Ok(encoded),
            Err(encode) => encode,
        };
        self.decide_matched(request, now, options, encode).await
    }

    /// Decides like [`Limiter::decide_matched`], if all that `request` matches is limits with their counters in memory.
    /// Otherwise returns `encode`.
    #[inline]
    fn decide_limits<T, E: FnOnce(&Verdict<'_>) -> T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        record: Option<&DecisionRecord>,
        encode: E,
    ) -> Result<T, E> {
        if record.is_some() {
            return Err(encode);
        }
        if let [_] = &*request.descriptors {
            self.take_single_limit(request, false, now, encode, |encode, verdict, _| encode(verdict))
        } else {
            self.take_limits(request, now, encode)
        }
    }

    /// Takes hits of the only descriptor of `request`; if they `must_fit`, only if they fit now and nobody waits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as most requests have one descriptor")]
    fn take_single_limit<T, E>(
        &self,
        request: &Request<'_>,
        must_fit: bool,
        now: Timestamp,
        encode: E,
        conclude: impl FnOnce(E, &Verdict<'_>, &LimitMatch<'_, &OwnCounts>) -> T,
    ) -> Result<T, E> {
        let loaded = self.loaded.load();
        let (Some((memory, loaded, root)), [descriptor]) =
            (self.memory_and_rules(loaded.as_deref(), request), &*request.descriptors)
        else {
            return Err(encode);
        };
        let counts_of = |rule: usize| loaded.stats[rule].prefetch();
        let Some(found) = LimitMatch::of((&loaded.rules, root), request, descriptor, counts_of) else {
            return Err(encode);
        };
        let scope = self.settings.scope.max(root.scope);
        let taken = self.take_limit((memory, loaded), (request, descriptor), &found, scope, must_fit, now);
        let Some((status, decision)) = taken else { return Err(encode) };
        let verdict = Verdict::of_status(status, &self.settings.modes);
        self.record_verdict(loaded, &verdict, now, || {
            (found.check(request.domain, descriptor).into_iter().collect(), decision.into_iter().collect())
        });
        let matches = slice::from_ref(&found);
        if self.recorder.is_on()
            && !self.record_known((request, slice::from_ref(descriptor)), &verdict, now, matches)
        {
            self.record_limits(request, &verdict, scope, now, (matches, decision.as_slice()));
        }
        Ok(conclude(encode, &verdict, &found))
    }

    #[inline(never)]
    fn take_limits<T, E: FnOnce(&Verdict<'_>) -> T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: E,
    ) -> Result<T, E> {
        let loaded = self.loaded.load();
        let Some((memory, loaded, root)) = self.memory_and_rules(loaded.as_deref(), request) else {
            return Err(encode);
        };
        let scope = self.settings.scope.max(root.scope);
        if request.descriptors.is_empty() || scope != Scope::Descriptor {
            return Err(encode);
        }
        let mut matches: SmallVec<[LimitMatch<'_, &OwnCounts>; 2]> = SmallVec::new();
        for descriptor in &request.descriptors {
            let counts_of = |rule: usize| loaded.stats[rule].prefetch();
            match LimitMatch::of((&loaded.rules, root), request, descriptor, counts_of) {
                Some(found) => matches.push(found),
                None => return Err(encode),
            }
        }
        let (mut statuses, mut decisions) = (SmallVec::new(), Decisions::new());
        for (found, descriptor) in matches.iter().zip(&request.descriptors) {
            let taken = self.take_limit((memory, loaded), (request, descriptor), found, scope, false, now);
            let Some((status, decision)) = taken else { return Err(encode) };
            statuses.push(status);
            if let Some(decision) = decision {
                decisions.push(decision);
            }
        }
        let verdict = Verdict::of_statuses(statuses, &self.settings.modes);
        if self.recorder.is_on()
            && !self.record_known((request, &request.descriptors), &verdict, now, &matches)
        {
            self.record_limits(request, &verdict, scope, now, (&matches, &decisions));
        }
        self.record_verdict(loaded, &verdict, now, || {
            let checks = matches.iter().zip(&request.descriptors);
            let checks = checks.filter_map(|(found, descriptor)| found.check(request.domain, descriptor));
            (checks.collect(), decisions)
        });
        Ok(encode(&verdict))
    }

    /// None if the counters are elsewhere, or verdicts say more than limits do.
    #[inline]
    fn memory_and_rules<'a>(
        &'a self,
        loaded: Option<&'a LoadedRules>,
        request: &Request<'_>,
    ) -> Option<(&'a MemoryStore, &'a LoadedRules, &'a Root)> {
        let (memory, loaded) = (self.store.alone()?, loaded?);
        // a verdict that edges may change is made in one place
        let is_plain = !loaded.has_schedules && loaded.rules.has_plain_values(request);
        let is_valid = !request.domain.is_empty() && is_plain;
        let root = loaded.rules.root(request.domain)?;
        (is_valid && !self.settings.modes.describes()).then_some((memory, loaded, root))
    }

    /// Takes the hits of one descriptor, and counts them. None if they `must_fit` and do not.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was found before")]
    fn take_limit<'a>(
        &self,
        (memory, loaded): (&MemoryStore, &LoadedRules),
        (request, descriptor): (&Request<'_>, &Descriptor<'_>),
        found: &LimitMatch<'a, &OwnCounts>,
        scope: Scope,
        must_fit: bool,
        now: Timestamp,
    ) -> Option<(Status<'a>, Option<Decision>)> {
        let all_quotas = self.settings.modes.quota;
        let (limit, counts) = match found {
            LimitMatch::NoLimit => {
                self.count_unmatched(loaded, request.domain, descriptor);
                return Some((Status::no_limit(all_quotas), None));
            }
            LimitMatch::Unlimited => return Some((Status::unlimited(), None)),
            LimitMatch::Limited(limit, counts) => (limit, counts),
        };
        let policy = scope.policy_of(limit.over_limit_policy);
        let taken = TakeRequest::new(limit.key, limit.tiers, policy, limit.hits);
        let decision = if !must_fit {
            memory.take(&taken, now)
        } else if limit.hits > Hits(0) && !limit.rule.shadow_mode() {
            memory.take_fitting(&taken, now)?
        } else {
            return None;
        };
        if limit.hits != Hits(1) {
            costs::note(loaded, limit.rule, limit.hits, &decision, policy);
        }
        let made = self.counts_of(&taken, &decision, limit.rule.shadow_mode());
        if limit.rule.has_dynamic_stats() {
            let add = |stats: &RuleStats| stats.add(made);
            self.dynamic_stats(loaded, limit.rule, &descriptor.entries, add);
        } else {
            counts.add(made);
        }
        Some((Status::of_limit(limit, &decision, all_quotas), Some(decision)))
    }

    /// Edges are of the store's clock.
    #[cold]
    fn reset_by_edge(&self, status: &Status<'_>, now: Timestamp) -> Option<Period> {
        status.reset_by_edge(now.shifted(self.store.clock_offset()))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn record_verdict<'c>(
        &self,
        loaded: &LoadedRules,
        verdict: &Verdict<'_>,
        now: Timestamp,
        checked: impl FnOnce() -> (Vec<LimitCheck<'c>>, Decisions),
    ) {
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        if let Some(report) = self.report_of(verdict.code) {
            let (checks, decisions) = checked();
            self.report_checks(report, loaded, &checks, &decisions, now);
        }
    }

    async fn decide_matched<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        let loaded = self.loaded.load();
        let decided = match find(loaded.as_deref(), request, LoadedRules::count_values) {
            Ok((loaded, mut matched)) => {
                // boxed to keep the future of all other requests small
                let taken = if matched.has_ends || !matched.places.is_empty() {
                    Box::pin(self.take_in_flight(loaded, request, &mut matched, now, options)).await
                } else {
                    let taken = self.take_matched(loaded, &matched, now, options).await;
                    taken.map(|decisions| (decisions, None)).map_err(LimitError::from)
                };
                taken.map(|(decisions, placed)| {
                    let encode = traced(options.record, &matched, &decisions, encode);
                    let decided = (&*decisions, placed.as_deref());
                    self.conclude(loaded, request, &matched, decided, now, encode)
                })
            }
            Err(error) => Err(error),
        };
        self.count_error(decided)
    }

    /// Takes the hits of all limits but those on requests in flight.
    async fn take_matched(
        &self,
        loaded: &LoadedRules,
        matched: &Matched<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let scope = self.scope_of(matched);
        if scope == Scope::Request && matched.has_shadows() {
            return Box::pin(self.take_before_shadows(loaded, matched, now, options)).await;
        }
        self.store.take_with(&matched.checks, scope, now, options).await
    }

    /// How long a request that has `begun` may wait still.
    fn wait_left(&self, options: TakeOptions<'_>, begun: Instant) -> Duration {
        let longest = self.store.longest_wait();
        options.wait.map_or(longest, |wait| wait.min(longest)).saturating_sub(begun.elapsed())
    }

    fn count_error<T>(&self, decided: Result<T, LimitError>) -> Result<T, LimitError> {
        match &decided {
            Ok(_) => {}
            Err(LimitError::Store(_)) => self.stats.redis_error.add(1),
            Err(_) => self.stats.service_error.add(1),
        }
        decided
    }

    /// Makes the verdict of `decisions`, records it, and passes it to `encode`.
    fn conclude<T>(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matched: &Matched<'_>,
        (decisions, placed): (&[Decision], Option<&PlaceDecisions>),
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> T {
        let mut verdict = Verdict::with_places(request, matched, decisions, placed, &self.settings.modes);
        if verdict.code == Code::OverLimit && loaded.has_schedules {
            for status in &mut verdict.statuses {
                status.reset = self.reset_by_edge(status, now);
            }
        }
        if matched.unknown_domain {
            self.stats.unknown_domain(request.domain, request.descriptors.len() as u64);
        } else {
            for (found, descriptor) in matched.matches.iter().zip(&request.descriptors) {
                if matches!(found, DescriptorMatch::NoLimit) {
                    self.count_unmatched(loaded, request.domain, descriptor);
                }
            }
        }
        let counted = placed.map(|placed| in_flight::counted(matched, decisions, placed));
        let counted = counted.as_deref().unwrap_or(decisions);
        self.record(loaded, matched.enforced(), [counted, decisions], self.scope_of(matched), &verdict, now);
        if let Some(placed) = placed {
            self.record_places(loaded, matched, placed, &verdict, now);
        }
        if matched.has_shadows() {
            self.record_shadows(loaded, matched, decisions);
        }
        if request.descriptors.iter().any(|descriptor| descriptor.refund) {
            self.record_returns(loaded, request, matched, decisions);
        }
        if self.recorder.is_on() {
            self.record_matched(request, matched, (decisions, placed), &verdict, now);
        }
        encode(&verdict)
    }

    #[cold]
    #[inline(never)]
    fn count_unmatched(&self, loaded: &LoadedRules, domain: &str, descriptor: &Descriptor<'_>) {
        if let Some(key) = loaded.rules.unknown_key(domain, &descriptor.entries) {
            self.stats.unknown_key(domain, key);
        }
    }

    fn record(
        &self,
        loaded: &LoadedRules,
        checks: &[LimitCheck<'_>],
        [counted, decisions]: [&[Decision]; 2],
        scope: Scope,
        verdict: &Verdict<'_>,
        now: Timestamp,
    ) {
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        for (check, decision) in taken(checks, counted) {
            self.record_check(loaded, check, decision, scope);
        }
        if let Some(report) = self.report_of(verdict.code) {
            self.report_checks(report, loaded, checks, decisions, now);
        }
    }

    /// Returned hits beyond the limit are of little use, so no descriptor counts for more.
    #[cold]
    fn record_returns(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matched: &Matched<'_>,
        decisions: &[Decision],
    ) {
        let checks = matched.enforced();
        // a rejected request of all or none gives nothing back
        let is_void = self.scope_of(matched) == Scope::Request
            && checks.iter().zip(decisions).any(|(_, decision)| decision.over);
        for (descriptor, found) in request.descriptors.iter().zip(&matched.matches) {
            let DescriptorMatch::Limited(i) = found else { continue };
            let check = &checks[*i];
            if !descriptor.refund || is_void && !check.stands() {
                continue;
            }
            let most = check.tiers().iter().map(Tier::capacity).max().unwrap_or_default();
            let hits = request.hits_of(descriptor).0.min(most.into());
            let counts = match matched.give_back_to(check) {
                GiveBack::Allow => RareCounts { returned: hits, ..RareCounts::default() },
                GiveBack::Deny => RareCounts { return_denied: hits, ..RareCounts::default() },
            };
            self.with_stats(loaded, check, Hits(hits), |stats| stats.add_rare(counts));
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn report_of(&self, code: Code) -> Option<RejectionReport> {
        let weight = self.hot_keys.as_ref().and_then(|hot_keys| hot_keys.sampled());
        let rejected = code == Code::OverLimit && self.rejection_log.is_some();
        (weight.is_some() || rejected).then_some(RejectionReport { weight, rejected })
    }

    #[cold]
    fn report_checks(
        &self,
        report: RejectionReport,
        loaded: &LoadedRules,
        checks: &[LimitCheck<'_>],
        decisions: &[Decision],
        now: Timestamp,
    ) {
        if let (Some(hot_keys), Some(weight)) = (&self.hot_keys, report.weight) {
            self.add_hot_keys(hot_keys, weight, checks, decisions, now);
        }
        if let Some(log) = self.rejection_log.as_deref().filter(|_| report.rejected) {
            self.report_rejections(log, loaded, checks, decisions, now);
        }
    }

    #[inline]
    fn record_check(&self, loaded: &LoadedRules, check: &LimitCheck<'_>, decision: &Decision, scope: Scope) {
        let policy = check.over_limit_policy_in(scope);
        let taken = TakeRequest::new(check.key, check.tiers(), policy, check.hits);
        if let Some(rule) = check.rule.compiled()
            && check.hits != Hits(1)
            && !check.rule.meters()
            && rule.places().is_none()
        {
            costs::note(loaded, rule, check.hits, decision, policy);
        }
        let made = self.counts_of(&taken, decision, check.rule.shadow_mode());
        self.with_stats(loaded, check, check.hits, |stats| {
            stats.add(made);
            if decision.basis == Basis::Fallback {
                stats.add_rare(RareCounts { over_without_store: made.over_limit, ..RareCounts::default() });
            }
        });
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was decided")]
    fn counts_of(&self, taken: &TakeRequest<'_>, decision: &Decision, shadow_mode: bool) -> RuleCounts {
        let TakeRequest { tiers, over_limit_policy, hits, .. } = *taken;
        let limit = decision.share.unwrap_or_else(|| tiers[decision.tier].capacity());
        let tally = Tally::of(decision, limit, over_limit_policy, hits, self.settings.near_limit_ratio);
        RuleCounts {
            total_hits: hits.0,
            over_limit: tally.over_limit,
            near_limit: tally.near_limit,
            over_limit_with_local_cache: if decision.is_cached() { tally.over_limit } else { 0 },
            within_limit: tally.within_limit,
            shadow_mode: if decision.over && shadow_mode { tally.over_limit } else { 0 },
        }
    }

    fn add_hot_keys(
        &self,
        hot_keys: &HotKeys,
        weight: u32,
        checks: &[LimitCheck<'_>],
        decisions: &[Decision],
        now: Timestamp,
    ) {
        let shows_values = self.settings.hot_keys == HotKeyValues::Shown;
        for (check, decision) in taken(checks, decisions) {
            let limit = decision.share.unwrap_or_else(|| check.tiers()[decision.tier].capacity());
            #[expect(clippy::cast_precision_loss, reason = "a share to look at")]
            let left = decision.remaining as f32 / limit.max(1) as f32;
            let sample = Sample {
                weight,
                key: [check.key.hash(), check.key.shard()],
                hits: check.hits.0,
                is_rejected: decision.over,
                used: if decision.over { 1.0 } else { (1.0 - left).max(0.0) },
                at: now.as_nanos(),
            };
            hot_keys.add(sample, || hot_name(check, shows_values));
        }
    }

    fn report_rejections(
        &self,
        log: &dyn RejectionLog,
        loaded: &LoadedRules,
        checks: &[LimitCheck<'_>],
        decisions: &[Decision],
        now: Timestamp,
    ) {
        for (check, decision) in taken(checks, decisions) {
            let rejects = decision.over && !check.rule.shadow_mode();
            if rejects && self.is_reported(loaded, check, decision, now) {
                let mode = |rule| self.store.shared_counts().mode_now(rule);
                log.rejected(&Rejection {
                    check,
                    decision,
                    in_flight: None,
                    at: now,
                    mode: check.rule.declared().and_then(mode),
                });
            }
        }
    }

    fn is_reported(
        &self,
        loaded: &LoadedRules,
        check: &LimitCheck<'_>,
        decision: &Decision,
        now: Timestamp,
    ) -> bool {
        self.settings.reported_rejections == ReportedRejections::All
            || loaded.last_reports.is_first(&check.rule, decision.basis, now)
    }

    /// Beyond the bound on dynamic names, a rule's own stats are used, and a limit override has none.
    #[inline]
    fn with_stats(
        &self,
        loaded: &LoadedRules,
        check: &LimitCheck<'_>,
        hits: Hits,
        record: impl FnOnce(&RuleStats),
    ) {
        match check.rule.compiled() {
            Some(rule) if rule.has_dynamic_stats() => {
                self.dynamic_stats(loaded, rule, check.entries, record);
            }
            Some(rule) => record(&loaded.stats[rule.index()]),
            // a name that callers create for nothing but zeros would only take the place of another
            None if hits == Hits(0) => {}
            None => {
                let path = RulePath::of_override(check.domain, check.entries);
                if let Some(stats) = self.stats.dynamic_rule(path.parts(), None) {
                    record(&stats);
                }
            }
        }
    }

    fn dynamic_stats(
        &self,
        loaded: &LoadedRules,
        rule: &CompiledRule,
        entries: &[Entry<'_>],
        record: impl FnOnce(&RuleStats),
    ) {
        let declared = &loaded.stats[rule.index()];
        let path = rule.stat_path(entries);
        let dynamic = path.and_then(|path| self.stats.dynamic_rule(path.parts(), Some(declared)));
        record(dynamic.as_ref().unwrap_or(declared));
    }
}

impl Limiter<MemoryStore> {
    /// Decides like [`Limiter::decide`], without an executor: the memory store never waits.
    #[inline]
    pub fn decide_now<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        match self.decide_limits(request, now, None, encode) {
            Ok(encoded) => Ok(encoded),
            Err(encode) => self.decide_matched_now(request, now, encode),
        }
    }

    #[inline(never)]
    fn decide_matched_now<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        at_once(self.decide_matched(request, now, TakeOptions::default(), encode))
            .unwrap_or_else(|| Err(LimitError::NoRules))
    }
}

fn hot_name(check: &LimitCheck<'_>, shows_values: bool) -> HotName {
    let shown = |i| (*key_text::shown_value(check, i, shows_values)).into();
    let entries = check.entries.iter().enumerate().map(|(i, entry)| (entry.key.into(), shown(i)));
    let length: usize = check.entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    let text = key_text(check, shows_values);
    HotName {
        text: format!("{} {text}", check.rule_text()).into(),
        entries_text: text.into(),
        rule: check.rule.compiled().map(|rule| rule.path.to_string().into()),
        domain: check.domain.into(),
        entries: (length <= MAX_HOT_NAME && check.entries.len() <= MAX_HOT_ENTRIES)
            .then(|| entries.collect()),
    }
}

/// None if `future` has to wait.
#[inline]
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Refunded hits were counted when they were taken.
fn taken<'m, 'r>(
    checks: &'m [LimitCheck<'r>],
    decisions: &'m [Decision],
) -> impl Iterator<Item = (&'m LimitCheck<'r>, &'m Decision)> {
    checks.iter().zip(decisions).filter(|(check, _)| check.direction != Direction::GiveBack)
}

fn validate(request: &Request<'_>) -> Result<(), LimitError> {
    if request.domain.is_empty() {
        return Err(LimitError::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(LimitError::NoDescriptors);
    }
    Ok(())
}

fn find<'a>(
    loaded: Option<&'a LoadedRules>,
    request: &'a Request<'_>,
    check: impl FnOnce(&LoadedRules, &Request<'_>) -> Result<(), TooManyPatterns>,
) -> Result<(&'a LoadedRules, Matched<'a>), LimitError> {
    validate(request)?;
    let loaded = loaded.ok_or(LimitError::NoRules)?;
    check(loaded, request)?;
    let matched = Matched::with_prefetch(&loaded.rules, request, |rule| {
        loaded.stats[rule].prefetch();
    });
    Ok((loaded, matched))
}

fn traced<T>(
    record: Option<&DecisionRecord>,
    matched: &Matched<'_>,
    decisions: &[Decision],
    encode: impl FnOnce(&Verdict<'_>) -> T,
) -> impl FnOnce(&Verdict<'_>) -> T {
    move |verdict| {
        if let Some(record) = record {
            record_rules(record, matched, decisions, verdict);
        }
        encode(verdict)
    }
}

/// Limits that come with the request stay unnamed: their names would contain its values.
#[cold]
fn record_rules(
    record: &DecisionRecord,
    matched: &Matched<'_>,
    decisions: &[Decision],
    verdict: &Verdict<'_>,
) {
    for (descriptor, status) in matched.matches.iter().zip(&verdict.statuses) {
        let is_over = status.code == Code::OverLimit;
        let (rule, hits) = match descriptor {
            DescriptorMatch::NoLimit | DescriptorMatch::Running => continue,
            DescriptorMatch::Unlimited(rule) => (rule.path.to_string(), 0),
            DescriptorMatch::Limited(check) => {
                if is_over && decisions[*check].basis == Basis::Fallback {
                    record.set_rejected_by_fallback();
                }
                let check = &matched.checks[*check];
                let hits = i64::try_from(check.hits.0).unwrap_or(i64::MAX);
                let compiled = check.rule.compiled();
                let rule = compiled.map_or_else(|| "limit override".to_owned(), |rule| rule.path.to_string());
                (rule, if check.direction == Direction::GiveBack { -hits } else { hits })
            }
        };
        record.add_rule(rule, hits, is_over);
    }
}

fn rule_limits(rule: &CompiledRule) -> impl Iterator<Item = RuleLimit> {
    let in_shadow = rule.rule.shadow.as_ref().map(Limit::tiers).unwrap_or_default();
    let tiers = rule.rule.tiers().iter().map(|tier| (tier, false));
    tiers.chain(in_shadow.iter().map(|tier| (tier, true))).map(|(tier, in_shadow)| RuleLimit {
        name: rule.path.parts().into(),
        requests: tier.requests,
        period: tier.length().into(),
        per: tier
            .calendar()
            .map_or_else(|| tier.period.to_string(), |calendar| calendar.unit.to_string())
            .into(),
        in_shadow,
    })
}

impl<S: Store + Source> Source for Limiter<S> {
    fn metrics(&self) -> Vec<Metric> {
        let rules = self.rules(|rules| rules.rules().len()).unwrap_or_default();
        let mut metrics = vec![Metric::gauge("weir.rules", "Loaded rules.", rules as u64)];
        metrics.extend(self.recorder().metrics());
        metrics.extend(self.store().metrics());
        metrics
    }
}

#[cfg(test)]
mod tests;
