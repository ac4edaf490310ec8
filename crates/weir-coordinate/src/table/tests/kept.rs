//! What the table keeps of its counters, and what happens to those that nobody checks.

use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn the_table_knows_the_number_and_the_names_of_its_counters() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60)]);
    let name = |value| fixture.with_counter(value, |counter| counter.target.path.len());
    let bytes = name("a") + name("a-longer-one") + name("b");
    assert_eq!((fixture.table.shards.len(), fixture.table.shards.name_bytes()), (3, bytes));
}

/// Tiers tell the counters of the same entries apart; other numbers do not.
#[tokio::test(start_paused = true)]
async fn a_counter_of_other_tiers_begins_with_what_is_known_of_those_that_both_have() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60)]);
    let now = fixture.now();
    fixture.count("v", 7);
    for (own, left, counters) in [
        (&[fixed(50, 60)][..], 43, 1),
        (&[fixed(1_000, 3_600)], 1_000, 2),
        (&[fixed(100, 60), fixed(1_000, 10)], 93, 3),
    ] {
        fixture.with_check("v", Some(own), |check| {
            fixture.table.with_counter(check, now, |_, counter| assert_eq!(counter.remaining(now), left));
        });
        assert_eq!(fixture.table.shards.len(), counters);
    }
}

/// `auto` needs no leases of a limit that is large for any likely number of instances.
#[tokio::test(start_paused = true)]
async fn a_counter_that_needs_no_leases_any_more_returns_them_at_once() {
    let fixture = Fixture::new(Coordination::Auto, &[fixed(100_000, 3_600)]);
    let granted = fixture.with_counter("v", |counter| {
        assert_eq!(counter.choice.mode, Coordination::Interval);
        counter.choice.mode = Coordination::Lease;
        fixture.lease(counter, 1, 50)
    });
    assert!(granted >= 50);
    // the reply has just come, and the lease is not used up
    fixture.with_counter("v", |counter| {
        assert_eq!((counter.choice.mode, counter.ledger.leased()), (Coordination::Interval, 0));
        assert_eq!(counter.ledger.owed().stranded, granted, "they are pending");
    });
    assert_eq!(fixture.table.client.metrics.switches.to_interval.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_busy_counter_is_renewed_before_it_ends() {
    let fixture = Fixture::new(Coordination::Lease, &[sliding(100_000, 60)]);
    *fixture.store.0.instances.lock() = 2;
    let mut tasks = fixture.send_heartbeats();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.table.client.instances(), 2);
    let renewals = || {
        let calls = fixture.store.0.calls.lock();
        let holds = |command: &&Command| command.exchange.lease.is_some();
        calls.iter().flatten().filter(holds).count()
    };
    let now = fixture.now().as_nanos();
    fixture.with_counter("v", |counter| {
        for i in (0..600).rev() {
            counter.demand.record(1, Timestamp::from_nanos(now - i * 1_000_000));
        }
        assert!(fixture.lease(counter, 2, 1) > 100);
    });
    tasks.spawn(sender::run(Arc::clone(&fixture.table)));
    let begun = Instant::now();
    while renewals() == 0 && begun.elapsed() < Duration::from_secs(2) {
        sleep(Duration::from_millis(5)).await;
        let now = fixture.now();
        fixture.with_counter("v", |counter| counter.demand.record(5, now));
    }
    // it may be used for six tenths of a second
    assert!((500..=600).contains(&begun.elapsed().as_millis()), "after {:?}", begun.elapsed());
    assert_eq!(renewals(), 1);
}

/// A lone instance holds for long what others lack.
#[tokio::test(start_paused = true)]
async fn a_counter_learns_of_other_instances_when_it_is_found_and_by_the_sweep() {
    for is_found in [true, false] {
        let fixture = Fixture::new(Coordination::Lease, &[sliding(100_000, 60)]);
        let held = |expected: u64| {
            let held = fixture.table.with_existing(fixture.key("v"), None, |counter| {
                counter.map(|entry| entry.counter.ledger.leased())
            });
            assert_eq!(held, Some(expected), "is found: {is_found}");
        };
        let mut tasks = fixture.send_heartbeats();
        let now = fixture.now().as_nanos();
        let granted = fixture.with_counter("v", |counter| {
            for i in (0..600).rev() {
                counter.demand.record(1, Timestamp::from_nanos(now - i * 1_000_000));
            }
            fixture.lease(counter, 1, 1)
        });
        assert!(granted > 100);
        *fixture.store.0.instances.lock() = 2;
        sleep(Duration::from_millis(1_100)).await;
        held(granted);
        if is_found {
            fixture.with_counter("v", |_| ());
        } else {
            tasks.spawn(sender::run(Arc::clone(&fixture.table)));
            sleep(Duration::from_secs(6)).await;
        }
        held(0);
    }
}

#[tokio::test(start_paused = true)]
async fn leases_that_have_ended_are_counted_as_lost_and_unused_counters_are_removed() {
    let fixture = Fixture::new(Coordination::Lease, &[fixed(100, 2)]);
    let granted = fixture.with_counter("v", |counter| fixture.lease(counter, 1, 5));
    fixture.count("w", 3);
    let mut tasks = JoinSet::new();
    tasks.spawn(sender::run(Arc::clone(&fixture.table)));
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!((fixture.table.client.metrics.hits.stranded.get(), fixture.table.shards.len()), (0, 2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((fixture.table.client.metrics.hits.stranded.get(), fixture.table.shards.len()), (granted, 0));
    assert_eq!(fixture.table.client.metrics.hits.unreported.get(), 0);
}
