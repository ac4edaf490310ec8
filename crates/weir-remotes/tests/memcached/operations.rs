//! Random requests for one counter under `strict`, compared with the store in memory.

use std::sync::Arc;

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure, OverLimitPolicy,
    Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Timestamp, Values,
};
use weir_store::MemoryStore;

use crate::support::{Instance, Server, SetClock, settings, window};

/// Shortly before a window of any length of the test ends.
const START: u64 = 1_800_000_000 - 20;

/// A request, some time after the last one.
#[derive(Clone, Debug)]
struct Step {
    later: Period,
    value: &'static str,
    hits: u64,
    refund: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let later = prop_oneof![6 => 0..500_u64, 2 => 500..20_000_u64, 1 => 20_000..200_000_u64];
    let hits = prop_oneof![5 => 0..4_u64, 3 => 0..15_u64, 1 => Just(u64::MAX), 1 => Just(1 << 40)];
    let step = (later, select(&["v", "w w"][..]), hits, prop::bool::weighted(0.2));
    let step = step.prop_map(|(later, value, hits, refund)| Step {
        later: Period::from_millis(later),
        value,
        // both bound absurd numbers of hits, but not at the same number
        hits: if refund { hits.min(15) } else { hits },
        refund,
    });
    vec(step, 1..40)
}

/// Sends the steps to both stores.
async fn compare(
    server: &Server,
    case: u64,
    requests: u32,
    seconds: u64,
    (policy, scope): (OverLimitPolicy, Scope),
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let clock = SetClock::at(START);
    let coordination = RuleCoordination {
        mode: Some(Coordination::Strict),
        on_store_failure: Some(OnStoreFailure::Deny),
        ..RuleCoordination::default()
    };
    let limit = Limit::Tiers { tiers: [window(requests, seconds)].into(), over_limit_policy: policy };
    let rule = Rule { coordination, ..Rule::new(limit) };
    let mut own = settings(&[server]);
    own.keys.prefix = format!("{case}:").into();
    let weir = Instance::with(own, rule.clone(), Arc::clone(&clock) as _);
    weir.wait_until_connected().await;
    let memory = MemoryStore::new(100);
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
    let rules = RuleSet::new(&[Domain::new("fleet", vec![node])], KeyHasher::random());
    let mut now = Timestamp::from_secs(START);
    for step in steps {
        now = now.after(step.later);
        clock.set(now);
        let entries = [Entry { key: "k", value: step.value }];
        let descriptor = Descriptor {
            entries: entries.into_iter().collect(),
            hits: Some(step.hits),
            refund: step.refund,
            ..Descriptor::default()
        };
        let request = Request { domain: "fleet", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let expected = memory.decide(&Matched::new(&rules, &request).checks, scope, now)[0];
        let actual = weir.decide(step.value, step.hits, step.refund, scope).await;
        prop_assert_eq!(
            (actual.over, actual.remaining, actual.reset),
            (expected.over, expected.remaining, expected.reset),
            "{:?}",
            step
        );
    }
    prop_assert_eq!(weir.store.coordination_metrics().decisions.fallback.get(), 0);
    Ok(())
}

#[test]
fn strict_decides_like_the_store_in_memory() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = Server::start();
    let case = std::cell::Cell::new(0);
    let policies = select(&[OverLimitPolicy::Count, OverLimitPolicy::Ignore][..]);
    let scopes = select(&[Scope::Descriptor, Scope::Request][..]);
    // a window that is no unit has a key in weir's format
    let rules = (0..12_u32, select(&[60_u64, 3_600, 30 * 86_400, 90][..]), (policies, scopes));
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(rules, steps()), |((requests, seconds, counting), steps)| {
        case.set(case.get() + 1);
        runtime.block_on(compare(&server, case.get(), requests, seconds, counting, &steps))
    });
    outcome.expect("both decide alike");
}
