//! The path of one request: rules, store, verdict, stats. Every server calls it.

mod acquire;
mod resolved;
mod waiter_thread;

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, Waker},
    time::Duration,
};

use arc_swap::ArcSwapOption;

pub use self::{
    acquire::{AcquireError, Acquired},
    resolved::Resolved,
    waiter_thread::WaiterThread,
};
use crate::{
    limit::{
        Code, CompiledRule, Decision, DescriptorMatch, Direction, Limit, LimitCheck, Matched, Modes, Request,
        RulePath, RuleRef, RuleSet, Scope, Tally, Timestamp, Verdict,
    },
    observe::{DecisionRecord, Metric, RuleCounts, RuleLimit, RuleStats, Source, Stats},
    store::{MemoryStore, Store, StoreError, TakeOptions},
};

/// Decides requests against the current rules.
#[derive(Debug)]
pub struct Limiter<S> {
    /// Replaced by a reload; a request keeps the rules that it started with. None before the first load.
    loaded: ArcSwapOption<Loaded>,
    store: S,
    stats: Arc<Stats>,
    settings: DecisionSettings,
    /// Whether rules were loaded that the lines of waiting callers do not follow yet.
    lines_are_stale: AtomicBool,
}

/// The settings of decisions.
#[derive(Clone, Debug)]
pub struct DecisionSettings {
    /// How verdicts are reported.
    pub modes: Modes,
    /// Whether a rejected request still counts on its other limits.
    pub scope: Scope,
    /// `NEAR_LIMIT_RATIO`: the fraction of a limit above which hits count as near it; above 0.
    pub near_limit_ratio: f32,
}

/// Rules with their stats.
#[derive(Debug)]
struct Loaded {
    rules: RuleSet,
    /// One for each rule, by the rule's index.
    stats: Vec<Arc<RuleStats>>,
}

/// Why a request was not decided. Callers see the texts, which are exactly those of envoyproxy/ratelimit.
#[derive(Debug, thiserror::Error)]
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
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

// === impl DecisionSettings ===

impl Default for DecisionSettings {
    fn default() -> Self {
        Self { modes: Modes::default(), scope: Scope::default(), near_limit_ratio: 0.8 }
    }
}

// === impl Limiter ===

impl<S: Store> Limiter<S> {
    /// Returns a limiter without rules.
    #[must_use]
    pub fn new(store: S, stats: Arc<Stats>, settings: DecisionSettings) -> Self {
        let lines_are_stale = AtomicBool::new(false);
        Self { loaded: ArcSwapOption::empty(), store, stats, settings, lines_are_stale }
    }

    /// Replaces the rules. Counts are kept: counters are found by domain and entries, not by rule. Callers that wait are told, by
    /// [`Limiter::serve_waiters`], if they cannot be served in time any more.
    pub fn load(&self, rules: RuleSet) {
        let stats = rules.rules().iter().map(|rule| self.stats.rule(rule.path.parts())).collect();
        self.stats.set_rule_limits(rules.rules().iter().flat_map(rule_limits).collect());
        self.loaded.store(Some(Arc::new(Loaded { rules, stats })));
        self.refresh_lines();
    }

    /// Calls `read` with the current rules, if any are loaded.
    pub fn rules<T>(&self, read: impl FnOnce(&RuleSet) -> T) -> Option<T> {
        self.loaded.load().as_deref().map(|loaded| read(&loaded.rules))
    }

    /// Returns the store, which holds the counts.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides `request` as of `now`, and passes the verdict to `encode`, which makes a server's response of it. The verdict
    /// borrows from the rules, which are held until then.
    pub async fn decide<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        self.decide_with(request, now, TakeOptions::default(), encode).await
    }

    /// Decides like [`Limiter::decide`], as `options` say, and adds the rules that apply to their record, if there is one.
    pub async fn decide_with<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        let decided = self.try_decide(request, now, options, encode).await;
        match &decided {
            Ok(_) => {}
            Err(LimitError::Store(_)) => self.stats.redis_error.add(1),
            Err(_) => self.stats.service_error.add(1),
        }
        decided
    }

    async fn try_decide<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        if request.domain.is_empty() {
            return Err(LimitError::EmptyDomain);
        }
        if request.descriptors.is_empty() {
            return Err(LimitError::NoDescriptors);
        }
        let loaded = self.loaded.load();
        let loaded = loaded.as_ref().ok_or(LimitError::NoRules)?;

        let matched = Matched::with_prefetch(&loaded.rules, request, |rule| loaded.stats[rule].prefetch());
        let options = TakeOptions { all_quotas: self.settings.modes.quota, ..options };
        let decisions = self.store.take_with(&matched.checks, self.settings.scope, now, options).await?;
        let verdict = Verdict::new(request, &matched, &decisions, &self.settings.modes);
        self.record(loaded, request, &matched, &decisions, &verdict);
        if let Some(record) = options.record {
            record_rules(record, &matched, &verdict);
        }
        Ok(encode(&verdict))
    }

    fn record(
        &self,
        loaded: &Loaded,
        request: &Request<'_>,
        matched: &Matched<'_>,
        decisions: &[Decision],
        verdict: &Verdict<'_>,
    ) {
        if matched.unknown_domain {
            self.stats.unknown_domain(request.domain, request.descriptors.len() as u64);
        }
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        // refunded hits were counted when they were taken
        for (check, decision) in
            matched.checks.iter().zip(decisions).filter(|(check, _)| check.direction == Direction::Take)
        {
            self.record_check(loaded, check, decision);
        }
    }

    fn record_check(&self, loaded: &Loaded, check: &LimitCheck<'_>, decision: &Decision) {
        let limit = decision.share.unwrap_or_else(|| check.tiers()[decision.tier].capacity());
        let policy = check.over_limit_policy_in(self.settings.scope);
        let tally = Tally::of(decision, limit, policy, check.hits, self.settings.near_limit_ratio);
        let shadowed = decision.over && check.rule.shadow_mode();
        self.with_stats(loaded, check, |stats| {
            stats.add(RuleCounts {
                total_hits: check.hits.0,
                over_limit: tally.over_limit,
                near_limit: tally.near_limit,
                over_limit_with_local_cache: if decision.cached { tally.over_limit } else { 0 },
                within_limit: tally.within_limit,
                shadow_mode: if shadowed { tally.over_limit } else { 0 },
            });
        });
    }

    /// Calls `record` with the stats of `check`: the rule's, unless values are part of their name. When the bound on such
    /// names is reached, falls back to the rule's; a limit override then has none.
    fn with_stats(&self, loaded: &Loaded, check: &LimitCheck<'_>, record: impl FnOnce(&RuleStats)) {
        match &check.rule {
            RuleRef::Compiled(compiled_rule) => {
                let dynamic = compiled_rule
                    .stat_path(check.entries)
                    .and_then(|path| self.stats.dynamic_rule(path.parts()));
                record(dynamic.as_ref().unwrap_or(&loaded.stats[compiled_rule.index()]));
            }
            RuleRef::Override(_) => {
                let path = RulePath::of_override(check.domain, check.entries);
                if let Some(stats) = self.stats.dynamic_rule(path.parts()) {
                    record(&stats);
                }
            }
        }
    }
}

impl Limiter<MemoryStore> {
    /// Decides like [`Limiter::decide`], without an executor: the memory store never waits.
    ///
    /// # Panics
    ///
    /// Never: the future of a decision in memory is ready at its first poll.
    pub fn decide_now<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        match pin!(self.decide(request, now, encode)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decided) => decided,
            Poll::Pending => unreachable!("a decision in memory does not wait"),
        }
    }
}

/// Adds the rules that apply to `record`. The name of a limit that the request carries would contain its values.
#[cold]
fn record_rules(record: &DecisionRecord, matched: &Matched<'_>, verdict: &Verdict<'_>) {
    for (descriptor, status) in matched.matches.iter().zip(&verdict.statuses) {
        let (rule, hits) = match descriptor {
            DescriptorMatch::NoLimit => continue,
            DescriptorMatch::Unlimited(rule) => (rule.path.to_string(), 0),
            DescriptorMatch::Limited(check) => {
                let check = &matched.checks[*check];
                let hits = i64::try_from(check.hits.0).unwrap_or(i64::MAX);
                let rule = match &check.rule {
                    RuleRef::Compiled(rule) => rule.path.to_string(),
                    RuleRef::Override(_) => "limit override".to_owned(),
                };
                (rule, if check.direction == Direction::Take { hits } else { -hits })
            }
        };
        record.add_rule(rule, hits, status.code == Code::OverLimit);
    }
}

/// Returns a limit for each tier of the rule; none for an unlimited one.
fn rule_limits(rule: &CompiledRule) -> impl Iterator<Item = RuleLimit> {
    let tiers = match &rule.rule.limit {
        Limit::Unlimited => &[],
        Limit::Tiers { tiers, .. } => tiers.as_slice(),
    };
    tiers.iter().map(|tier| RuleLimit {
        name: rule.path.parts().into(),
        requests: tier.requests,
        period: Duration::from_nanos(tier.period.as_nanos()),
        per: tier.period.to_string().into(),
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
