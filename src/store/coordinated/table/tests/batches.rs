//! What is sent together, and which counter a reply is applied to.

use tokio::time::{Duration, sleep};

use super::{super::batches::Batches, *};

impl Fixture {
    /// Adds the counters of `values` to `batches`.
    fn add(&self, batches: &mut Batches<'_, TwoNodes>, values: &[&str]) {
        for value in values {
            let key = self.key(value);
            self.table.with_existing(key, |counter| batches.add(key, counter, self.now()));
        }
    }

    /// Returns the number of commands of each call.
    fn calls(&self) -> Vec<usize> {
        self.store.0.calls.lock().iter().map(Vec::len).collect()
    }

    fn is_settled(&self, value: &str) -> bool {
        self.table.with_existing(self.key(value), |counter| counter.is_settled()).expect("it is there")
    }
}

async fn finish(batches: Batches<'_, TwoNodes>) {
    for call in batches.finish() {
        call.await.expect("the call returns");
    }
}

/// Its hits are in flight with the first one.
#[tokio::test(start_paused = true)]
async fn a_counter_that_is_added_again_takes_no_other_one_s_reply() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60)]);
    let mut batches = Batches::new(&fixture.table);
    for value in ["a", "b", "c"] {
        fixture.count(value, 2);
    }
    fixture.add(&mut batches, &["a", "b"]);
    fixture.count("b", 3);
    fixture.add(&mut batches, &["b", "c"]);
    finish(batches).await;
    assert_eq!(fixture.calls(), [3]);
    assert_eq!(["a", "b", "c"].map(|value| fixture.is_settled(value)), [true, false, true]);
    assert_eq!(fixture.table.metrics.delivery_unknown.get(), 0);
    let mut batches = Batches::new(&fixture.table);
    fixture.add(&mut batches, &["a", "b", "c"]);
    finish(batches).await;
    assert_eq!(fixture.calls(), [3, 1]);
    assert!(fixture.is_settled("b"));
}

/// The windows of one counter can be on different nodes.
#[tokio::test(start_paused = true)]
async fn no_counter_waits_for_a_node_that_only_another_one_s_hits_are_for() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60), fixed(1_000, 3_600)]);
    for value in ["other", "split", "last"] {
        fixture.count(value, 2);
    }
    sleep(Duration::from_mins(1)).await;
    fixture.count("split", 3);
    let target = fixture.with_counter("split", |counter| Arc::clone(&counter.target));
    *fixture.store.0.silent.lock() = Some(fixture.store.node(&target, fixture.now()));
    let mut batches = Batches::new(&fixture.table);
    fixture.add(&mut batches, &["other", "split", "last"]);
    drop(batches.finish());
    sleep(Duration::from_millis(100)).await;
    assert_eq!(["other", "split", "last"].map(|value| fixture.is_settled(value)), [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn what_is_for_one_node_is_sent_together() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60), fixed(1_000, 3_600)]);
    fixture.count("old", 2);
    // every other window is on the same node
    sleep(Duration::from_mins(2)).await;
    fixture.count("old", 3);
    fixture.count("new", 3);
    let mut batches = Batches::new(&fixture.table);
    fixture.add(&mut batches, &["old", "new"]);
    finish(batches).await;
    // one command each, with all windows
    assert_eq!(fixture.calls(), [2]);
    assert!(fixture.is_settled("old") && fixture.is_settled("new"));
}

/// The window that another node counts must not wait for a reply that may never come.
#[tokio::test(start_paused = true)]
async fn hits_in_flight_to_a_silent_node_are_given_up_in_the_next_window() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, 60), fixed(1_000, 3_600)]);
    let target = fixture.with_counter("v", |counter| Arc::clone(&counter.target));
    *fixture.store.0.silent.lock() = Some(fixture.store.node(&target, fixture.now()));
    fixture.count("v", 4);
    let mut batches = Batches::new(&fixture.table);
    fixture.add(&mut batches, &["v"]);
    drop(batches.finish());
    let in_flight = || fixture.with_counter("v", |counter| counter.carried_hits().unreported);
    sleep(Duration::from_secs(50)).await;
    assert!(fixture.table.client.is_unavailable(), "the node is silent");
    assert_eq!((in_flight(), fixture.table.metrics.delivery_unknown.get()), (4, 0));
    sleep(Duration::from_secs(11)).await;
    assert_eq!((in_flight(), fixture.table.metrics.delivery_unknown.get()), (0, 4));
}
