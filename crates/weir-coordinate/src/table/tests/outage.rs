//! What the flush loop does while a node does not reply, and when it replies again.

use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep},
};

use super::{super::Waiting, *};

/// The seconds of a year: the node of a counter stays the same meanwhile.
const YEAR: u64 = 365 * 86_400;

impl Fixture {
    fn start_flushing(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(sender::run(Arc::clone(&self.table)));
        tasks
    }

    /// Makes the node that counts `value` unavailable, and no other one.
    async fn begin_partial_outage(&self, value: &str) {
        let target = self.with_counter(value, |counter| Arc::clone(&counter.target));
        let next = self.now().after(target.tiers[0].period);
        let read = Command { target, at: next, exchange: Exchange::read() };
        self.table.client.call(read).await.expect("the other node replies");
        self.store.0.calls.lock().clear();
        self.begin_outage(value);
    }

    fn commands(&self) -> usize {
        self.store.0.calls.lock().iter().map(Vec::len).sum()
    }

    fn reported(&self) -> i64 {
        let calls = self.store.0.calls.lock();
        let reports = calls.iter().flatten().flat_map(|command| &command.exchange.reports);
        reports.map(|report| report.change.hits).sum()
    }

    fn has_reported(&self, value: &str) -> bool {
        self.table.with_existing(self.key(value), None, |counter| {
            counter.expect("it is there").counter.is_settled()
        })
    }
}

/// Each new value of a request is another counter. They have to leave the queue as they leave the table.
#[tokio::test(start_paused = true)]
async fn the_queue_does_not_grow_in_an_outage_while_counters_are_evicted() {
    const ROOM: usize = 1_000;
    let fixture = Fixture::with_room(ROOM, Coordination::Interval, &[fixed(100, YEAR)]);
    fixture.begin_outage("v");
    let tasks = fixture.start_flushing();
    let mut most = 0;
    for i in 0..40_000_u32 {
        fixture.count(&i.to_string(), 1);
        if i % 5 == 4 {
            sleep(Duration::from_millis(1)).await;
            most = most.max(fixture.table.queue.entries());
        }
    }
    assert!(most <= 3 * ROOM, "{most}");
    assert_eq!(fixture.commands(), 0);
    // those that are left are reported, once each
    let last = (39_000..40_000_u32).map(|i| i.to_string());
    let kept: Vec<String> = last
        .filter(|value| fixture.table.with_existing(fixture.key(value), None, |counter| counter.is_some()))
        .collect();
    assert!(kept.len() > ROOM / 4, "{}", kept.len());
    fixture.end_outage(&kept[0]).await;
    let evicted = fixture.table.client.metrics.evictions.evicted.get();
    sleep(Duration::from_millis(250)).await;
    assert!(kept.iter().all(|value| fixture.has_reported(value)));
    assert_eq!(fixture.commands() - 1, fixture.table.shards.len());
    assert_eq!(evicted, fixture.table.client.metrics.evictions.evicted.get());
    assert_eq!(evicted + fixture.table.shards.len() as u64, 40_000);
    drop(tasks);
}

/// Otherwise a new counter would be looked at once for every five seconds of the outage before it is due.
#[tokio::test(start_paused = true)]
async fn a_counter_that_is_created_late_in_an_outage_is_queued_for_the_time_at_which_it_is_due() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, YEAR)]);
    fixture.begin_outage("early");
    let _tasks = fixture.start_flushing();
    fixture.count("early", 3);
    sleep(Duration::from_hours(1)).await;
    fixture.count("late", 4);
    assert_eq!(fixture.table.queue.entries(), 2);
    assert_eq!(fixture.commands(), 0);
    fixture.end_outage("late").await;
    let ended = Instant::now();
    while !(fixture.has_reported("early") && fixture.has_reported("late")) {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(ended.elapsed() <= Duration::from_millis(101), "{:?}", ended.elapsed());
    assert_eq!((fixture.reported(), fixture.table.queue.entries()), (7, 0));
}

#[tokio::test(start_paused = true)]
async fn an_urgent_flush_after_an_outage_is_not_delayed_by_it() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, YEAR)]);
    fixture.begin_outage("v");
    fixture.count("v", 60);
    assert_eq!(fixture.due(), []);
    fixture.end_outage("v").await;
    fixture.count("v", 30);
    assert_eq!(fixture.due(), [fixture.key("v")]);
}

/// The more counters there are, the longer each of them waits, so that the waiting ones cost little.
#[tokio::test(start_paused = true)]
async fn in_a_large_table_a_silent_node_is_looked_at_less_often() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, YEAR)]);
    fixture.begin_outage("v");
    for i in 0..20_000_u32 {
        fixture.with_counter(&i.to_string(), |_| {});
    }
    fixture.count("v", 1);
    sleep(Duration::from_millis(149)).await;
    assert_eq!(fixture.due(), []);
    sleep(Duration::from_millis(52)).await;
    assert_eq!(fixture.due(), [fixture.key("v")]);
}

/// What is left of the lease is returned when the node replies again.
#[tokio::test(start_paused = true)]
async fn no_lease_is_renewed_by_a_node_that_does_not_reply() {
    let fixture = Fixture::new(Coordination::Lease, &[sliding(100_000, 60)]);
    *fixture.store.0.instances.lock() = 2;
    let mut heartbeats = fixture.send_heartbeats();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.table.client.instances(), 2);
    heartbeats.shutdown().await;
    let key = fixture.key("v");
    let now = fixture.now().as_nanos();
    fixture.with_counter("v", |counter| {
        for i in (0..600).rev() {
            counter.demand.record(1, Timestamp::from_nanos(now - i * 1_000_000));
        }
        assert!(fixture.lease(counter, 2, 1) > 100);
    });
    fixture.begin_partial_outage("v").await;
    let _tasks = fixture.start_flushing();
    for _ in 0..400 {
        sleep(Duration::from_millis(5)).await;
        let now = fixture.now();
        fixture.with_counter("v", |counter| counter.demand.record(5, now));
    }
    assert_eq!(fixture.commands(), 0);
    let pending = fixture.table.with_existing(key, None, |counter| {
        counter.map(|entry| (entry.counter.ledger.leased(), entry.counter.can_flush()))
    });
    assert_eq!(pending, Some((0, true)));
    fixture.end_outage("v").await;
    // a pause
    sleep(Duration::from_millis(1_100)).await;
    assert!(fixture.has_reported("v"));
    assert_eq!((fixture.commands(), fixture.table.client.metrics.hits.stranded.get()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn hits_under_several_limits_wait_for_a_node_that_does_not_reply() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, YEAR)]);
    fixture.begin_partial_outage("v").await;
    let now = fixture.now();
    let _tasks = fixture.start_flushing();
    fixture.count("v", 7);
    let own = [fixed(100, YEAR), fixed(1_000, 3_600)];
    fixture.with_check("v", Some(&own), |check| {
        fixture.table.with_counter(check, now, |_, counter| {
            counter.count(Direction::Take, OverLimitPolicy::Ignore, Hits(2), now);
        });
    });
    sleep(Duration::from_secs(10)).await;
    assert_eq!((fixture.commands(), fixture.table.client.metrics.hits.delivery_unknown.get()), (0, 0));
    fixture.end_outage("v").await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(fixture.reported(), 9);
}

/// All calls for decisions are on their way, so a counter with a decision that waits becomes due first.
#[tokio::test(start_paused = true)]
async fn what_a_decision_waits_for_does_not_leave_in_the_background() {
    let fixture = Fixture::new(Coordination::Interval, &[fixed(100, YEAR)]);
    let tasks = fixture.start_flushing();
    let target = fixture.with_counter("v", |counter| Arc::clone(&counter.target));
    *fixture.store.0.silent.lock() = Some(fixture.table.client.remote.node(&target, fixture.now()));
    let ask = |value: &str| {
        fixture.with_check(value, None, |check| {
            fixture.table.with_counter(check, fixture.now(), |key, counter| {
                Waiting::ask((key, counter), (Hits(1), TryKind::Take(OverLimitPolicy::Ignore)), None)
            })
        })
    };
    let mut waiting = Vec::new();
    for value in ["a", "b", "c", "d"] {
        waiting.extend(ask(value));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(fixture.store.0.calls.lock().len(), 4);
    fixture.count("v", 5);
    fixture.count("w", 7);
    waiting.extend(ask("v"));
    sleep(Duration::from_millis(900)).await;
    assert_eq!(waiting.len(), 5, "all of them wait");
    // the report of the counter without a decision left
    let background: Vec<_> = fixture.store.0.background.lock().clone();
    let reported = background.iter().flat_map(|command| &command.exchange.reports);
    assert_eq!(reported.map(|report| report.change.hits).collect::<Vec<_>>(), [7]);
    assert!(background.iter().all(|command| command.exchange.runs.is_empty()));
    drop(tasks);
}
