//! Reloads under load: every response uses one set of rules, old or new, and counts are kept.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use weir_limit::{
    Code, Descriptor, Domain, Entry, IpNetwork, KeyHasher, Limit, ListedNetwork, NetworkList, Period,
    Request, Rule, RuleNode, RuleSet, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::MemoryStore;

/// Returns two rules, `a` and `b`, with the generation in their names and limits.
fn generation(n: u32, hasher: KeyHasher) -> RuleSet {
    let node = |key: &str| {
        let limit = Limit::fixed_window(1_000_000 + n, Period::from_secs(60));
        let rule = Rule { name: Some(n.to_string().into()), ..Rule::new(limit) };
        RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) }
    };
    RuleSet::new(&[Domain::new("d", vec![node("a"), node("b")])], hasher)
}

fn request() -> Request<'static> {
    let descriptor = |key| Descriptor {
        entries: [Entry { key, value: "v" }].into_iter().collect(),
        ..Descriptor::default()
    };
    Request {
        domain: "d",
        descriptors: [descriptor("a"), descriptor("b")].into_iter().collect(),
        hits: 1,
    }
}

/// The outcome of a request: the names and limits of both rules, and the remaining hits of the first.
type Outcome = (Vec<(String, u32)>, u32);

fn decide(limiter: &Limiter<MemoryStore>) -> Outcome {
    let request = request();
    let decided = limiter.decide(&request, Timestamp::from_secs(1), |verdict| {
        let limits = verdict.statuses.iter().map(|status| {
            let limit = status.limit.expect("both descriptors have a rule");
            (limit.rule.name().unwrap_or_default().to_owned(), limit.requests)
        });
        (limits.collect(), verdict.statuses[0].remaining)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime.block_on(decided).expect("the memory store does not fail")
}

#[test]
fn every_response_under_load_uses_one_generation_and_no_count_is_lost() {
    let hasher = KeyHasher::random();
    let limiter = Arc::new(Limiter::new(
        MemoryStore::new(100),
        Arc::new(Stats::default()),
        DecisionSettings::default(),
    ));
    limiter.load(generation(0, hasher));
    let stop = Arc::new(AtomicBool::new(false));
    let switches = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (limiter, stop, switches) = (Arc::clone(&limiter), Arc::clone(&stop), Arc::clone(&switches));
            thread::spawn(move || {
                let mut sent = 0;
                let mut last = String::new();
                while !stop.load(Ordering::Relaxed) {
                    let (limits, _) = decide(&limiter);
                    let (name, requests) = &limits[0];
                    assert_eq!(limits[0], limits[1], "one set of rules for the whole request");
                    assert_eq!(*requests, 1_000_000 + name.parse::<u32>().expect("names are numbers"));
                    if *name != last {
                        switches.fetch_add(1, Ordering::Relaxed);
                        last.clone_from(name);
                    }
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    // reloads until the threads have seen many of them
    let mut n = 0;
    while switches.load(Ordering::Relaxed) < 500 && threads.iter().all(|thread| !thread.is_finished()) {
        n += 1;
        limiter.load(generation(n, hasher));
        thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let sent: u32 =
        threads.into_iter().map(|thread| thread.join().expect("every response was consistent")).sum();

    limiter.load(generation(0, hasher));
    let (_, remaining) = decide(&limiter);
    assert_eq!(remaining, 1_000_000 - sent - 1, "every hit counts, whichever rules decided it");
}

/// Rejects 100,000 addresses that begin with `blocked`.
fn block_list(blocked: u8) -> RuleSet {
    let listed = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        let text = format!("{blocked}.{a}.{b}.{c}");
        ListedNetwork { network: IpNetwork::of_rule(&text).expect("an address"), line: n, column: 1 }
    };
    let list = NetworkList::new("".into(), (0..100_000).map(listed).collect());
    let rule = |requests| Some(Rule::new(Limit::fixed_window(requests, Period::from_secs(60))));
    let block = RuleNode { rule: rule(0), ..RuleNode::new("ip", Values::Networks(list.into())) };
    let rest = RuleNode { rule: rule(u32::MAX), ..RuleNode::new("ip", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![block, rest])], KeyHasher::with_secret([1, 2]))
}

#[test]
fn a_list_of_100_000_networks_is_replaced_as_a_whole_under_load() {
    let limiter = Arc::new(Limiter::new(
        MemoryStore::new(100_000),
        Arc::new(Stats::default()),
        DecisionSettings::default(),
    ));
    limiter.load(block_list(10));
    let stop = Arc::new(AtomicBool::new(false));
    let rejected = [10, 11].map(|_| Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|thread: u32| {
            let (limiter, stop, rejected) = (Arc::clone(&limiter), Arc::clone(&stop), rejected.clone());
            thread::spawn(move || {
                let mut n = thread;
                while !stop.load(Ordering::Relaxed) {
                    n = (n + 7_919) % 100_000;
                    let [_, a, b, c] = n.to_be_bytes();
                    let both = [10, 11].map(|first| format!("{first}.{a}.{b}.{c}"));
                    let descriptors = both.iter().map(|value| Descriptor {
                        entries: [Entry { key: "ip", value }].into_iter().collect(),
                        ..Descriptor::default()
                    });
                    let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
                    let codes = limiter.decide_now(&request, Timestamp::from_secs(1), |verdict| {
                        [0, 1].map(|i| verdict.statuses[i].code == Code::OverLimit)
                    });
                    let codes = codes.expect("the memory store does not fail");
                    assert_ne!(codes[0], codes[1], "one list for the whole request");
                    rejected[usize::from(codes[1])].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for blocked in [11, 10, 11] {
        limiter.load(block_list(blocked));
        let of = &rejected[usize::from(blocked - 10)];
        let before = of.load(Ordering::Relaxed);
        while of.load(Ordering::Relaxed) < before + 1_000
            && !threads.iter().any(thread::JoinHandle::is_finished)
        {
            thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("every response was consistent");
    }
}
