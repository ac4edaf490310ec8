//! Measures the time that decisions wait for the sweep of a large store: one thread removes ten million expired
//! counters as fast as possible while another decides.
//!
//! `cargo bench --bench sweep`

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request, Rule, RuleNode, RuleSet, Scope,
    Timestamp, Values,
};
use weir_observe::histogram::{BOUNDS, Distribution, Histogram};
use weir_store::MemoryStore;

const COUNTERS: usize = 10_000_000;

/// The time at which the counters are created, and a time at which all of them have expired.
const THEN: Timestamp = Timestamp::from_secs(1_000_000);
const NOW: Timestamp = Timestamp::from_secs(1_000_100);

fn rules() -> RuleSet {
    let rule = Some(Rule::new(Limit::fixed_window(1_000, Period::from_secs(60))));
    let node = RuleNode { rule, ..RuleNode::new("tenant", Values::Any) };
    RuleSet::new(&[Domain::new("shop", vec![node])], KeyHasher::random())
}

/// Decides a request of tenant `i`, and returns the elapsed time.
fn decide(store: &MemoryStore, rules: &RuleSet, i: usize, now: Timestamp) -> Duration {
    let tenant = i.to_string();
    let entries = [Entry { key: "tenant", value: &tenant }].into_iter().collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let started = Instant::now();
    let matched = Matched::new(rules, &request);
    let decisions = store.decide(&matched.checks, Scope::Descriptor, now);
    let elapsed = started.elapsed();
    assert!(!decisions[0].over);
    elapsed
}

fn main() {
    let (rules, store) = (rules(), MemoryStore::new(2 * COUNTERS));
    let filling = Histogram::default();
    for i in 0..COUNTERS {
        filling.record(decide(&store, &rules, i, THEN));
    }
    assert_eq!(store.usage().live, COUNTERS);
    print("decisions while the store grows to ten million counters", &filling.get());

    let (sweeping, deciding) = (AtomicBool::new(true), Histogram::default());
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..COUNTERS).cycle().step_by(7) {
                if !sweeping.load(Ordering::Relaxed) {
                    return;
                }
                deciding.record(decide(&store, &rules, i, NOW));
            }
        });
        let started = Instant::now();
        (0..store.sweep_steps()).for_each(|step| store.sweep_step(step, NOW));
        sweeping.store(false, Ordering::Relaxed);
        started.elapsed()
    });
    println!("{} expired counters were removed in {elapsed:?}", store.usage().expired);
    print("decisions during the sweep", &deciding.get());
}

fn print(title: &str, times: &Distribution) {
    println!("{title}:");
    let bounds = BOUNDS.iter().map(|bound| format!("up to {bound:?}")).chain(["longer".to_owned()]);
    for (bound, bucket) in bounds.zip(&times.buckets).filter(|(_, bucket)| bucket.count > 0) {
        println!("  {bound:>12} {:>10}", bucket.count);
    }
}
