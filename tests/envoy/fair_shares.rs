//! Clients that share one capacity, behind the real Envoy.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use weir_limit::Period;
use weir_store::clock::{Clock as _, SystemClock};
use weir_testing::repository;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
};

const CYCLE: Duration = Duration::from_secs(5);
const CYCLE_PERIOD: Period = Period::from_secs(5);

/// Sends `requests` of `client`, evenly spread over `time` from `begun` on, and counts those that are admitted.
fn send(stack: &Stack, client: &str, requests: u32, begun: Instant, time: Duration, admitted: &AtomicU32) {
    for i in 0..requests {
        let due = begun + time * i / requests;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if stack.get_with("x-client", client).status == 200 {
            admitted.fetch_add(1, Relaxed);
        }
    }
}

/// One client asks for ten times its share: the others have what they are due, and a fifth one is admitted in its first
/// second.
#[test]
fn a_burst_of_one_client_costs_the_others_nothing() {
    let rule = "  - key: client\n    rate_limit: { requests: 400, per: 5s, share: { borrow: by_demand } }\n";
    let stack = Stack::start(rule, &Bootstrap::limiting(json!([from_header("client", "x-client")])));
    let now = SystemClock.now();
    let begun = Instant::now() + Duration::from(now.window_end(CYCLE_PERIOD).since(now));
    let counts = [(); 5].map(|()| AtomicU32::new(0));
    let (burst, last) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        let stack = &stack;
        // two cycles, and two more in which the third one asks for ten times its share
        for (i, (client, requests)) in [("A", 20), ("B", 95), ("D", 90)].into_iter().enumerate() {
            let count = &counts[i];
            scope.spawn(move || send(stack, client, 4 * requests, begun, 4 * CYCLE, count));
        }
        let burst = &burst;
        scope.spawn(move || {
            send(stack, "C", 2 * 95, begun, 2 * CYCLE, &AtomicU32::new(0));
            thread::scope(|scope| {
                for _ in 0..5 {
                    scope.spawn(|| send(stack, "C", 2 * 200, begun + 2 * CYCLE, 2 * CYCLE, burst));
                }
            });
            // it goes on while the fifth client arrives
            send(stack, "C", 100, begun + 4 * CYCLE, CYCLE / 4, &AtomicU32::new(0));
        });
        let last = &last;
        scope.spawn(move || {
            send(stack, "E", 20, begun + 4 * CYCLE + CYCLE / 8, Duration::from_secs(1), last);
        });
    });
    for (count, (client, requests)) in counts.iter().zip([("A", 80), ("B", 380), ("D", 360)]) {
        let admitted = count.load(Relaxed);
        assert!(admitted * 100 >= requests * 95, "{client}: {admitted} of {requests}");
    }
    // 390 are left by the others in two cycles; requests at their ends may fall into the cycles beside them
    let burst = burst.load(Relaxed);
    assert!((300..=450).contains(&burst), "the burst has {burst} in two cycles");
    assert!(last.load(Relaxed) > 0, "the fifth client is admitted in its first second");
}

/// The example's load script shows that a client borrows what another one leaves.
#[test]
fn the_example_shows_borrowing() {
    let stack = Stack::from_example("examples/fair-shares/config", "examples/fair-shares/envoy.yaml");
    let load =
        Command::new(repository("examples/fair-shares/load.sh")).arg(stack.url()).output().expect("a shell");
    let text = String::from_utf8_lossy(&load.stdout);
    assert!(load.status.success(), "{text}{}", String::from_utf8_lossy(&load.stderr));
    let lines: Vec<Vec<u32>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    assert_eq!(lines.len(), 4, "{text}");
    for line in &lines[2..] {
        let [_, cards, _, loans, _, savings, asked, trading, _] = line[..] else { panic!("{text}") };
        // the machine may be too slow to ask for all of it
        assert!(cards >= 9 && loans >= 9 && trading >= 1 && asked == 40, "{text}");
        assert!((12..=22).contains(&savings), "{text}");
    }
}
