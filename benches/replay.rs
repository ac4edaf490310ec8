//! Measures how long a million recorded requests take to be replayed, on one core: two rules, ten thousand keys, and a
//! recording as an instance makes it.
//!
//! `cargo bench --bench replay`

use std::{ops::ControlFlow, time::Instant};

use futures_util::FutureExt as _;
use weir_limit::{
    Code, Descriptor, Domain, Entry, KeyHasher, Limit, Period, Request, Rule, RuleNode, RuleSet, Timestamp,
    Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_recording::{Recording, RecordingHeader, RecordingOrder};
use weir_replay::{ReplayInput, ReplaySettings, compare};
use weir_store::MemoryStore;

const REQUESTS: u64 = 1_000_000;
const KEYS: u64 = 10_000;

/// Those of a recording: the memory of one holds half a million, of so many keys.
const PART: u64 = 250_000;

/// The time in which they come.
const MINUTES: u64 = 10;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A limit for each tenant, and one for each of its paths.
fn rules(requests: u32) -> Vec<Domain> {
    let rule = |requests| Some(Rule::new(Limit::fixed_window(requests, Period::from_secs(60))));
    let path = RuleNode { rule: rule(requests), ..RuleNode::new("path", Values::Any) };
    let tenant = RuleNode::new("tenant", Values::Any);
    vec![Domain::new("shop", vec![RuleNode { rule: rule(10 * requests), children: vec![path], ..tenant }])]
}

/// Decides requests by turns, of one descriptor and of two, and returns the recordings.
fn recorded() -> Vec<Vec<u8>> {
    let limiter =
        Limiter::new(MemoryStore::new(1_000_000), Stats::default().into(), DecisionSettings::default());
    limiter.load(RuleSet::new(&rules(10), KeyHasher::random()));
    let mut files = Vec::new();
    let step = Period::from_secs(60 * MINUTES) / REQUESTS;
    let mut rejected = 0;
    for i in 0..REQUESTS {
        if i % PART == 0 {
            limiter.recorder().start(RecordingOrder::default(), NOW);
        }
        // a few keys get many of them
        let key = (i * i + i / 7) % KEYS * (i % KEYS) / KEYS;
        let (tenant, path) = (format!("tenant-{}", key / 10), format!("/v1/orders/{}", key % 10));
        let entries = [Entry { key: "tenant", value: &tenant }, Entry { key: "path", value: &path }];
        let descriptors = (1 + i % 2..=2).map(|entries_of| Descriptor {
            entries: entries[..usize::try_from(entries_of).unwrap_or(2)].into(),
            ..Descriptor::default()
        });
        let request = Request { domain: "shop", descriptors: descriptors.collect(), hits: 1 };
        let decided = limiter.decide(&request, NOW.after(step * i), |verdict| verdict.code);
        rejected += u64::from(matches!(decided.now_or_never(), Some(Ok(Code::OverLimit))));
        if i % PART == PART - 1 {
            let state = limiter.recorder().state(NOW);
            assert_eq!((state.requests, state.dropped, state.lost), (PART, 0, 0), "{state:?}");
            let parts = limiter.recorder().snapshot().into_parts(RecordingHeader::default(), None);
            files.push(parts.flatten().collect());
            limiter.recorder().stop();
        }
    }
    println!("{REQUESTS} requests recorded, {rejected} of them rejected");
    files
}

fn main() {
    let files = recorded();
    let bytes: usize = files.iter().map(Vec::len).sum();
    let begun = Instant::now();
    let read = |file| Recording::read(file).expect("a recording");
    let recordings: Vec<Recording> = files.into_iter().map(read).collect();
    let new = rules(9);
    for old in [None, Some(rules(10))] {
        let input = ReplayInput {
            recordings: &recordings,
            new: &new,
            old: old.as_deref(),
            settings: ReplaySettings::default(),
            key: None,
            unknown: Vec::new(),
        };
        let begun = Instant::now();
        let compared = compare(&input, |_| ControlFlow::Continue(())).expect("nobody ends it");
        assert_eq!(compared.requests, REQUESTS);
        assert!(compared.newly_rejected > 0, "fewer are admitted");
        let which = if old.is_some() { "old and new rules" } else { "new rules" };
        println!("replayed under {which}: {:.2} s, of {bytes} bytes", begun.elapsed().as_secs_f64());
    }
    println!("in all: {:.2} s", begun.elapsed().as_secs_f64());
}
