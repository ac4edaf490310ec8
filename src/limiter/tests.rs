//! Requests that are decided by what is common to most are decided as all others are.

use std::sync::Arc;

use super::{DecisionSettings, Limiter};
use crate::{
    limit::{
        Algorithm, Descriptor, Domain, Entry, KeyHasher, Limit, Modes, OverLimitPolicy, Period, Request,
        Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
    },
    observe::{RuleCounts, Stats},
    store::MemoryStore,
};

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier { requests, period: Period::from_secs(seconds), algorithm }
}

fn rule(tiers: &[Tier], over_limit_policy: OverLimitPolicy) -> Rule {
    Rule::new(Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy })
}

/// Returns rules for each key that descriptors of the test have, and for two below the first one.
fn rules() -> RuleSet {
    let (count, ignore) = (OverLimitPolicy::Count, OverLimitPolicy::Ignore);
    let (fixed, sliding) = (Algorithm::FixedWindow, Algorithm::SlidingWindow);
    let node = |key: &str, rule: Rule| RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) };
    let two = rule(&[tier(4, 2, fixed), tier(9, 10, sliding)], ignore);
    let same = rule(&[tier(5, 7, fixed), tier(5, 7, fixed)], ignore);
    let mut tenant = node("tenant", rule(&[tier(5, 3, fixed)], count));
    tenant.children = vec![node("path", two), node("same", same)];
    let shadow = Rule { shadow_mode: true, ..rule(&[tier(2, 5, fixed)], ignore) };
    let quota = Rule { quota_mode: true, ..rule(&[tier(3, 5, fixed)], ignore) };
    let mut named = node("named", rule(&[tier(3, 4, sliding)], ignore));
    named.value_to_metric = true;
    let nodes = vec![
        tenant,
        node("shadow", shadow),
        node("quota", quota),
        named,
        node("free", Rule::new(Limit::Unlimited)),
    ];
    RuleSet::new(&[Domain::new("shop", nodes)], KeyHasher::with_secret([1, 2]))
}

fn limiter(modes: Modes) -> (Limiter<MemoryStore>, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let settings = DecisionSettings { modes, ..DecisionSettings::default() };
    let limiter = Limiter::new(MemoryStore::new(1_000), Arc::clone(&stats), settings);
    limiter.load(rules());
    (limiter, stats)
}

/// Returns all that a verdict says, but for its metadata.
fn decide(limiter: &Limiter<MemoryStore>, request: &Request<'_>, now: Timestamp) -> String {
    let decided = limiter.decide_now(request, now, |verdict| {
        let statuses: Vec<_> = verdict
            .statuses
            .iter()
            .map(|status| {
                let limit =
                    status.limit.map(|limit| (limit.rule.label(), limit.tier.clone(), limit.requests));
                (status.code, status.quota, limit, status.remaining, status.reset)
            })
            .collect();
        format!("{:?}", (verdict.code, verdict.shadowed, verdict.nearest, statuses))
    });
    decided.expect("a valid request")
}

fn counts(stats: &Stats) -> Vec<(Vec<Box<str>>, RuleCounts)> {
    let mut counts: Vec<_> = stats.rules().iter().map(|rule| (rule.name().to_vec(), rule.get())).collect();
    counts.sort_by(|a, b| a.0.cmp(&b.0));
    counts
}

/// Requests of one to three descriptors, whose metadata is asked for or not: it is made by what is for all requests.
#[test]
fn plain_requests_are_decided_as_all_others() {
    let paths: [&[(&str, &str)]; 8] = [
        &[("tenant", "acme")],
        &[("tenant", "acme"), ("path", "/v1/orders")],
        &[("tenant", "a tenant of a long name"), ("same", "")],
        &[("shadow", "x")],
        &[("quota", "x")],
        &[("named", "y")],
        &[("free", "x")],
        &[("unknown", "x")],
    ];
    for (shadow, quota) in [(false, false), (true, false), (false, true)] {
        let modes = |metadata| Modes { shadow, quota, metadata, ..Modes::default() };
        let ((plain, plain_stats), (other, other_stats)) = (limiter(modes(false)), limiter(modes(true)));
        let mut now = Timestamp::from_secs(1_000_003);
        for i in 0..600_usize {
            let descriptors = (0..=i % 3).map(|j| Descriptor {
                entries: paths[(i / 3 + j * (1 + i % 5)) % paths.len()]
                    .iter()
                    .map(|(key, value)| Entry { key, value })
                    .collect(),
                hits: [None, Some(2), Some(0)][(i + j) % 3],
                ..Descriptor::default()
            });
            let request = Request { domain: "shop", descriptors: descriptors.collect(), hits: 1 };
            assert_eq!(decide(&plain, &request, now), decide(&other, &request, now), "{i}: {request:?}");
            now = now.after(Period::from_millis(137));
        }
        assert_eq!(counts(&plain_stats), counts(&other_stats));
        assert_eq!(plain_stats.global_shadow_mode.get(), other_stats.global_shadow_mode.get());
        assert!(counts(&plain_stats).iter().any(|(_, counts)| counts.over_limit > 0));
    }
}
