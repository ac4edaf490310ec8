//! What a replay costs: each event is decided in constant time, without allocations of its own.

use std::ops::ControlFlow;

use weir_config::parse;
use weir_limit::{Descriptor, Entry, KeyHasher, Period, Request, Timestamp};
use weir_recording::{
    FirstSight, RecordedKind, RecordedRequest, RecordedStatus, Recording, RecordingHeader, RecordingWriter,
};
use weir_replay::{ReplayInput, ReplaySettings, compare};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 40}
    descriptors:
      - key: path
        rate_limit: {tiers: [{requests: 3, per: 1s}, {requests: 50, per: 1h, algorithm: sliding_window}]}
";

fn recording(events: u64, tenants: u64) -> Vec<u8> {
    let hasher = KeyHasher::with_secret([1, 2]);
    let mut writer = RecordingWriter::new(RecordingHeader::default());
    for i in 0..events {
        let tenant = format!("tenant-{}", i * 7 % tenants);
        let entries = [Entry { key: "tenant", value: &tenant }, Entry { key: "path", value: "/orders" }];
        let of = |count: usize| Descriptor { entries: entries[..count].into(), ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: [of(1), of(2)].into_iter().collect(), hits: 1 };
        let at = Timestamp::from_secs(1_700_000_000).after(Period::from_millis(i));
        let key = |i: usize| hasher.key("shop", &request.descriptors[i].entries, |_| None);
        let status_of = |i| RecordedStatus { key: Some(key(i)), is_free: true, ..RecordedStatus::default() };
        let recorded = RecordedRequest::new(RecordedKind::Decision, at, &request);
        writer.append(&recorded, status_of, |_| FirstSight::default());
    }
    writer.finish()
}

#[test]
fn an_event_takes_no_allocation_of_its_own_and_little_memory() {
    let domains = parse("shop.yaml", RULES).expect("valid rules").domains;
    let events = 50_000;
    let file = recording(events, 500);
    // two descriptors each
    assert!(file.len() < 2 * 40 * 50_000, "{}", file.len());
    let mut comparison = None;
    let costs = allocation_counter::measure(|| {
        let recordings = [Recording::read(file.clone()).expect("a recording")];
        let input = ReplayInput {
            recordings: &recordings,
            new: &domains,
            old: None,
            settings: ReplaySettings::default(),
            key: None,
            unknown: Vec::new(),
        };
        comparison = compare(&input, |_| ControlFlow::Continue(()));
    });
    let comparison = comparison.expect("nobody ends it");
    assert_eq!(comparison.requests, events);
    assert!(comparison.newly_rejected > 0);
    assert!(costs.count_total < events / 2, "{} allocations", costs.count_total);
    assert!(costs.bytes_max < 16 << 20, "{} bytes", costs.bytes_max);
}
