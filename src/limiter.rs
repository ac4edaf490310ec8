//! The way of one request: rules, store, verdict, stats. Every door leads here.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use arc_swap::ArcSwapOption;

use crate::{
    limit::{
        Decision, Direction, LimitCheck, Matched, Modes, Request, RulePath, RuleRef, RuleSet, Scope, Tally,
        Timestamp, Verdict,
    },
    observe::{
        Metric, Source,
        stats::{RuleStats, Stats},
    },
    store::{MemoryStore, Store, StoreError},
};

/// Decides requests against the rules of the moment.
#[derive(Debug)]
pub struct Limiter<S> {
    /// Swapped whole by a reload; a request keeps the rules that it started with. None before the first ones.
    loaded: ArcSwapOption<Loaded>,
    store: S,
    stats: Arc<Stats>,
    settings: DecisionSettings,
}

/// What the settings have to say about decisions.
#[derive(Clone, Debug)]
pub struct DecisionSettings {
    /// How requests are answered.
    pub modes: Modes,
    /// How far a refusal reaches.
    pub scope: Scope,
    /// `NEAR_LIMIT_RATIO`: the share of a limit past which hits are near it, above 0.
    pub near_limit_ratio: f32,
}

/// Rules with the stats that they count into.
#[derive(Debug)]
struct Loaded {
    rules: RuleSet,
    /// One for each rule, by its index.
    stats: Vec<Arc<RuleStats>>,
}

/// Why a request was not decided. The texts are the reference's, to the letter: callers see them.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The request names no domain.
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    /// The request holds no descriptor.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// There are no rules yet.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The store gave up.
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
    /// A limiter that has no rules yet.
    #[must_use]
    pub fn new(store: S, stats: Arc<Stats>, settings: DecisionSettings) -> Self {
        Self { loaded: ArcSwapOption::empty(), store, stats, settings }
    }

    /// Puts `rules` in the place of the present ones. Counts are kept: they belong to names, not to rules.
    pub fn load(&self, rules: RuleSet) {
        let stats = rules.rules().iter().map(|rule| self.stats.rule(&rule.path)).collect();
        self.loaded.store(Some(Arc::new(Loaded { rules, stats })));
    }

    /// Runs `look` on the present rules, if there are any.
    pub fn rules<T>(&self, look: impl FnOnce(&RuleSet) -> T) -> Option<T> {
        self.loaded.load().as_deref().map(|loaded| look(&loaded.rules))
    }

    /// Where the counts live.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides `request` as of `now`, and hands the verdict to `answer`, which makes a door's answer of it while the
    /// rules that it speaks of are held.
    pub async fn decide<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        answer: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        let decided = self.try_decide(request, now, answer).await;
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
        answer: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        if request.domain.is_empty() {
            return Err(LimitError::EmptyDomain);
        }
        if request.descriptors.is_empty() {
            return Err(LimitError::NoDescriptors);
        }
        let loaded = self.loaded.load();
        let loaded = loaded.as_ref().ok_or(LimitError::NoRules)?;

        let matched = Matched::meeting(&loaded.rules, request, |rule| loaded.stats[rule].fetch());
        let decision = self.store.take(&matched.checks, self.settings.scope, now).await?;
        let verdict = Verdict::new(request, &matched, &decision, &self.settings.modes);
        self.record(loaded, request, &matched, &decision, &verdict);
        Ok(answer(&verdict))
    }

    fn record(
        &self,
        loaded: &Loaded,
        request: &Request<'_>,
        matched: &Matched<'_>,
        decision: &[Decision],
        verdict: &Verdict<'_>,
    ) {
        if matched.unknown_domain {
            self.stats.unknown_domain(request.domain, request.descriptors.len() as u64);
        }
        if verdict.shadowed {
            self.stats.global_shadow_mode.add(1);
        }
        // what is given back was counted when it was taken
        for (check, decision) in
            matched.checks.iter().zip(decision).filter(|(check, _)| check.direction == Direction::Take)
        {
            let limit = check.tiers()[decision.tier].capacity();
            let policy = check.over_limit_policy_in(self.settings.scope);
            let tally = Tally::of(decision, limit, policy, check.hits, self.settings.near_limit_ratio);
            self.with_stats(loaded, check, |stats| {
                stats.record(check.hits, tally, decision.cached, decision.over && check.rule.shadow_mode());
            });
        }
    }

    /// Runs `record` on the stats that `ask` counts into: the rule's, unless values are part of their name. Where such a
    /// name would be one too many, the rule's all the same; a limit that the caller brought along has none then.
    fn with_stats(&self, loaded: &Loaded, check: &LimitCheck<'_>, record: impl FnOnce(&RuleStats)) {
        match &check.rule {
            RuleRef::Compiled(compiled_rule) => {
                let dynamic =
                    compiled_rule.stat_path(check.entries).and_then(|path| self.stats.dynamic_rule(&path));
                record(dynamic.as_ref().unwrap_or(&loaded.stats[compiled_rule.index()]));
            }
            RuleRef::Override(_) => {
                let path = RulePath::of_override(check.domain, check.entries);
                if let Some(stats) = self.stats.dynamic_rule(&path) {
                    record(&stats);
                }
            }
        }
    }
}

impl Limiter<MemoryStore> {
    /// Decides as [`Limiter::decide`] does, without an executor: memory never makes a decision wait.
    ///
    /// # Panics
    ///
    /// Never: the future of a decision in memory is ready at its first poll.
    pub fn decide_now<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        answer: impl FnOnce(&Verdict<'_>) -> T,
    ) -> Result<T, LimitError> {
        match pin!(self.decide(request, now, answer)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decided) => decided,
            Poll::Pending => unreachable!("a decision in memory does not wait"),
        }
    }
}

impl<S: Store + Source> Source for Limiter<S> {
    fn metrics(&self) -> Vec<Metric> {
        let rules = self.rules(|rules| rules.rules().len()).unwrap_or_default();
        let mut metrics = vec![Metric::gauge("weir.rules", "Rules that are loaded.", rules as u64)];
        metrics.extend(self.store().metrics());
        metrics
    }
}
