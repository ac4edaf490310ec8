//! The law of a replay: in memory, under unchanged rules, with one worker, each decision comes again. With several, each
//! key's admitted and rejected hits agree in every window.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Barrier},
    thread,
};

use futures_util::FutureExt as _;
use proptest::{collection::vec, prelude::*};
use weir_config::parse;
use weir_limit::{
    Code, Descriptor, Domain, Entry, IN_FLIGHT, KeyHasher, Period, Request, RuleSet, RuntimeLimit, Scope,
    Timestamp, Unit,
};
use weir_limiter::{
    DecisionSettings, Limiter,
    observe::Stats,
    store::{MemoryStore, TakeOptions},
};
use weir_recording::{Merged, RecordedKind, Recording, RecordingHeader, RecordingOrder};
use weir_replay::{Comparison, ExactLimiter, ReplayInput, ReplaySettings, compare};

const RULES: &str = "
domain: shop
descriptors:
  - key: fixed
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: fixed
    value: reference
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: sliding
    rate_limit: {requests: 5, per: 2s, algorithm: sliding_window}
  - key: bucket
    rate_limit: {requests: 4, per: 3s, algorithm: token_bucket, burst: 3}
  - key: strict
    rate_limit: {requests: 4, per: 3s, algorithm: token_bucket, burst: 2, strict: true}
  - key: tiers
    rate_limit:
      tiers:
        - {requests: 3, per: 1s, algorithm: sliding_window}
        - {requests: 10, per: 10s}
        - {requests: 12, per: 20s, algorithm: token_bucket}
  - key: shared
    value: a*
    rate_limit: {requests: 4, per: 1s}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {requests: 2, per: 1s}
  - key: quota
    quota_mode: true
    rate_limit: {requests: 4, per: 1s}
  - key: nested
    descriptors:
      - key: path
        rate_limit: {requests: 3, per: 1s}
  - key: running
    rate_limit: {tiers: [{in_flight: 2}, {requests: 9, per: 1s}]}
  - key: cost
    rate_limit: {requests: 50, per: 5s, reserve: 5}
";

const ALL_OR_NONE: &str = "
domain: shop
all_or_nothing: true
descriptors:
  - key: fixed
    rate_limit: {requests: 3, per: 1s}
  - key: sliding
    rate_limit: {requests: 5, per: 2s, algorithm: sliding_window}
  - key: bucket
    rate_limit: {requests: 4, per: 3s, algorithm: token_bucket, burst: 3}
";

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A request: the time since the one before, its hits, and its descriptors, each with what is special about it.
type Asked = (u64, u32, Vec<(usize, u8, u8)>);

fn domains(text: &str) -> Vec<Domain> {
    parse("shop.yaml", text).unwrap_or_else(|errors| panic!("{errors:?}")).domains
}

fn limiter(domains: &[Domain]) -> Limiter<MemoryStore> {
    let limiter =
        Limiter::new(MemoryStore::new(10_000), Arc::new(Stats::default()), DecisionSettings::default());
    limiter.load(RuleSet::new(domains, KeyHasher::random()));
    limiter
}

fn asked(keys: usize) -> impl Strategy<Value = Vec<Asked>> {
    let descriptor = (0..keys, 0..3_u8, 0..12_u8);
    let gap = prop_oneof![Just(0), 1..1_000_000_u64, 1_000_000..400_000_000_u64, Just(3_000_000_000_u64)];
    vec((gap, prop_oneof![4 => Just(0_u32), 1 => 2..4_u32], vec(descriptor, 1..4)), 1..150)
}

const KEYS: [&str; 14] = [
    "fixed", "sliding", "bucket", "strict", "tiers", "shared", "free", "shadow", "quota", "nested",
    "running", "cost", "unknown", "fixed",
];

/// Asks, and ends requests in flight now and then. Returns the requests that were asked about.
fn ask(limiter: &Limiter<MemoryStore>, asked: &[Asked], from: Timestamp) -> Timestamp {
    let (mut at, mut running) = (from, Vec::<String>::new());
    for (gap, hits, descriptors) in asked {
        at = at.after(Period::from_nanos(*gap));
        let values: Vec<String> = descriptors
            .iter()
            .map(|(key, value, _)| match (KEYS[*key], value) {
                ("fixed", 0) => "reference".to_owned(),
                _ => format!("a{value}"),
            })
            .collect();
        let ended = running.len().checked_sub(2).map(|_| running.remove(0));
        let mut request = Request { domain: "shop", hits: *hits, ..Request::default() };
        for ((key, _, special), value) in descriptors.iter().zip(&values) {
            let mut entries = vec![Entry { key: KEYS[*key], value }];
            if KEYS[*key] == "nested" {
                entries.push(Entry { key: "path", value });
            }
            request.descriptors.push(Descriptor {
                entries: entries.into(),
                hits: match special {
                    0 => Some(0),
                    1 => Some(2),
                    2 => Some(7),
                    _ => None,
                },
                refund: *special == 3,
                limit: (*special == 4).then(|| Box::new(RuntimeLimit::per_unit(2, Unit::Second))),
            });
        }
        if let Some(name) = &ended {
            let entries = [Entry { key: IN_FLIGHT, value: name }];
            let cost = Some(u64::from(*hits) + 3);
            let end = Descriptor { entries: entries[..].into(), hits: cost, ..Descriptor::default() };
            request.descriptors.push(end);
        }
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = limiter.decide_with(&request, at, options, |verdict| {
            verdict.in_flight.as_ref().and_then(|places| places.name.as_deref().map(str::to_owned))
        });
        running.extend(decided.now_or_never().expect("memory never waits").expect("a valid request"));
    }
    at
}

fn download(limiter: &Limiter<MemoryStore>) -> Recording {
    let parts = limiter.recorder().snapshot().into_parts(RecordingHeader::default(), None);
    let recording = Recording::read(parts.flatten().collect()).expect("a recording");
    assert!(!recording.is_truncated() && recording.header().lost == 0);
    recording
}

/// Replays, and fails at the first decision that is another one. Returns the number of requests.
fn replay(recording: Recording, domains: &[Domain]) -> Result<usize, TestCaseError> {
    let recordings = [recording];
    let mut merged = Merged::of(&recordings, []);
    let mut exact = ExactLimiter::new(domains, &ReplaySettings::default());
    let mut events = 0;
    while let Some(event) = merged.next() {
        events += 1;
        let replayed = exact.decide(&event).expect("a decision");
        prop_assert_eq!(replayed.is_over, event.is_over, "event {}, {:?}", events, &event);
        for status in &replayed.statuses {
            let recorded = &event.descriptors[status.descriptor];
            let told = (recorded.is_over, recorded.remaining, recorded.is_free);
            let again = (status.is_over, status.remaining, status.rule.is_none() && recorded.is_free);
            prop_assert_eq!(again, told, "event {}, {:?}", events, &event);
        }
    }
    prop_assert_eq!(merged.unreadable(), 0);
    prop_assert_eq!(exact.gaps().errors, 0);
    Ok(events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn each_decision_comes_again(asked in asked(KEYS.len())) {
        let domains = domains(RULES);
        let limiter = limiter(&domains);
        limiter.recorder().start(RecordingOrder::default(), NOW);
        ask(&limiter, &asked, NOW);
        prop_assert_eq!(replay(download(&limiter), &domains)?, asked.len());
    }

    #[test]
    fn each_decision_of_all_or_none_comes_again(asked in asked(3)) {
        let domains = domains(ALL_OR_NONE);
        let limiter = limiter(&domains);
        limiter.recorder().start(RecordingOrder::default(), NOW);
        ask(&limiter, &asked, NOW);
        prop_assert_eq!(replay(download(&limiter), &domains)?, asked.len());
    }

    /// What was used before is in the recording. Left out are requests in flight and costs, since nobody knows when those
    /// end, and counters whose first request gives hits back.
    #[test]
    fn a_recording_may_begin_at_any_time(before in asked(10), mut asked in asked(10)) {
        asked.iter_mut().flat_map(|(_, _, descriptors)| descriptors).for_each(|(_, _, special)| {
            *special = if *special == 3 { 5 } else { *special };
        });
        for rules in [RULES, ALL_OR_NONE] {
            let domains = domains(rules);
            let limiter = limiter(&domains);
            let at = ask(&limiter, &before, NOW);
            limiter.recorder().start(RecordingOrder::default(), at);
            ask(&limiter, &asked, at);
            prop_assert_eq!(replay(download(&limiter), &domains)?, asked.len());
        }
    }
}

fn one(limiter: &Limiter<MemoryStore>, key: &str, value: &str, at: Timestamp) -> bool {
    let entries = [Entry { key, value }];
    let decided =
        limiter.decide_now(&Request::of("shop", &entries), at, |verdict| verdict.code == Code::OverLimit);
    decided.expect("a valid request")
}

fn compared(recording: Recording, new: &str, old: Option<&str>) -> Comparison {
    let (new, old) = (domains(new), old.map(domains));
    let input = ReplayInput {
        recordings: &[recording],
        new: &new,
        old: old.as_deref(),
        settings: ReplaySettings::default(),
        key: None,
        unknown: Vec::new(),
    };
    compare(&input, |_| ControlFlow::Continue(())).expect("nobody ends it")
}

#[test]
fn with_several_workers_the_hits_of_each_key_agree_in_every_window() {
    let domains = domains(RULES);
    let limiter = limiter(&domains);
    limiter.recorder().start(RecordingOrder::default(), NOW);
    let barrier = Barrier::new(4);
    // otherwise the first requests of a key may come to several workers at once, and what was used before is not exact
    (0..7).for_each(|key| _ = one(&limiter, "fixed", &format!("a{key}"), NOW));
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (limiter, barrier) = (&limiter, &barrier);
            scope.spawn(move || {
                for i in 0..2_000 {
                    // workers whose clocks differ by a window are no several workers
                    if i % 200 == 0 {
                        barrier.wait();
                    }
                    let at = NOW.after(Period::from_millis(1 + i * 5 + worker));
                    one(limiter, "fixed", &format!("a{}", i % 7), at);
                }
            });
        }
    });
    let recordings = [download(&limiter)];
    let mut merged = Merged::of(&recordings, []);
    let mut exact = ExactLimiter::new(&domains, &ReplaySettings::default());
    let mut windows: BTreeMap<(u64, u32), [i64; 2]> = BTreeMap::new();
    while let Some(event) = merged.next() {
        let replayed = exact.decide(&event).expect("a decision");
        let window = event.at.as_nanos() / 1_000_000_000;
        let sums = windows.entry((window, event.descriptors[0].definition.number)).or_default();
        sums[0] += i64::from(event.is_over);
        sums[1] += i64::from(replayed.is_over);
    }
    assert!(windows.len() > 60 && windows.values().any(|[recorded, _]| *recorded > 0));
    assert!(windows.values().all(|[recorded, replayed]| recorded == replayed), "{windows:?}");
}

#[test]
fn unchanged_rules_change_nothing_and_lower_limits_are_named() {
    let rules =
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: day, requests_per_unit: 1000}\n";
    let domains = domains(rules);
    let limiter = limiter(&domains);
    // what a day has used before
    (0..900).for_each(|_| assert!(!one(&limiter, "tenant", "acme", NOW)));
    limiter.recorder().start(RecordingOrder::default(), NOW);
    for i in 0..90 {
        one(&limiter, "tenant", "acme", NOW.after(Period::from_secs(i)));
        one(&limiter, "tenant", "globex", NOW.after(Period::from_secs(i)));
    }
    let same = compared(download(&limiter), rules, None);
    assert_eq!((same.requests, same.newly_rejected, same.newly_admitted), (180, 0, 0));
    assert_eq!((same.unknown.len(), same.keys.len()), (0, 0), "{:?}", same.unknown);
    let lower = rules.replace("1000", "950");
    let changed = compared(download(&limiter), &lower, None);
    assert_eq!((changed.newly_rejected, changed.newly_admitted), (40, 0));
    assert_eq!(
        changed.sentence(),
        "22 % of requests would newly be rejected, 100 % of them by `shop.tenant`."
    );
    assert_eq!((changed.keys.len(), &*changed.keys[0].text), (1, "tenant=acme"));
    let hits = changed.rules[0].hits;
    assert_eq!(
        [hits.admitted_old, hits.rejected_old, hits.admitted_new, hits.rejected_new],
        [180, 0, 140, 40]
    );
    // the other way round, and with both replayed
    let back = compared(download(&limiter), rules, Some(&lower));
    assert_eq!((back.newly_rejected, back.newly_admitted), (0, 40));
    // a period that was not counted before
    let hour = compared(download(&limiter), &rules.replace("day", "hour"), None);
    assert!(hour.unknown[0].contains("shop.tenant"), "{:?}", hour.unknown);
    let text = changed.to_string();
    assert!(text.starts_with("22 % of requests") && text.contains("tenant=acme (shop.tenant)"), "{text}");
}

#[test]
fn a_recording_goes_on_across_a_reload_and_a_clock_that_steps() {
    let lower =
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: day, requests_per_unit: 5}\n";
    let higher = lower.replace(": 5}", ": 50}");
    let limiter = limiter(&domains(lower));
    limiter.recorder().start(RecordingOrder::default(), NOW);
    (0..10).for_each(|_| _ = one(&limiter, "tenant", "acme", NOW));
    limiter.load(RuleSet::new(&domains(&higher), KeyHasher::random()));
    // an hour back
    let back = NOW.before(Period::from_secs(3_600));
    (0..10).for_each(|_| _ = one(&limiter, "tenant", "acme", back));
    let changed = compared(download(&limiter), &higher, None);
    assert_eq!((changed.requests, changed.newly_rejected, changed.newly_admitted), (20, 0, 5));
    assert!(
        changed.unknown.iter().any(|sentence| sentence.contains("came into force")),
        "{:?}",
        changed.unknown
    );
}

#[test]
fn scopes_and_modes_of_the_service_apply() {
    let domains = domains(RULES);
    let limiter = limiter(&domains);
    limiter.recorder().start(RecordingOrder::default(), NOW);
    (0..9).for_each(|_| _ = one(&limiter, "fixed", "x", NOW));
    let recordings = [download(&limiter)];
    let settings = ReplaySettings {
        scope: Scope::Request,
        modes: weir_limit::Modes { shadow: true, ..Default::default() },
    };
    let input = ReplayInput {
        recordings: &recordings,
        new: &domains,
        old: None,
        settings,
        key: None,
        unknown: Vec::new(),
    };
    let all = compare(&input, |_| ControlFlow::Continue(())).expect("nobody ends it");
    assert_eq!((all.newly_rejected, all.newly_admitted), (0, 6));
    assert!(compare(&input, |_| ControlFlow::Break(())).is_none());
}

#[test]
fn resets_are_replayed() {
    let rules =
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: day, requests_per_unit: 5}\n";
    let limiter = limiter(&domains(rules));
    limiter.recorder().start(RecordingOrder::default(), NOW);
    (0..5).for_each(|_| _ = one(&limiter, "tenant", "acme", NOW));
    let entries = [Entry { key: "tenant", value: "acme" }];
    let acme = Descriptor { entries: entries[..].into(), ..Descriptor::default() };
    limiter.recorder().append_reset("shop", &acme, NOW);
    (0..5).for_each(|_| _ = one(&limiter, "tenant", "acme", NOW));
    let changed = compared(download(&limiter), rules, Some(rules));
    let hits = changed.rules[0].hits;
    assert_eq!((hits.admitted_new, hits.rejected_new), (10, 0));
    assert!(RecordedKind::Reset != RecordedKind::Reload);
}
