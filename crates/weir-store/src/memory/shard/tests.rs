use proptest::{collection::vec, prelude::*};

use super::*;
use crate::MemoryStore;
use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request, Rule, RuleNode, RuleSet,
    RuntimeLimit, Scope, Unit, Values,
    request_bucket::{StepLimit, StepRequest},
};

#[derive(Clone, Debug)]
enum Step {
    /// A request with these values, each of a rule or with a limit of its own of this unit, that counts all or nothing
    /// or not.
    Take(Vec<(u8, Option<Unit>)>, bool),
    Bucket(u8, u64),
    Delete(u8),
    /// Seconds pass, and all counters that have expired are swept.
    Sweep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let unit = prop_oneof![Just(None), Just(Some(Unit::Minute)), Just(Some(Unit::Year))];
    let step = prop_oneof![
        8 => (vec((0..60_u8, unit), 1..4), any::<bool>()).prop_map(|(values, all)| Step::Take(values, all)),
        4 => (0..4_u8, 1..9_u64).prop_map(|(name, max)| Step::Bucket(name, max)),
        1 => (0..4_u8).prop_map(Step::Delete),
        1 => (0..90_u64).prop_map(Step::Sweep),
    ];
    vec(step, 1..200)
}

proptest! {
    /// The numbers of counters are right whatever adds, claims and removes them, and bounded; and no request that
    /// brings all its limits removes the counter of a rule.
    #[test]
    fn the_numbers_are_those_of_the_counters(max in prop_oneof![1..40_usize, Just(5_000)], steps in steps()) {
        let (store, hasher) = (MemoryStore::new(max), KeyHasher::random());
        let rule = Rule::new(Limit::fixed_window(2, Period::from_secs(60)));
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], hasher);
        let mut now = Timestamp::from_secs(1_000_020);
        let counts = || {
            let all = || store.shards.iter().flat_map(|shard| {
                let keys: Vec<CounterKey> = shard.lock().table.iter().map(|slot| slot.key).collect();
                keys
            });
            (all().filter(|key| !key.is_of_request()).count(), all().filter(|key| key.is_of_request()).count())
        };
        for step in steps {
            let before = counts();
            let mut keeps_rules = true;
            match step {
                Step::Take(values, all) => {
                    let texts: Vec<String> = values.iter().map(|(value, _)| value.to_string()).collect();
                    let descriptors = texts.iter().zip(&values).map(|(value, (_, unit))| Descriptor {
                        entries: [Entry { key: "k", value }].into_iter().collect(),
                        limit: unit.map(|unit| Box::new(RuntimeLimit::per_unit(3, unit))),
                        ..Descriptor::default()
                    });
                    keeps_rules = values.iter().all(|(_, unit)| unit.is_some());
                    let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
                    let scope = if all { Scope::Request } else { Scope::Descriptor };
                    let matched = Matched::new(&rules, &request);
                    prop_assert_eq!(store.decide(&matched.checks, scope, now).len(), values.len());
                }
                Step::Bucket(name, max) => {
                    let limit = StepLimit { max, refill: max, period_ms: 30_000 };
                    let request = StepRequest { limit, take: 1, at: None, strict: false, session: false };
                    store.decide_bucket_now(&BucketName::new(hasher, &[name]), &BucketRequest::Step(request), now);
                }
                Step::Delete(name) => {
                    store.find_buckets_now(&BucketName::new(hasher, &[name]), true, now);
                }
                Step::Sweep(seconds) => {
                    now = now.after(Period::from_secs(seconds));
                    (0..store.sweep_steps()).for_each(|step| store.sweep_step(step, now));
                    keeps_rules = false;
                }
            }
            let (of_rules, of_requests) = counts();
            prop_assert!(!keeps_rules || of_rules == before.0, "{of_rules} of {} are left", before.0);
            let known: usize = store.shards.iter().map(|shard| shard.lock().count(Among::Requests)).sum();
            prop_assert_eq!(known, of_requests);
            let known = store.of_requests.load(std::sync::atomic::Ordering::Relaxed);
            prop_assert_eq!((store.usage().live, known), (of_rules + of_requests, of_requests));
            prop_assert!(store.usage().live <= max, "{} of {max}", store.usage().live);
        }
    }
}
