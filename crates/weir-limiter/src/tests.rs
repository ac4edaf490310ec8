//! Requests that are decided by what is common to most are decided as all others are.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{DecisionSettings, Limiter};
use weir_limit::{
    Algorithm, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, Modes, OverLimitPolicy, Period, Request,
    Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
};
use weir_observe::{RuleCounts, Stats};
use weir_store::{
    MemoryStore,
    clock::{Clock as _, ManualClock},
};

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

fn rule(tiers: &[Tier], over_limit_policy: OverLimitPolicy) -> Rule {
    Rule::new(Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy })
}

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
                let limit = status.limit.map(|limit| (limit.rule.label(), limit.tier, limit.requests));
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

/// The entries of descriptors: one of each kind of rule, and some without a rule.
const PATHS: [&[(&str, &str)]; 8] = [
    &[("tenant", "acme")],
    &[("tenant", "acme"), ("path", "/v1/orders")],
    &[("tenant", "a tenant of a long name"), ("same", "")],
    &[("shadow", "x")],
    &[("quota", "x")],
    &[("named", "y")],
    &[("free", "x")],
    &[("unknown", "x")],
];

/// Requests of one to three descriptors, whose metadata is asked for or not: it is made by what is for all requests.
#[test]
fn plain_requests_are_decided_as_all_others() {
    for (shadow, quota) in [(false, false), (true, false), (false, true)] {
        let modes = |metadata| Modes { shadow, quota, metadata, ..Modes::default() };
        let ((plain, plain_stats), (other, other_stats)) = (limiter(modes(false)), limiter(modes(true)));
        let mut now = Timestamp::from_secs(1_000_003);
        for i in 0..600_usize {
            let descriptors = (0..=i % 3).map(|j| Descriptor {
                entries: PATHS[(i / 3 + j * (1 + i % 5)) % PATHS.len()]
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

/// Polls `future`, which must not wait.
fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

/// Requests that may wait and do not, whose metadata is asked for or not: it is made by what is for all requests.
#[test]
fn plain_requests_that_may_wait_are_decided_as_all_others() {
    // the last one has no rule, and nothing to wait for
    let paths = &PATHS[..7];
    let modes = |metadata| Modes { metadata, ..Modes::default() };
    let ((plain, plain_stats), (other, other_stats)) = (limiter(modes(false)), limiter(modes(true)));
    let (mut now, mut rejected) = (Timestamp::from_secs(1_000_003), 0);
    for i in 0..600_usize {
        let entries = paths[i % paths.len()].iter().map(|(key, value)| Entry { key, value });
        let hits = [None, Some(2), Some(0)][i % 3];
        let descriptor = Descriptor { entries: entries.collect(), hits, ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: std::iter::once(descriptor).collect(), hits: 1 };
        let acquire = |limiter: &Limiter<MemoryStore>| {
            // shorter than each wait, so that nobody is kept
            let clock = ManualClock::at(now);
            let acquired = limiter.acquire(&request, Period::from_nanos(1), &clock, |verdict, acquired| {
                let taken = acquired.receipt.as_ref().map(|receipt| (receipt.hits, receipt.taken_at));
                (verdict.code, verdict.nearest, verdict.statuses.len(), acquired.rejection, taken)
            });
            now_or_never(acquired).expect("a valid request")
        };
        let (one, two) = (acquire(&plain), acquire(&other));
        assert_eq!(one, two, "{i}: {request:?}");
        rejected += usize::from(one.3.is_some());
        now = now.after(Period::from_millis(137));
    }
    assert_eq!(counts(&plain_stats), counts(&other_stats));
    assert!((50..550).contains(&rejected), "{rejected}");
    assert_eq!((plain.waiters(), other.waiters()), (0, 0));
}

/// Callers that wait, and one that would fit before them.
#[test]
fn callers_that_wait_are_concluded_as_all_others() {
    let concluded = [false, true].map(|metadata| {
        let (limiter, stats) = limiter(Modes { metadata, ..Modes::default() });
        let clock = ManualClock::at(Timestamp::from_secs(1_000_003));
        let mut told = Vec::new();
        for path in [&[("tenant", "acme")][..], &[("tenant", "acme"), ("path", "/v1/orders")]] {
            let key = limiter.key("shop", path).expect("rules are loaded");
            let acquire = |hits| {
                let request = key.request(Hits(hits));
                let limiter = &limiter;
                let clock = &clock;
                async move {
                    let acquired =
                        limiter.acquire(&request, Period::from_secs(60), clock, |verdict, acquired| {
                            let first = &verdict.statuses[0];
                            let taken =
                                acquired.receipt.as_ref().map(|receipt| (receipt.hits, receipt.taken_at));
                            (first.remaining, first.reset, acquired.waited, acquired.rejection, taken)
                        });
                    acquired.await.expect("a valid request")
                }
            };
            told.push(now_or_never(acquire(3)));
            let mut waits = Box::pin(acquire(4));
            assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(limiter.acquire_fitting(&key, Hits(1), clock.now()).is_none(), "it would overtake");
            let mut behind = Box::pin(acquire(1));
            assert!(behind.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            clock.advance(Period::from_secs(20));
            limiter.serve_waiters(clock.now());
            told.push(now_or_never(waits));
            clock.advance(Period::from_secs(20));
            limiter.serve_waiters(clock.now());
            told.push(now_or_never(behind));
        }
        (told, counts(&stats))
    });
    assert_eq!(concluded[0], concluded[1]);
}
