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

mod acquire;
mod asking;
mod did_you_mean;
mod key;
mod key_text;
mod plain;
mod rejections;
mod shadow;
pub mod waiter_thread;

use std::{
    slice::from_ref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;

pub use self::did_you_mean::did_you_mean;
pub use self::key_text::key_text;
pub use self::{
    acquire::{AcquireError, Acquired},
    key::{Key, KeyDecision},
    rejections::{Rejection, RejectionLog, ReportedRejections},
    waiter_thread::WaiterThread,
};
pub use weir_limit as limit;
pub use weir_observe as observe;
pub use weir_store::{self as store, clock};

use self::{asking::AskingLines, rejections::LastReports};
use weir_limit::{
    Basis, Code, CompiledRule, Decision, Descriptor, DescriptorMatch, Direction, Entry, GiveBack, Hits,
    Limit, LimitCheck, Matched, Modes, OverLimitPolicy, PlainCheck, PlainMatch, PlainMatches, Request,
    RulePath, RuleSet, Scope, Status, Tally, Tier, Timestamp, TooManyPatterns, Verdict,
};
use weir_observe::{
    DecisionRecord, Metric, OwnCounts, RareCounts, RuleCounts, RuleLimit, RuleStats, Source, Stats,
    hot_keys::{HotKeyValues, HotKeys, Sample},
};
use weir_store::{Decisions, MemoryStore, Store, StoreError, TakeOptions};

/// Decides requests against the current rules.
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
    asking: Arc<AskingLines>,
    /// Whether rules were loaded that the lines of waiting callers do not follow yet: those in memory, and the others.
    lines_are_stale: [AtomicBool; 2],
}

/// The settings of decisions.
#[derive(Clone, Debug)]
pub struct DecisionSettings {
    /// How verdicts are reported.
    pub modes: Modes,
    /// What a rejection affects at least, in every domain.
    pub scope: Scope,
    /// `NEAR_LIMIT_RATIO`: the fraction of a limit above which hits count as near it; above 0.
    pub near_limit_ratio: f32,
    /// `WEIR_HOT_KEYS`: whether the counters with the most hits are found, and whether their values are shown.
    pub hot_keys: HotKeyValues,
    /// `WEIR_LOG_REJECTIONS`: the rejections that the log of rejections receives, if there is one.
    pub reported_rejections: ReportedRejections,
}

#[derive(Debug)]
struct LoadedRules {
    rules: RuleSet,
    /// By rule index.
    stats: Vec<Arc<RuleStats>>,
    last_reports: LastReports,
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
    /// The request names no domain.
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    /// The request has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// No rules are loaded yet.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// Finding its rules would take too long.
    #[error(transparent)]
    TooManyPatterns(#[from] TooManyPatterns),
    /// The store failed.
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
        }
    }
}

// === impl Limiter ===

impl<S: Store> Limiter<S> {
    /// Returns a limiter without rules.
    #[must_use]
    pub fn new(store: S, stats: Arc<Stats>, settings: DecisionSettings) -> Self {
        let hot_keys = (settings.hot_keys != HotKeyValues::Off).then(Box::default);
        let asking = AskingLines::new(store.wait_room().cloned().unwrap_or_default());
        Self {
            asking: Arc::new(asking),
            loaded: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            store,
            stats,
            settings,
            hot_keys,
            rejection_log: None,
            lines_are_stale: Default::default(),
        }
    }

    /// Reports rejections to `log`, as [`DecisionSettings::reported_rejections`] says.
    #[must_use]
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
        self.loaded.store(Some(Arc::new(LoadedRules { rules, stats, last_reports })));
        self.generation.fetch_add(1, Ordering::Release);
        self.refresh_lines();
    }

    /// Calls `read` with the current rules, if any are loaded.
    pub fn rules<T>(&self, read: impl FnOnce(&RuleSet) -> T) -> Option<T> {
        self.loaded.load().as_deref().map(|loaded| read(&loaded.rules))
    }

    /// Returns what a rejection affects at least, in every domain.
    pub const fn scope(&self) -> Scope {
        self.settings.scope
    }

    fn scope_of(&self, matched: &Matched<'_>) -> Scope {
        self.settings.scope.max(matched.scope)
    }

    /// Returns the store, which holds the counts.
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
        if let Some(memory) = self.store.alone() {
            return self.decide_in(memory, request, now, options.record, encode);
        }
        let loaded = self.loaded.load();
        let found = find(loaded.as_deref(), request);
        let decided = match &found {
            Ok((loaded, matched)) => {
                let scope = self.scope_of(matched);
                let taken = if scope == Scope::Request && matched.has_shadows() {
                    // boxed to keep the future of all other requests small
                    Box::pin(self.take_before_shadows(loaded, matched, now, options)).await
                } else {
                    self.store.take_with(&matched.checks, scope, now, options).await
                };
                taken.map_err(LimitError::from).map(|decisions| {
                    let encode = traced(options.record, matched, &decisions, encode);
                    self.conclude(loaded, request, matched, &decisions, now, encode)
                })
            }
            Err(error) => Err(error.clone()),
        };
        self.count_error(decided)
    }

    /// Decides like [`Limiter::decide_with`] where all counters are in `memory`.
    #[inline]
    fn decide_in<T>(
        &self,
        memory: &MemoryStore,
        request: &Request<'_>,
        now: Timestamp,
        record: Option<&DecisionRecord>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        let loaded = self.loaded.load();
        if let Some(loaded) = loaded.as_deref()
            && record.is_none()
            && !self.settings.modes.describes()
            && !request.domain.is_empty()
            && loaded.rules.check_patterns(request).is_ok()
        {
            let counts_of = |rule: usize| loaded.stats[rule].prefetch();
            if let Some((check, scope, counts)) = PlainCheck::sole(&loaded.rules, request, counts_of) {
                let scope = self.settings.scope.max(scope);
                let decision = self.decide_check(memory, loaded, &check, counts, scope, now);
                let status = Status::plain(&check, &decision, self.settings.modes.quota);
                let verdict = Verdict::of_sole(status, &self.settings.modes);
                if verdict.shadowed {
                    self.stats.global_shadow_mode.add(1);
                }
                if let Some(report) = self.report_of(verdict.code) {
                    let check = check.in_domain(request.domain);
                    self.report_checks(report, loaded, from_ref(&check), from_ref(&decision), now);
                }
                return Ok(encode(&verdict));
            }
            let mut matches = PlainMatches::new();
            if request.descriptors.len() > 1
                && PlainMatch::find(&loaded.rules, request, self.settings.scope, counts_of, &mut matches)
            {
                return Ok(self.decide_plain(memory, loaded, request, &matches, now, encode));
            }
        }
        self.decide_any(memory, loaded.as_deref(), request, now, record, encode)
    }

    /// The slow path of [`Limiter::decide_in`].
    #[inline(never)]
    fn decide_any<T>(
        &self,
        memory: &MemoryStore,
        loaded: Option<&LoadedRules>,
        request: &Request<'_>,
        now: Timestamp,
        record: Option<&DecisionRecord>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        self.count_error(find(loaded, request).map(|(loaded, matched)| {
            let scope = self.scope_of(&matched);
            let decisions = if scope == Scope::Request && matched.has_shadows() {
                self.decide_before_shadows(memory, loaded, &matched, now)
            } else {
                memory.decide(&matched.checks, scope, now)
            };
            let encode = traced(record, &matched, &decisions, encode);
            self.conclude(loaded, request, &matched, &decisions, now, encode)
        }))
    }

    /// Decides a request of plain matches: a rejection affects only its descriptor.
    #[inline(never)]
    fn decide_plain<T>(
        &self,
        memory: &MemoryStore,
        loaded: &LoadedRules,
        request: &Request<'_>,
        matches: &[PlainMatch<'_, &OwnCounts>],
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> T {
        let (mut statuses, mut decisions) = (SmallVec::new(), Decisions::new());
        for (found, descriptor) in matches.iter().zip(&request.descriptors) {
            statuses.push(match found {
                PlainMatch::NoLimit => {
                    self.count_unmatched(loaded, request.domain, descriptor);
                    Status::no_limit(self.settings.modes.quota)
                }
                PlainMatch::Unlimited => Status::unlimited(),
                PlainMatch::Limited(check, counts) => {
                    let decision = self.decide_check(memory, loaded, check, counts, Scope::Descriptor, now);
                    let status = Status::plain(check, &decision, self.settings.modes.quota);
                    decisions.push(decision);
                    status
                }
            });
        }
        let verdict = Verdict::of_statuses(statuses, &self.settings.modes);
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        if let Some(report) = self.report_of(verdict.code) {
            let checks: Vec<_> = matches.iter().filter_map(|found| found.in_domain(request.domain)).collect();
            self.report_checks(report, loaded, &checks, &decisions, now);
        }
        encode(&verdict)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was found before")]
    fn decide_check(
        &self,
        memory: &MemoryStore,
        loaded: &LoadedRules,
        check: &PlainCheck<'_>,
        counts: &OwnCounts,
        scope: Scope,
        now: Timestamp,
    ) -> Decision {
        let policy = scope.policy_of(check.over_limit_policy);
        let of_only = |tier: &Tier| check.key.of_tier(tier);
        let decision = memory.take_of(check.key, of_only, check.tiers, policy, check.hits, now);
        self.count_check(loaded, check, counts, policy, &decision);
        decision
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was decided")]
    fn count_check(
        &self,
        loaded: &LoadedRules,
        check: &PlainCheck<'_>,
        counts: &OwnCounts,
        policy: OverLimitPolicy,
        decision: &Decision,
    ) {
        let PlainCheck { compiled, tiers, hits, .. } = *check;
        let capacity = tiers[decision.tier].capacity();
        let made = self.counts_of(decision, capacity, policy, hits, compiled.shadow_mode());
        if compiled.has_dynamic_stats() {
            self.dynamic_stats(loaded, compiled, check.entries, |stats| stats.add(made));
        } else {
            counts.add(made);
        }
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
        decisions: &[Decision],
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> T {
        let verdict = Verdict::new(request, matched, decisions, &self.settings.modes);
        if matched.unknown_domain {
            self.stats.unknown_domain(request.domain, request.descriptors.len() as u64);
        } else {
            for (found, descriptor) in matched.matches.iter().zip(&request.descriptors) {
                if matches!(found, DescriptorMatch::NoLimit) {
                    self.count_unmatched(loaded, request.domain, descriptor);
                }
            }
        }
        self.record(loaded, matched.enforced(), decisions, self.scope_of(matched), &verdict, now);
        if matched.has_shadows() {
            self.record_shadows(loaded, matched, decisions);
        }
        if request.descriptors.iter().any(|descriptor| descriptor.refund) {
            self.record_returns(loaded, request, matched, decisions);
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
        decisions: &[Decision],
        scope: Scope,
        verdict: &Verdict<'_>,
        now: Timestamp,
    ) {
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        for (check, decision) in taken(checks, decisions) {
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
            if !descriptor.refund || is_void {
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

    #[inline]
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
        let limit = limit_of(check, decision);
        let policy = check.over_limit_policy_in(scope);
        let made = self.counts_of(decision, limit, policy, check.hits, check.rule.shadow_mode());
        self.with_stats(loaded, check, check.hits, |stats| {
            stats.add(made);
            if decision.basis == Basis::Fallback {
                stats.add_rare(RareCounts { over_without_store: made.over_limit, ..RareCounts::default() });
            }
        });
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was decided")]
    fn counts_of(
        &self,
        decision: &Decision,
        limit: u32,
        policy: OverLimitPolicy,
        hits: Hits,
        shadow_mode: bool,
    ) -> RuleCounts {
        let tally = Tally::of(decision, limit, policy, hits, self.settings.near_limit_ratio);
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
            let limit = limit_of(check, decision);
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
            hot_keys.add(sample, || format!("{} {}", check.rule_text(), key_text(check, shows_values)));
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
        let all = self.settings.reported_rejections == ReportedRejections::All;
        for (check, decision) in taken(checks, decisions) {
            let rejects = decision.over && !check.rule.shadow_mode();
            if rejects && (all || loaded.last_reports.is_first(&check.rule, decision.basis, now)) {
                let mode = |rule| self.store.shared_counts().mode_now(rule);
                log.rejected(&Rejection {
                    check,
                    decision,
                    at: now,
                    mode: check.rule.declared().and_then(mode),
                });
            }
        }
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
                if let Some(stats) = self.stats.dynamic_rule(path.parts()) {
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
        let dynamic = path.and_then(|path| self.stats.dynamic_rule_of(path.parts(), declared));
        record(dynamic.as_ref().unwrap_or(declared));
    }
}

impl Limiter<MemoryStore> {
    /// Decides like [`Limiter::decide`], without an executor: the memory store never waits.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::decide`], but for [`LimitError::Store`].
    pub fn decide_now<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        self.decide_in(&self.store, request, now, None, encode)
    }
}

/// Refunded hits were counted when they were taken.
fn taken<'m, 'r>(
    checks: &'m [LimitCheck<'r>],
    decisions: &'m [Decision],
) -> impl Iterator<Item = (&'m LimitCheck<'r>, &'m Decision)> {
    checks.iter().zip(decisions).filter(|(check, _)| check.direction == Direction::Take)
}

/// Of a pool, the member's share.
#[inline]
fn limit_of(check: &LimitCheck<'_>, decision: &Decision) -> u32 {
    decision.share.unwrap_or_else(|| check.tiers()[decision.tier].capacity())
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
) -> Result<(&'a LoadedRules, Matched<'a>), LimitError> {
    validate(request)?;
    let loaded = loaded.ok_or(LimitError::NoRules)?;
    loaded.rules.check_patterns(request)?;
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
            DescriptorMatch::NoLimit => continue,
            DescriptorMatch::Unlimited(rule) => (rule.path.to_string(), 0),
            DescriptorMatch::Limited(check) => {
                if is_over && decisions[*check].basis == Basis::Fallback {
                    record.set_rejected_by_fallback();
                }
                let check = &matched.checks[*check];
                let hits = i64::try_from(check.hits.0).unwrap_or(i64::MAX);
                let compiled = check.rule.compiled();
                let rule = compiled.map_or_else(|| "limit override".to_owned(), |rule| rule.path.to_string());
                (rule, if check.direction == Direction::Take { hits } else { -hits })
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
        period: Duration::from_nanos(tier.period.as_nanos()),
        per: tier.period.to_string().into(),
        in_shadow,
    })
}

impl<S: Store + Source> Source for Limiter<S> {
    fn metrics(&self) -> Vec<Metric> {
        let rules = self.rules(|rules| rules.rules().len()).unwrap_or_default();
        let mut metrics = vec![Metric::gauge("weir.rules", "Loaded rules.", rules as u64)];
        metrics.extend(self.store().metrics());
        metrics
    }
}

#[cfg(test)]
mod tests;
