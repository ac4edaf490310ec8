use std::sync::{Arc, atomic::Ordering};

use super::{AcquireError, Acquired, LimitError, Limiter, LoadedRules};
use arc_swap::ArcSwapOption;
use weir_limit::{
    self as limit, Code, CounterKey, Decision, Direction, Entry, GiveBack, Hits, LimitCheck, Matched, Named,
    OverLimitPolicy, Period, Request, RuleId, RuleRef, SharedTiers, Timestamp, line::Rejection,
};
use weir_observe::RuleStats;
use weir_store::{MemoryStore, Receipt, Store, TakeRequest};

/// A domain and entries, whose rule and counter are found once, and again after each reload.
#[derive(Debug)]
pub struct Key {
    names: Named,
    first: Found,
    /// What was found after a later reload.
    later: ArcSwapOption<Found>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDecision {
    pub code: Code,
    /// Hits that would still be admitted: 2^32-1 for an unlimited rule, 0 without a rule.
    pub remaining: u32,
    /// As [`Decision::reset`]; none if nothing was counted.
    pub reset: Option<Period>,
}

/// What the rules of one generation say about a key.
#[derive(Debug)]
struct Found {
    generation: u64,
    /// None if the key's requests are not decided by one counter alone.
    counter: Option<KeyCounter>,
}

/// The counter of a key. Keeps no set of rules alive.
#[derive(Debug)]
struct KeyCounter {
    key: CounterKey,
    /// That of the first tier, which most have alone.
    first_key: CounterKey,
    tiers: SharedTiers,
    /// That of the rule, or of a request of all or none.
    over_limit_policy: OverLimitPolicy,
    /// Whether rejections report that nothing is left, also if fewer hits would fit.
    reports_none: bool,
    stats: Arc<RuleStats>,
    rule: RuleId,
    is_returnable: bool,
    /// Whether it is in this process's memory.
    is_here: bool,
}

// === impl Key ===

impl Key {
    pub fn domain(&self) -> &str {
        self.names.domain()
    }

    pub fn request(&self, hits: Hits) -> Request<'_> {
        self.names.request(hits)
    }
}

impl Limiter<MemoryStore> {
    /// Decides on `hits` of `key` and counts them, as [`Limiter::decide`] does for a request of its entries.
    #[inline]
    pub fn decide_key(&self, key: &Key, hits: Hits, now: Timestamp) -> Result<KeyDecision, LimitError> {
        if self.generation() == key.first.generation
            && let Some(counter) = &key.first.counter
        {
            return Ok(KeyDecision::of(counter, &self.take_of_key(&self.store, counter, hits, now)));
        }
        self.decide_later_key(key, hits, now)
    }

    /// Decides about a key whose rules have been replaced, or which has no counter of its own.
    #[inline(never)]
    fn decide_later_key(&self, key: &Key, hits: Hits, now: Timestamp) -> Result<KeyDecision, LimitError> {
        self.with_counter(key, |counter| match counter {
            Some(counter) => Ok(KeyDecision::of(counter, &self.take_of_key(&self.store, counter, hits, now))),
            None => self.decide_now(&key.request(hits), now, |verdict| {
                let status = verdict.statuses.first();
                KeyDecision {
                    code: verdict.code,
                    remaining: status.map_or(0, |status| status.remaining),
                    reset: status.and_then(|status| status.reset),
                }
            }),
        })?
    }
}

impl<S: Store> Limiter<S> {
    pub fn key(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Key, LimitError> {
        let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let names = Named::new(domain, &entries);
        let first = self.find_counter(&names.request(Hits(1)))?;
        Ok(Key { names, first, later: ArcSwapOption::empty() })
    }

    pub fn try_acquire(&self, key: &Key, hits: Hits, now: Timestamp) -> Result<Acquired, AcquireError> {
        self.with_counter(key, |counter| {
            let Some(counter) = counter else { return self.acquire_now(&key.request(hits), now) };
            let store = self.store.memory().filter(|_| counter.is_here).ok_or(AcquireError::MustAsk)?;
            let decision = self.take_of_key(store, counter, hits, now);
            let rejection = decision.over.then(|| {
                if hits.0 > limit::capacity(&counter.tiers) {
                    Rejection::Never
                } else {
                    Rejection::Timeout { retry_after: decision.reset }
                }
            });
            let receipt = rejection.is_none().then(|| counter.receipt(hits, now));
            Ok(Acquired::new(rejection, Period::default(), receipt))
        })?
    }

    /// Takes `hits`, at least one, if they fit, nobody waits and the counter is here; else use [`Limiter::acquire`].
    pub fn acquire_fitting(&self, key: &Key, hits: Hits, now: Timestamp) -> Option<Acquired> {
        let taken = self.with_counter(key, |counter| {
            let counter = counter.filter(|counter| counter.is_here && hits > Hits(0))?;
            let decision = self.store.memory()?.take_fitting(&counter.take(hits), now)?;
            counter.stats.add(self.counts_of(&counter.take(hits), &decision, false));
            Some(Acquired::admitted(Some(counter.receipt(hits, now)), now, now))
        });
        taken.ok().flatten()
    }

    fn with_counter<T>(
        &self,
        key: &Key,
        act: impl FnOnce(Option<&KeyCounter>) -> T,
    ) -> Result<T, LimitError> {
        let generation = self.generation();
        if key.first.generation == generation {
            return Ok(act(key.first.counter.as_ref()));
        }
        if let Some(found) = &*key.later.load()
            && found.generation == generation
        {
            return Ok(act(found.counter.as_ref()));
        }
        let found = Arc::new(self.find_counter(&key.request(Hits(1)))?);
        key.later.store(Some(Arc::clone(&found)));
        Ok(act(found.counter.as_ref()))
    }

    #[inline]
    fn take_of_key(&self, store: &MemoryStore, counter: &KeyCounter, hits: Hits, now: Timestamp) -> Decision {
        let taken = counter.take(hits);
        let decision = store.take(&taken, now);
        counter.stats.add(self.counts_of(&taken, &decision, false));
        decision
    }

    fn find_counter(&self, request: &Request<'_>) -> Result<Found, LimitError> {
        // before the rules: if these are newer, they are found again by the next request
        let generation = self.generation();
        let loaded = self.current(request)?;
        let matched = Matched::new(&loaded.rules, request);
        let counter = match &*matched.checks {
            [check] => self.counter_of(&loaded, check, matched.scope),
            _ => None,
        };
        Ok(Found { generation, counter })
    }

    /// None unless it alone decides and nothing else is reported.
    fn counter_of(
        &self,
        loaded: &LoadedRules,
        check: &LimitCheck<'_>,
        scope: limit::Scope,
    ) -> Option<KeyCounter> {
        let RuleRef::Compiled(rule) = &check.rule else { return None };
        // what shadow mode admits is more than the counter says
        let is_shadow = check.rule.shadow_mode() || self.settings.modes.shadow;
        let is_reported = self.hot_keys.is_some() || self.rejection_log.is_some();
        let is_other = check.pool.is_some()
            || check.direction == Direction::GiveBack
            || check.rule.meters()
            || rule.places().is_some();
        if is_other || is_shadow || is_reported {
            return None;
        }
        let mut stats = Arc::clone(&loaded.stats[rule.index()]);
        if let Some(path) = rule.stat_path(check.entries) {
            stats = self.stats.dynamic_rule(path.parts(), Some(&stats))?;
        }
        Some(KeyCounter {
            key: check.key,
            first_key: check.key.of_tier(check.tiers().first()?),
            tiers: check.shared_tiers(),
            over_limit_policy: check.over_limit_policy_in(self.settings.scope.max(scope)),
            reports_none: check.over_limit_policy() == OverLimitPolicy::Count,
            stats,
            rule: check.rule.id()?,
            is_returnable: rule.give_back != GiveBack::Deny,
            is_here: self.store.lines_for(check).is_some(),
        })
    }

    /// Returns the number of reloads.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

// === impl KeyCounter ===

impl KeyCounter {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn take(&self, hits: Hits) -> TakeRequest<'_> {
        TakeRequest {
            key: self.key,
            first_key: self.first_key,
            tiers: &self.tiers,
            over_limit_policy: self.over_limit_policy,
            direction: Direction::Take,
            hits,
        }
    }

    fn receipt(&self, hits: Hits, taken_at: Timestamp) -> Receipt {
        Receipt {
            key: self.key,
            tiers: self.tiers.clone(),
            hits,
            taken_at,
            rule: Some(self.rule),
            is_returnable: self.is_returnable,
            names: None,
        }
    }
}

// === impl KeyDecision ===

impl KeyDecision {
    #[inline]
    fn of(counter: &KeyCounter, decision: &Decision) -> Self {
        let code = if decision.over { Code::OverLimit } else { Code::Ok };
        let remaining = if decision.over && counter.reports_none { 0 } else { decision.remaining };
        Self { code, remaining, reset: Some(decision.reset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DecisionSettings;
    use weir_limit::{Domain, KeyHasher, Limit, Rule, RuleNode, RuleSet, Scope, Tier, Values};
    use weir_observe::{RuleCounts, Stats};

    const ENTRIES: [(&str, &str); 1] = [("tenant", "acme")];

    fn tier(requests: u32, seconds: u64) -> Tier {
        Tier::fixed_window(requests, Period::from_secs(seconds))
    }

    fn rule(tiers: &[Tier], over_limit_policy: OverLimitPolicy) -> Rule {
        Rule::new(Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy })
    }

    fn rules(rule: Option<Rule>, value_to_metric: bool, scope: Scope) -> RuleSet {
        let node = RuleNode { value_to_metric, rule, ..RuleNode::new("tenant", Values::Any) };
        RuleSet::new(&[Domain { scope, ..Domain::new("shop", vec![node]) }], KeyHasher::with_secret([1, 2]))
    }

    fn limiter(rules: RuleSet) -> (Limiter<MemoryStore>, Arc<Stats>) {
        let stats = Arc::new(Stats::default());
        let limiter = Limiter::new(MemoryStore::new(100), Arc::clone(&stats), DecisionSettings::default());
        limiter.load(rules);
        (limiter, stats)
    }

    fn by_request(limiter: &Limiter<MemoryStore>, hits: Hits, now: Timestamp) -> KeyDecision {
        let entries: Vec<_> = ENTRIES.iter().map(|(key, value)| Entry { key, value }).collect();
        let names = Named::new("shop", &entries);
        let decided = limiter.decide_now(&names.request(hits), now, |verdict| KeyDecision {
            code: verdict.code,
            remaining: verdict.statuses[0].remaining,
            reset: verdict.statuses[0].reset,
        });
        decided.expect("a valid request")
    }

    fn counts(stats: &Stats) -> Vec<(Vec<Box<str>>, RuleCounts)> {
        let mut counts: Vec<_> =
            stats.rules().iter().map(|rule| (rule.name().to_vec(), rule.get())).collect();
        counts.sort_by(|a, b| a.0.cmp(&b.0));
        counts
    }

    #[test]
    fn a_key_is_decided_as_its_requests_are() {
        let (count, ignore) = (OverLimitPolicy::Count, OverLimitPolicy::Ignore);
        let cases = || {
            let shadow = Rule { shadow_mode: true, ..rule(&[tier(5, 10)], ignore) };
            let bucket = Tier::token_bucket(1, Period::from_secs(1), limit::Bucket::of(4));
            let sliding = Tier::sliding_window(6, Period::from_secs(5));
            [
                rules(Some(rule(&[tier(5, 10)], count)), false, Scope::Descriptor),
                rules(Some(rule(&[tier(5, 10)], count)), false, Scope::Request),
                rules(Some(rule(&[tier(9, 10)], ignore)), true, Scope::Descriptor),
                rules(Some(rule(&[tier(3, 1), tier(9, 10)], ignore)), false, Scope::Descriptor),
                rules(Some(rule(&[bucket], ignore)), false, Scope::Descriptor),
                rules(Some(rule(&[sliding], ignore)), false, Scope::Descriptor),
                rules(Some(Rule::new(Limit::Unlimited)), false, Scope::Descriptor),
                rules(Some(shadow), false, Scope::Descriptor),
                rules(None, false, Scope::Descriptor),
            ]
        };
        for (first, (one, other)) in cases().into_iter().zip(cases()).enumerate() {
            let ((keyed, keyed_stats), (asked, asked_stats)) = (limiter(one), limiter(other));
            let key = keyed.key("shop", &ENTRIES).expect("rules are loaded");
            let mut now = Timestamp::from_secs(1_000_003);
            for (second, (one, other)) in cases().into_iter().zip(cases()).enumerate() {
                for i in 0..40 {
                    let hits = Hits([1, 2, 0, 1, 7][i % 5]);
                    let decided = keyed.decide_key(&key, hits, now).expect("rules are loaded");
                    assert_eq!(decided, by_request(&asked, hits, now), "{first}, then {second}, {i}");
                    now = now.after(Period::from_millis(333));
                }
                assert_eq!(counts(&keyed_stats), counts(&asked_stats), "{first}, then {second}");
                keyed.load(one);
                asked.load(other);
            }
        }
    }

    /// A rule that is known needs neither a look-up nor the pointer to the rules.
    #[test]
    fn a_key_notices_each_reload_once() {
        let (limiter, _) =
            limiter(rules(Some(rule(&[tier(5, 10)], OverLimitPolicy::Ignore)), false, Scope::Descriptor));
        let key = limiter.key("shop", &ENTRIES).expect("rules are loaded");
        let now = Timestamp::from_secs(1_000_000);
        let decide = || limiter.decide_key(&key, Hits(1), now).expect("rules are loaded");
        assert_eq!(decide().remaining, 4);
        assert!(key.later.load().is_none());
        limiter.load(rules(Some(rule(&[tier(9, 10)], OverLimitPolicy::Ignore)), false, Scope::Descriptor));
        assert_eq!(decide().remaining, 7);
        let found = key.later.load_full().expect("it was found again");
        assert_eq!(decide().remaining, 6);
        assert!(Arc::ptr_eq(&found, &key.later.load_full().expect("it was found again")));
    }

    #[test]
    fn a_key_needs_a_domain_and_rules() {
        let (limiter, _) = limiter(rules(None, false, Scope::Descriptor));
        assert!(matches!(limiter.key("", &ENTRIES), Err(LimitError::EmptyDomain)));
        let empty: Limiter<MemoryStore> =
            Limiter::new(MemoryStore::new(1), Arc::default(), DecisionSettings::default());
        assert!(matches!(empty.key("shop", &ENTRIES), Err(LimitError::NoRules)));
    }
}
