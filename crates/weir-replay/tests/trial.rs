//! Rules that are no files: what they are told, and what they would have decided.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use tracing::{
    Subscriber,
    span::{Attributes, Id, Record},
};
use weir_config::{Options, parse};
use weir_limit::{Entry, KeyHasher, Request, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter, observe::Stats, store::MemoryStore};
use weir_recording::{Recording, RecordingHeader, RecordingOrder};
use weir_replay::{ReplaySettings, Trial, TrialError, try_rules};

const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: year, requests_per_unit: 5}\n";

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn recording() -> Recording {
    let limiter =
        Limiter::new(MemoryStore::new(100), Arc::new(Stats::default()), DecisionSettings::default());
    limiter.load(RuleSet::new(&parse("shop.yaml", RULES).expect("valid rules").domains, KeyHasher::random()));
    limiter.recorder().start(RecordingOrder::default(), NOW);
    for _ in 0..6 {
        let request = Request::of("shop", &[Entry { key: "tenant", value: "acme" }]);
        limiter.decide_now(&request, NOW, |_| ()).expect("a valid request");
    }
    let parts = limiter.recorder().snapshot().into_parts(RecordingHeader::default(), None);
    Recording::read(parts.flatten().collect()).expect("a recording")
}

fn tried(files: &[(&str, &str)], recording: Option<Recording>) -> Result<Trial, TrialError> {
    let files: BTreeMap<String, String> =
        files.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
    try_rules(files, &Options::default(), recording, &ReplaySettings::default())
}

fn json(files: &[(&str, &str)], recording: Option<Recording>) -> Value {
    tried(files, recording).expect("it is not too large").json()
}

#[test]
fn errors_have_their_places_and_nothing_is_compared() {
    let other = "domain: other\ndescriptors:\n  - kee: tenant\n";
    let told = json(&[("shop.yaml", RULES), ("other.yaml", other)], Some(recording()));
    assert_eq!((&told["ok"], &told["comparison"]), (&false.into(), &Value::Null));
    let message = &told["messages"][0];
    assert_eq!(
        (&message["severity"], &message["file"], &message["line"]),
        (&"error".into(), &"other.yaml".into(), &3.into())
    );
    assert_eq!(told["note"], "The files have errors, so there is nothing to compare.");
}

/// Counts the messages of a thread.
#[derive(Clone, Default)]
struct MessageCount(Arc<AtomicUsize>);

impl Subscriber for MessageCount {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn names_that_the_tried_rules_do_not_have_are_not_in_the_log() {
    let messages = MessageCount::default();
    let _default = tracing::subscriber::set_default(messages.clone());
    for (from, to) in [("key: tenant", "key: user"), ("domain: shop", "domain: mesh")] {
        let told = json(&[("shop.yaml", &RULES.replace(from, to))], Some(recording()));
        assert_eq!(told["comparison"]["requests"], 6, "{told}");
    }
    assert_eq!(messages.0.load(Ordering::Relaxed), 0);
    // as those of requests are
    Stats::default().unknown_key("shop", "tenant");
    assert_eq!(messages.0.load(Ordering::Relaxed), 1);
}

#[test]
fn lower_limits_are_compared_with_the_recording() {
    let lower = RULES.replace(": 5}", ": 2}");
    let told = json(&[("shop.yaml", &lower)], Some(recording()));
    assert_eq!((&told["ok"], &told["note"]), (&true.into(), &Value::Null));
    let comparison = &told["comparison"];
    assert_eq!(
        (&comparison["requests"], &comparison["newly_rejected"]),
        (&6.into(), &3.into()),
        "{comparison}"
    );
    assert_eq!(
        comparison["sentence"],
        "50 % of requests would newly be rejected, 100 % of them by `shop.tenant`."
    );
    let same = json(&[("shop.yaml", RULES)], Some(recording()));
    assert_eq!(same["comparison"]["sentence"], "No request would be decided in another way.");
}

#[test]
fn without_a_recording_it_is_a_check_and_files_are_bounded() {
    let told = json(&[("shop.yaml", RULES)], None);
    assert_eq!((&told["ok"], &told["comparison"]), (&true.into(), &Value::Null));
    assert!(told["note"].as_str().is_some_and(|note| note.contains("start one")));
    let long = format!("{RULES}#{}", "x".repeat(Trial::MAX_BYTES));
    assert_eq!(tried(&[("shop.yaml", &long)], None).err(), Some(TrialError::TooLarge));
    assert_eq!(json(&[], None)["ok"], true);
}
