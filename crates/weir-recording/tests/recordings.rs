//! Recordings as they are written, downloaded and read.

use std::thread;

use proptest::{collection::vec, prelude::*};
use weir_limit::{
    Descriptor, Entry, Hits, KeyHasher, Period, PlaceName, Request, RuntimeLimit, Tier, Timestamp, Unit,
    algorithm::CounterState,
};
use weir_recording::{
    FirstSight, Merged, RecordedKind, RecordedRequest, RecordedStatus, Recorder, Recording, RecordingError,
    RecordingHeader, RecordingOrder, RecordingSettings, ValueKey,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn recorder() -> Recorder {
    let recorder = Recorder::new(RecordingSettings::MIN_BYTES);
    recorder.start(RecordingOrder::default(), NOW);
    recorder
}

fn entries<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<Entry<'a>> {
    pairs.iter().map(|(key, value)| Entry { key, value }).collect()
}

fn append(recorder: &Recorder, request: &Request<'_>, at: Timestamp, is_over: bool) {
    let hasher = KeyHasher::with_secret([1, 2]);
    let asked = RecordedRequest { is_over, ..RecordedRequest::new(RecordedKind::Decision, at, request) };
    let status_of = |i: usize| RecordedStatus {
        key: Some(hasher.key(request.domain, &request.descriptors[i].entries, |_| None)),
        is_over,
        remaining: 7,
        ..RecordedStatus::default()
    };
    recorder
        .append(&asked, status_of, |_| FirstSight { rule: "shop.tenant".into(), ..FirstSight::default() });
}

fn tenant(recorder: &Recorder, value: &str, at: Timestamp) {
    append(recorder, &Request::of("shop", &entries(&[("tenant", value)])), at, false);
}

fn download(recorder: &Recorder, key: Option<ValueKey>) -> Vec<u8> {
    let header = RecordingHeader { instance: "here".into(), ..RecordingHeader::default() };
    recorder.snapshot().into_parts(header, key).flatten().collect()
}

/// What a recording says, as text.
fn told(file: Vec<u8>) -> Vec<String> {
    let recordings = [Recording::read(file).expect("a recording")];
    let mut merged = Merged::of(&recordings, []);
    let mut told = Vec::new();
    while let Some(event) = merged.next() {
        let descriptors: Vec<String> = event
            .descriptors
            .iter()
            .map(|one| {
                let entries: Vec<String> = one.definition.entries.iter().map(ToString::to_string).collect();
                format!("{} {} x{}", one.definition.domain, entries.join(","), one.hits.0)
            })
            .collect();
        let at = event.at.since(NOW).as_nanos();
        told.push(format!("{at} {:?} {} {}", event.kind, event.is_over, descriptors.join("; ")));
    }
    assert_eq!(merged.unreadable(), 0);
    told
}

#[test]
fn what_was_recorded_is_read() {
    let recorder = recorder();
    let long = "v".repeat(4_096);
    let own = RuntimeLimit::per_unit(5, Unit::Minute);
    let acme = Descriptor { entries: entries(&[("tenant", "acme")]).into(), ..Descriptor::default() };
    let many = Descriptor { hits: Some(u64::MAX), limit: Some(Box::new(own)), refund: true, ..acme.clone() };
    let longest = Descriptor { entries: entries(&[("k", &long), ("k", "")]).into(), ..Descriptor::default() };
    let request =
        Request { domain: "shop", descriptors: [acme, many, longest].into_iter().collect(), hits: 3 };
    append(&recorder, &request, NOW, true);
    append(&recorder, &request, NOW.after(Period::from_nanos(1)), false);
    // longer than four bytes tell, and back
    tenant(&recorder, "later", NOW.after(Period::from_secs(3_600)));
    tenant(&recorder, "earlier", NOW.after(Period::from_secs(7)));
    let texts = format!("shop tenant=acme x3; shop tenant=acme x{}; shop k={long},k= x3", u64::MAX);
    let expected = [
        format!("0 Decision true {texts}"),
        format!("1 Decision false {texts}"),
        "3600000000000 Decision false shop tenant=later x1".to_owned(),
        "7000000000 Decision false shop tenant=earlier x1".to_owned(),
    ];
    assert_eq!(told(download(&recorder, None)), expected);
}

#[test]
fn a_request_is_written_as_a_whole_whichever_of_its_descriptors_were_seen_before() {
    let recorder = recorder();
    let named = |value: &'static str, hits: u64| Descriptor {
        entries: entries(&[("tenant", value)]).into(),
        hits: Some(hits),
        ..Descriptor::default()
    };
    let at = |i: u64| NOW.after(Period::from_secs(i));
    // the second one of these is new, then has many hits, then is known; a gap of seconds needs a time of its own
    let asked = [
        (at(1), vec![named("acme", 1)]),
        (at(2), vec![named("acme", 2), named("beta", 3)]),
        (at(3), vec![named("acme", 4), named("beta", 1 << 40)]),
        (at(4), vec![named("beta", 5), named("acme", 0)]),
        (at(20), vec![named("acme", 6), named("beta", 7), named("acme", 8)]),
        (at(19), vec![named("beta", 9)]),
    ];
    let mut expected = Vec::new();
    for (at, descriptors) in asked {
        let text = |one: &Descriptor<'_>| {
            format!("shop tenant={} x{}", one.entries[0].value, one.hits.expect("hits"))
        };
        let texts: Vec<String> = descriptors.iter().map(text).collect();
        let since = at.since(NOW).as_nanos();
        expected.push(format!("{since} Decision true {}", texts.join("; ")));
        let request = Request { domain: "shop", descriptors: descriptors.into(), hits: 0 };
        append(&recorder, &request, at, true);
    }
    assert_eq!(told(download(&recorder, None)), expected);
}

#[test]
fn requests_that_are_asked_again_take_few_bytes() {
    let recorder = recorder();
    for i in 0..10_000_u64 {
        tenant(&recorder, &format!("tenant-{}", i % 100), NOW.after(Period::from_millis(i)));
    }
    let bytes = download(&recorder, None).len();
    assert!(bytes < 30 * 10_000, "{bytes}");
}

#[test]
fn a_ring_that_wraps_keeps_the_last_requests_within_its_bytes() {
    let recorder = recorder();
    let last = 2_000_000_u64;
    for i in 0..=last {
        tenant(&recorder, &format!("tenant-{}", i % 100_000), NOW.after(Period::from_nanos(i)));
    }
    // a download may end a block, and so make the oldest one go
    let file = download(&recorder, None);
    let state = recorder.state(NOW);
    assert!(state.bytes <= RecordingSettings::MIN_BYTES as u64, "{state:?}");
    assert!(state.dropped > 0 && state.lost == 0 && state.requests + state.dropped == last + 1, "{state:?}");
    let read = Recording::read(file.clone()).expect("a recording");
    assert_eq!((read.header().dropped, read.is_truncated()), (state.dropped, false));
    let told = told(file);
    assert_eq!(told.len() as u64, state.requests);
    assert!(told.last().is_some_and(|last| last.starts_with("2000000 ")));
    assert!(told[0].starts_with(&format!("{} ", state.dropped)));
}

#[test]
fn requests_are_forgotten_after_their_time_and_a_recording_ends_by_itself() {
    let recorder = Recorder::new(RecordingSettings::MAX_BYTES);
    let minute = Period::from_secs(60);
    let until = Some(NOW.after(minute * 5));
    recorder.start(RecordingOrder { keep: minute, until, has_values: true }, NOW);
    for second in 0..400 {
        for i in 0..50 {
            tenant(&recorder, &"x".repeat(1_000 + i), NOW.after(Period::from_secs(second)));
        }
    }
    let state = recorder.state(NOW.after(minute * 10));
    assert!(!state.is_on && state.has_values);
    let told = told(download(&recorder, None));
    let seconds = |line: &String| {
        line.split(' ').next().and_then(|at| at.parse::<u64>().ok()).expect("a time") / 1_000_000_000
    };
    assert_eq!(seconds(told.last().expect("some")), 299);
    assert!((230..=240).contains(&seconds(&told[0])), "{}", seconds(&told[0]));
    // one that is on goes on
    recorder.start(RecordingOrder::default(), NOW);
    tenant(&recorder, "acme", NOW);
    recorder.start(RecordingOrder { until, ..RecordingOrder::default() }, NOW);
    let state = recorder.state(NOW.after(minute * 10));
    assert_eq!((state.is_on, state.until, state.requests), (true, None, 1));
    recorder.stop();
    // the next one begins anew
    recorder.start(RecordingOrder::default(), NOW);
    assert_eq!(recorder.state(NOW).requests, 0);
}

#[test]
fn lanes_are_merged_by_time_and_no_request_is_lost() {
    let recorder = recorder();
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let recorder = &recorder;
            scope.spawn(move || {
                for i in 0..5_000 {
                    tenant(recorder, &format!("{thread}"), NOW.after(Period::from_nanos(8 * i + thread)));
                    if i % 1_000 == 0 {
                        recorder.state(NOW);
                    }
                }
            });
        }
    });
    assert_eq!(recorder.state(NOW).lost, 0);
    let told = told(download(&recorder, None));
    assert_eq!(told.len(), 40_000);
    let at = |line: &String| line.split(' ').next().and_then(|at| at.parse::<u64>().ok()).expect("a time");
    // a thread that finds its lane busy takes another one
    let late = told.windows(2).filter(|pair| at(&pair[1]) < at(&pair[0])).count();
    assert!(late < 400, "{late}");
}

#[test]
fn hashed_values_tell_nothing_but_which_are_equal() {
    let recorder = recorder();
    for value in ["acme", "globex", "acme"] {
        tenant(&recorder, value, NOW);
    }
    let key = ValueKey::new([1, 2, 3, 4]);
    let file = download(&recorder, Some(key));
    for secret in ["acme", "globex", "shop.tenant"] {
        assert!(!file.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "{secret}");
    }
    let recording = Recording::read(file.clone()).expect("a recording");
    assert!(recording.header().is_hashed && recording.header().instance == "here");
    let told = told(file);
    assert!(told[0] == told[2] && told[0] != told[1] && told[0].contains("tenant=#"));
    let hash = key.hashed(&Entry { key: "tenant", value: "acme" });
    let recordings = [recording];
    let mut merged = Merged::of(&recordings, [(hash, "acme")]);
    let first = merged.next().expect("an event");
    assert_eq!(first.descriptors[0].definition.entries[0].value, "acme");
}

#[test]
fn counters_are_as_before_the_first_decision() {
    let recorder = recorder();
    let tiers = [
        Tier::fixed_window(10, Period::from_secs(60)),
        Tier::sliding_window(10, Period::from_secs(60)),
        Tier::token_bucket(10, Period::from_secs(60), weir_limit::Bucket::of(10)),
    ];
    let mut counters: Vec<_> = tiers.iter().map(|tier| CounterState::unused(tier, NOW)).collect();
    let mut take = |hits, at| {
        tiers.iter().zip(&mut counters).for_each(|(tier, counter)| counter.take(tier, at, Hits(hits)));
        counters.clone()
    };
    let before = take(4, NOW);
    let at = NOW.after(Period::from_millis(1));
    let after = take(2, at);
    let request = Request::of("shop", &entries(&[("tenant", "acme")]));
    let asked = RecordedRequest::new(RecordedKind::Decision, at, &request);
    let first = |_| FirstSight {
        rule: String::new(),
        counters: tiers
            .iter()
            .zip(&after)
            .map(|(tier, state)| (tier.clone(), state.clone(), Hits(2)))
            .collect(),
        at,
    };
    recorder.append(&asked, |_| RecordedStatus::default(), first);
    let recordings = [Recording::read(download(&recorder, None)).expect("a recording")];
    let mut merged = Merged::of(&recordings, []);
    let event = merged.next().expect("an event");
    let read = &event.descriptors[0].definition.before;
    for (i, tier) in tiers.iter().enumerate() {
        let mut state = read[i].of_tier(tier).expect("a counter of this tier");
        assert_eq!(state.probe(tier, at, Hits(0)).used, before[i].probe(tier, at, Hits(0)).used, "{tier:?}");
        state.take(tier, at, Hits(2));
        assert_eq!(state, after[i], "{tier:?}");
        assert_eq!(read[i].of_tier(&tiers[(i + 1) % 3]), None);
    }
}

#[test]
fn names_resets_and_reloads_are_recorded() {
    use RecordedKind::{Decision, Reload, Reset};
    let recorder = recorder();
    let acme = Descriptor { entries: entries(&[("tenant", "acme")]).into(), ..Descriptor::default() };
    let request = Request { domain: "shop", descriptors: [acme.clone()].into_iter().collect(), hits: 0 };
    let place = PlaceName::from_bytes(&[3; PlaceName::LEN]);
    let asked = RecordedRequest { place, ..RecordedRequest::new(RecordedKind::Decision, NOW, &request) };
    recorder.append(&asked, |_| RecordedStatus::default(), |_| FirstSight::default());
    recorder.append_reset("shop", &acme, NOW);
    recorder.append_reload();
    tenant(&recorder, "acme", NOW);
    let file = download(&recorder, None);
    let recordings = [Recording::read(file).expect("a recording")];
    let mut merged = Merged::of(&recordings, []);
    let mut events = Vec::new();
    while let Some(event) = merged.next() {
        events.push((event.kind, event.place, event.descriptors.len()));
    }
    assert_eq!(events, [(Decision, place, 1), (Reset, None, 1), (Reload, None, 0), (Decision, None, 1)]);
}

#[test]
fn what_is_longer_than_a_block_is_counted_as_lost() {
    let recorder = recorder();
    let long = "v".repeat(60_000);
    tenant(&recorder, &"v".repeat(70_000), NOW);
    let pairs = ["a", "b", "c", "d", "e"].map(|key| (key, &*long));
    append(&recorder, &Request::of("shop", &entries(&pairs)), NOW, false);
    tenant(&recorder, &long, NOW);
    assert_eq!((recorder.state(NOW).lost, told(download(&recorder, None)).len()), (2, 1));
}

#[test]
fn other_files_and_newer_formats_are_refused() {
    let mut file = download(&recorder(), None);
    assert_eq!(Recording::read(b"weir-recordin".to_vec()).err(), Some(RecordingError::NotOne));
    assert_eq!(Recording::read(file[..20].to_vec()).err(), Some(RecordingError::Header));
    file[14] = 2;
    let error = Recording::read(file).expect_err("a newer format");
    assert_eq!(error, RecordingError::Newer(2));
    assert!(error.to_string().contains("use a newer weir"));
}

#[test]
fn later_kinds_of_records_are_skipped() {
    let recorder = recorder();
    tenant(&recorder, "acme", NOW);
    let mut file = download(&recorder, None);
    let block = file.len() - told_length(&file);
    let later = [12, 0, 0, 0, 99, 0, 5, 0, 1, 2, 3, 4];
    file.splice(block + 16..block + 16, later);
    let length = u32::from_le_bytes(file[block..block + 4].try_into().expect("four bytes")) + 12;
    file[block..block + 4].copy_from_slice(&length.to_le_bytes());
    assert_eq!(told(file).len(), 1);
}

/// The bytes of all blocks.
fn told_length(file: &[u8]) -> usize {
    let header = u32::from_le_bytes(file[16..20].try_into().expect("four bytes"));
    file.len() - 20 - header as usize
}

proptest! {
    #[test]
    fn damaged_and_truncated_files_never_panic(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
    ) {
        let recorder = recorder();
        for i in 0..20 {
            tenant(&recorder, &format!("t{}", i % 5), NOW.after(Period::from_secs(i)));
        }
        let mut file = download(&recorder, None);
        file.truncate(end.index(file.len() + 1));
        for (at, byte) in changes {
            if !file.is_empty() {
                let at = at.index(file.len());
                file[at] = byte;
            }
        }
        weir_recording::fuzz::recording(&file);
    }
}
