//! When a counter is due.

use tokio::time::{Duration, Instant, advance};

use super::*;

impl Fixture {
    /// Returns the time until the counter of `value` is due, the only one, in steps of 5 ms.
    async fn until_due(&self, value: &str) -> Period {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            let due = self.due();
            if !due.is_empty() {
                assert_eq!(due, [self.key(value)]);
                return millis(u64::try_from(begun.elapsed().as_millis()).expect("it is short"));
            }
            advance(Duration::from_millis(5)).await;
        }
        Period::MAX
    }
}

/// It waits for the node anyway, and the flush loop would turn around it.
#[tokio::test(start_paused = true)]
async fn a_flush_to_a_node_that_does_not_reply_is_not_urgent() {
    for is_silent in [false, true] {
        let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 3_600)]);
        let target = fixture.with_counter("v", |counter| Arc::clone(&counter.target));
        if is_silent {
            fixture.table.client.open_breaker(&target, fixture.now());
        }
        fixture.count("v", 99);
        let waited = fixture.until_due("v").await;
        assert_eq!(waited, if is_silent { millis(100) } else { millis(0) });
    }
}

/// A long pause ends with others of the interval; a shorter one would be much too early then.
#[tokio::test(start_paused = true)]
async fn a_pause_is_rounded_to_the_interval_only_if_it_is_much_longer() {
    // 1,000 hits a second were counted when these are left
    for (left, waits) in [(7_500, 140..=150), (9_500, 180..=190), (10_500, 200..=200), (15_050, 300..=300)] {
        let fixture = Fixture::new(Coordination::Interval, &[fixed(1_000 + left, 86_400)]);
        // one whose pause is hardly shortened
        let value = (0..10_000_u32).map(|i| i.to_string()).find(|value| fixture.key(value).hash() % 256 < 4);
        let value = value.expect("one in 64");
        let begun = fixture.now();
        fixture.with_counter(&value, |counter| {
            for hit in 1..=1_000 {
                counter.demand.record(1, begun.after(millis(hit)));
            }
        });
        advance(Duration::from_secs(1)).await;
        fixture.count(&value, 1_000);
        fixture.with_counter(&value, |counter| {
            let link = fixture.table.link_now();
            let composed = counter.composed(&link);
            fixture.deliver(counter, composed, &link);
        });
        fixture.due();
        fixture.count(&value, 1);
        let waited = fixture.until_due(&value).await.as_nanos() / 1_000_000;
        assert!(waits.contains(&waited), "{waited} ms, {left} left");
    }
}

/// A lease of a window may be abandoned, which is looked at when no check has come for ten seconds.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_used_is_due_when_it_is_abandoned() {
    let fixture = Fixture::new(Coordination::Lease, &[fixed(100, 3_600)]);
    let granted = fixture.with_counter("v", |counter| fixture.lease(counter, 1, 50));
    assert!(granted >= 50);
    let waited = fixture.until_due("v").await;
    assert!((millis(9_750)..=millis(10_000)).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_returned_two_round_trips_and_a_late_turn_before_its_end() {
    let fixture = Fixture::new(Coordination::Lease, &[sliding(100, 60)]);
    let round_trip = fixture.table.client.round_trip().as_nanos();
    assert!(round_trip > 0);
    assert_eq!(fixture.table.link_now().lead().as_nanos(), 2 * round_trip + 6_000_000);
}

/// Of a check with no hits, for example, or after a burst under `auto`.
#[tokio::test(start_paused = true)]
async fn what_is_to_be_sent_does_not_wait_for_the_end_of_a_lease() {
    for is_sent in [false, true] {
        let fixture = Fixture::new(Coordination::Lease, &[sliding(10_000, 600)]);
        let begun = fixture.now();
        advance(Duration::from_secs(2)).await;
        let granted = fixture.with_counter("v", |counter| {
            for tenth in 0..20 {
                counter.demand.record(1, begun.after(millis(100 * tenth)));
            }
            fixture.lease(counter, 2, 5)
        });
        assert!(granted > 5, "some are ahead");
        if is_sent {
            // the end is in the queue
            fixture.with_counter("v", |counter| counter.refresh(Period::default(), fixture.now()));
        }
        let waited = fixture.until_due("v").await;
        assert!(if is_sent { waited <= millis(100) } else { waited >= millis(200) }, "{waited}");
    }
}
