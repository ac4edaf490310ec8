//! Decisions and reports of counters, which share calls.

use std::pin::Pin;

use tokio::time::timeout;

use super::*;
use crate::{
    client::Delivery,
    counter::{LocalCounter, TryKind, TryOutcome},
    table::{CounterTable, Waiting, sender},
};
use weir_limit::{
    CounterKey, Descriptor, Direction, Domain, Entry, Hits, KeyHasher, Limit, LimitCheck, Matched, Request,
    Rule, RuleCoordination, RuleNode, RuleSet, Values,
};

const SLOW: Duration = Duration::from_millis(100);

const BUDGET: Period = Period::from_millis(15);

type Answered = Pin<Box<dyn Future<Output = TryOutcome> + Send>>;

/// A table of counters on nodes 1 and 2, of which the test uses each once.
struct Fixture {
    table: Arc<CounterTable<Script>>,
    rules: RuleSet,
    counters: AtomicUsize,
    _tasks: JoinSet<()>,
}

impl Fixture {
    fn new(script: &Script) -> Self {
        Self::with_budget(script, BUDGET)
    }

    fn with_budget(script: &Script, budget: Period) -> Self {
        let settings = CoordinationSettings { budget, ..CoordinationSettings::default() };
        let (table, mut tasks) = (Arc::new(CounterTable::new(script.client_with(&settings))), JoinSet::new());
        tasks.spawn(sender::run(Arc::clone(&table)));
        let domains = ["1", "2"].map(|domain| {
            let limit = Limit::fixed_window(1_000_000, Period::from_secs(60));
            let mode = Some(Coordination::Strict);
            let coordination = RuleCoordination { mode, ..RuleCoordination::default() };
            let rule = Some(Rule { coordination, ..Rule::new(limit) });
            Domain::new(domain, vec![RuleNode { rule, ..RuleNode::new("k", Values::Any) }])
        });
        let rules = RuleSet::new(&domains, KeyHasher::random());
        Self { table, rules, counters: AtomicUsize::new(0), _tasks: tasks }
    }

    fn with_new_counter<T>(&self, node: u64, act: impl FnOnce(CounterKey, &mut LocalCounter) -> T) -> T {
        let (domain, value) = (node.to_string(), self.counters.fetch_add(1, Ordering::Relaxed).to_string());
        let entries = [Entry { key: "k", value: &value }].into_iter().collect();
        let descriptor = Descriptor { entries, ..Descriptor::default() };
        let request = Request { domain: &domain, descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let check: &LimitCheck<'_> = &Matched::new(&self.rules, &request).checks[0];
        self.table.with_counter(check, EPOCH, act)
    }

    fn queue(&self, node: u64, hits: u64) -> Answered {
        let asks = TryKind::Take(OverLimitPolicy::Ignore);
        let waiting = self
            .with_new_counter(node, |key, counter| Waiting::ask((key, counter), (Hits(hits), asks), None));
        let (waiting, table) = (waiting.expect("there is room"), Arc::clone(&self.table));
        let until = Instant::now() + Duration::from_hours(1);
        Box::pin(async move { table.outcome(waiting, until).await })
    }

    /// None if the outcome is late.
    async fn receive(&self, node: u64, hits: u64) -> Option<TryOutcome> {
        timeout(BUDGET.into(), self.queue(node, hits)).await.ok()
    }

    /// Counts `hits` of new counters on `nodes`, which are reported at once.
    fn report(&self, reports: impl IntoIterator<Item = (u64, u64)>) {
        for (node, hits) in reports {
            self.with_new_counter(node, |_, counter| {
                counter.count(Direction::Take, OverLimitPolicy::Ignore, Hits(hits), EPOCH);
            });
        }
    }
}

fn reported(command: &Command) -> i64 {
    command.exchange.reports.iter().map(|report| report.change.hits).sum()
}

fn sizes(script: &Script, node: u64) -> Vec<usize> {
    let calls = script.calls().into_iter().filter(|call| call.node == StoreNode(node));
    calls.map(|call| call.commands.len()).collect()
}

#[tokio::test(start_paused = true)]
async fn until_the_round_trip_is_known_four_calls_are_on_their_way_to_a_node() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    for _ in 0..6 {
        drop_later(fixture.queue(1, 1));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sizes(&script, 1), [1; 4]);
    sleep(SLOW).await;
    assert_eq!(sizes(&script, 1), [1, 1, 1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_leaves_in_full_calls_in_order_of_arrival() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    let replies: Vec<_> = (0..5 * 64 + 7).map(|i| fixture.queue(1, i)).collect();
    sleep(SLOW / 2).await;
    assert_eq!(sizes(&script, 1), [64; 5]);
    sleep(SLOW).await;
    assert_eq!(sizes(&script, 1), [64, 64, 64, 64, 64, 7]);
    // with the time of its call
    for reply in replies {
        let tried = reply.await.expect("the store replies");
        assert!(!tried.decision.over && tried.at > EPOCH.after(Period::from_secs(5)), "{tried:?}");
    }
    // in the order in which they were queued
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert!(sent.is_sorted() && sent.len() == 5 * 64 + 7);
    assert!(script.calls().iter().all(|call| call.priority == CallPriority::Decision));
}

/// So that none waits for long, and others share calls.
#[tokio::test(start_paused = true)]
async fn an_eighth_of_a_round_trip_passes_between_two_calls() {
    const ROUND_TRIP: u64 = 80;
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_millis(ROUND_TRIP)));
    let fixture = Fixture::with_budget(&script, Period::from_secs(1));
    // the first reply says how long it takes
    fixture.queue(1, 1).await.expect("the store replies");
    for _ in 0..2 * ROUND_TRIP {
        drop_later(fixture.queue(1, 1));
        sleep(Duration::from_millis(1)).await;
    }
    let sizes = &sizes(&script, 1)[1..];
    assert_eq!(sizes[0], 1, "none was in flight");
    assert!(sizes[1..].iter().all(|size| (10..=11).contains(size)), "{sizes:?}");
    assert!((15..=16).contains(&sizes.len()), "{sizes:?}");
}

/// Nothing more could join them.
#[tokio::test(start_paused = true)]
async fn full_calls_leave_at_once() {
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_millis(80)));
    let fixture = Fixture::with_budget(&script, Period::from_secs(1));
    fixture.queue(1, 1).await.expect("the store replies");
    (0..3 * 64 + 7).for_each(|_| drop_later(fixture.queue(1, 1)));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(sizes(&script, 1)[1..], [64; 3]);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(sizes(&script, 1)[1..], [64, 64, 64, 7]);
}

/// It has not left.
#[tokio::test(start_paused = true)]
async fn a_call_whose_decisions_were_given_up_delays_no_other() {
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_millis(80)));
    let fixture = Fixture::with_budget(&script, Period::from_secs(1));
    fixture.queue(1, 1).await.expect("the store replies");
    drop_later(fixture.queue(1, 2));
    sleep(Duration::from_millis(1)).await;
    drop(fixture.queue(1, 3));
    // it would have left after ten
    sleep(Duration::from_millis(11)).await;
    drop_later(fixture.queue(1, 4));
    sleep(Duration::from_millis(1)).await;
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert_eq!(sent, [1, 2, 4]);
}

/// Decisions would be made without the store if they waited for a distance.
#[tokio::test(start_paused = true)]
async fn calls_that_take_longer_than_the_budget_leave_at_once_but_sixteen_at_most() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    fixture.queue(1, 1).await.expect("the store replies");
    for call in 1..=20 {
        drop_later(fixture.queue(1, 1));
        sleep(Duration::from_millis(1)).await;
        assert_eq!(sizes(&script, 1).len() - 1, call.min(16));
    }
}

/// Keeps `reply`, so that its command is sent.
fn drop_later<T: Send + 'static>(reply: T) {
    tokio::spawn(async move {
        sleep(Duration::from_mins(1)).await;
        drop(reply);
    });
}

#[tokio::test(start_paused = true)]
async fn calls_to_one_node_do_not_hold_back_those_to_another() {
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_secs(10)));
    let fixture = Fixture::new(&script);
    for _ in 0..5 {
        drop_later(fixture.queue(1, 1));
        sleep(Duration::from_millis(1)).await;
    }
    for hits in 1..10 {
        fixture.receive(2, hits).await.expect("in time").expect("the node replies");
    }
    // the fifth leaves when the other node has shown how long a round trip is
    assert_eq!((sizes(&script, 1).len(), sizes(&script, 2).len()), (5, 9));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_nobody_waits_for_any_more_is_not_sent() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    for hits in 1..=4 {
        drop_later(fixture.queue(1, hits));
        sleep(Duration::from_millis(1)).await;
    }
    let kept = fixture.queue(1, 5);
    assert!(fixture.receive(1, 6).await.is_none(), "it is not sent");
    drop(fixture.queue(1, 7));
    kept.await.expect("the store replies");
    sleep(2 * SLOW).await;
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert_eq!(sent, [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_fails_each_of_its_decisions() {
    let script = Script::new();
    script.set(1, Answer::Failed(RemoteError::Unreachable("gone".into())));
    let fixture = Fixture::new(&script);
    for outcome in [fixture.queue(1, 1), fixture.queue(1, 2)] {
        assert_eq!(outcome.await.expect_err("the call fails"), Delivery::Unknown);
    }
}

/// However many calls for decisions are on their way.
#[tokio::test(start_paused = true)]
async fn what_no_decision_waits_for_is_sent_in_calls_of_64_commands_of_its_own() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    for _ in 0..4 {
        drop_later(fixture.queue(1, 0));
        sleep(Duration::from_millis(1)).await;
    }
    fixture.report((0..100).map(|_| (1, 7)));
    sleep(SLOW / 2).await;
    assert_eq!(sizes(&script, 1), [1, 1, 1, 1, 64, 36]);
    let background = script.calls().into_iter().filter(|call| call.priority == CallPriority::Background);
    assert_eq!(background.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_together_goes_to_the_node_of_each_command() {
    let script = Script::new();
    let fixture = Fixture::new(&script);
    fixture.report([(1, 3), (2, 5), (1, 7)]);
    sleep(ROUND_TRIP).await;
    let sent = script.calls().into_iter();
    let mut sent: Vec<(u64, Vec<i64>)> =
        sent.map(|call| (call.node.0, call.commands.iter().map(reported).collect())).collect();
    for (_, reports) in &mut sent {
        reports.sort_unstable();
    }
    sent.sort_unstable();
    assert_eq!(sent, [(1, vec![3, 7]), (2, vec![5])]);
}

#[tokio::test(start_paused = true)]
async fn however_many_decisions_wait_those_that_are_awaited_are_sent() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let fixture = Fixture::new(&script);
    for _ in 0..4 {
        drop_later(fixture.queue(1, 0));
        sleep(Duration::from_millis(1)).await;
    }
    let mut waiting: Vec<_> = (1..=4_096).map(|hits| fixture.queue(1, hits)).collect();
    // a decision that no longer waits is left out
    drop(waiting.remove(7));
    for reply in waiting {
        reply.await.expect("the store replies");
    }
    let sent: u64 = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).sum();
    assert_eq!(sent, (1..=4_096).sum::<u64>() - 8);
}
