//! Commands, which share calls.

use tokio::time::timeout;

use super::{super::Outbox, *};

const SLOW: Duration = Duration::from_millis(100);

const BUDGET: Period = Period::from_millis(15);

fn queue(client: &Client, command: Command) -> oneshot::Receiver<Outcome> {
    let (waiting, outcome) = oneshot::channel();
    let State { queued, hasher, counters, .. } = &*client.caller.remote.0;
    let number = counters.fetch_add(1, Ordering::Relaxed).to_string();
    let key = hasher.key("d", &[Entry { key: "k", value: &number }], |_| None);
    if client.queue(key, &command.target, command.at) {
        queued.lock().push_back((key, command, Some(waiting)));
    } else {
        let _ = waiting.send(Err(RemoteError::NotSent("full".into())));
    }
    outcome
}

/// None if the outcome is late.
async fn receive(client: &Client, command: Command) -> Option<Outcome> {
    let outcome = queue(client, command);
    timeout(BUDGET.into(), outcome).await.ok().map(|outcome| outcome.expect("the client lives"))
}

fn sizes(script: &Script, node: u64) -> Vec<usize> {
    let calls = script.calls().into_iter().filter(|call| call.node == StoreNode(node));
    calls.map(|call| call.commands.len()).collect()
}

#[tokio::test(start_paused = true)]
async fn until_the_round_trip_is_known_four_calls_are_on_their_way_to_a_node() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for _ in 0..6 {
        drop_later(queue(&client, take(1, 1)));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sizes(&script, 1), [1; 4]);
    sleep(SLOW).await;
    assert_eq!(sizes(&script, 1), [1, 1, 1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn full_calls_leave_at_once_before_the_round_trip_is_known() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    let replies: Vec<_> = (0..5 * 64 + 7).map(|i| queue(&client, take(1, i))).collect();
    sleep(SLOW / 2).await;
    assert_eq!(sizes(&script, 1), [64; 5]);
    sleep(SLOW).await;
    assert_eq!(sizes(&script, 1), [64, 64, 64, 64, 64, 7]);
    // each command has its own reply, with the time of its call
    for (i, reply) in (0..).zip(replies) {
        let (reply, now) = reply.await.expect("the client lives").expect("the store replies");
        assert_eq!(reply.granted, i);
        assert!(now > EPOCH.after(Period::from_secs(5)), "{now:?}");
    }
    // in the order in which they were queued
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert!(sent.is_sorted() && sent.len() == 5 * 64 + 7);
    assert!(script.calls().iter().all(|call| call.urgency == Urgency::Decision));
}

/// So that none waits for long, and others share calls.
#[tokio::test(start_paused = true)]
async fn an_eighth_of_a_round_trip_passes_between_two_calls() {
    const ROUND_TRIP: u64 = 80;
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_millis(ROUND_TRIP)));
    let settings = CoordinationSettings { budget: Period::from_secs(1), ..CoordinationSettings::default() };
    let (client, _tasks) = script.start_with(&settings);
    // the first reply says how long it takes
    queue(&client, take(1, 1)).await.expect("the client lives").expect("the store replies");
    for _ in 0..2 * ROUND_TRIP {
        drop_later(queue(&client, take(1, 1)));
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
    let settings = CoordinationSettings { budget: Period::from_secs(1), ..CoordinationSettings::default() };
    let (client, _tasks) = script.start_with(&settings);
    queue(&client, take(1, 1)).await.expect("the client lives").expect("the store replies");
    (0..3 * 64 + 7).for_each(|_| drop_later(queue(&client, take(1, 1))));
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
    let settings = CoordinationSettings { budget: Period::from_secs(1), ..CoordinationSettings::default() };
    let (client, _tasks) = script.start_with(&settings);
    queue(&client, take(1, 1)).await.expect("the client lives").expect("the store replies");
    drop_later(queue(&client, take(1, 2)));
    sleep(Duration::from_millis(1)).await;
    drop(queue(&client, take(1, 3)));
    // it would have left after ten
    sleep(Duration::from_millis(11)).await;
    drop_later(queue(&client, take(1, 4)));
    sleep(Duration::from_millis(1)).await;
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert_eq!(sent, [1, 2, 4]);
}

/// Decisions would be made without the store if they waited for a distance.
#[tokio::test(start_paused = true)]
async fn calls_that_take_longer_than_the_budget_leave_at_once_but_sixteen_at_most() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    queue(&client, take(1, 1)).await.expect("the client lives").expect("the store replies");
    for call in 1..=20 {
        drop_later(queue(&client, take(1, 1)));
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
    let (client, _tasks) = script.start();
    for _ in 0..5 {
        drop_later(queue(&client, take(1, 1)));
        sleep(Duration::from_millis(1)).await;
    }
    for hits in 1..10 {
        let outcome = receive(&client, take(2, hits)).await.expect("in time");
        let (reply, _) = outcome.expect("the node replies");
        assert_eq!(reply.granted, hits);
    }
    assert_eq!((sizes(&script, 1).len(), sizes(&script, 2).len()), (4, 9));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_nobody_waits_for_any_more_is_not_sent() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for hits in 1..=4 {
        drop_later(queue(&client, take(1, hits)));
        sleep(Duration::from_millis(1)).await;
    }
    let kept = queue(&client, take(1, 5));
    assert!(receive(&client, take(1, 6)).await.is_none(), "it is not sent");
    drop(queue(&client, take(1, 7)));
    let (reply, _) = kept.await.expect("the client lives").expect("the store replies");
    assert_eq!(reply.granted, 5);
    sleep(2 * SLOW).await;
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert_eq!(sent, [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_fails_each_of_its_commands_with_its_reason() {
    let error = RemoteError::Unreachable("gone".into());
    let script = Script::new();
    script.set(1, Answer::Failed(error.clone()));
    let (client, _tasks) = script.start();
    for outcome in [queue(&client, take(1, 1)), queue(&client, take(1, 2))] {
        assert_eq!(outcome.await.expect("the client lives").expect_err("the call fails"), error);
    }
}

/// However many calls for decisions are on their way.
#[tokio::test(start_paused = true)]
async fn what_no_decision_waits_for_is_sent_in_calls_of_256_commands_of_its_own() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for _ in 0..4 {
        drop_later(queue(&client, take(1, 0)));
        sleep(Duration::from_millis(1)).await;
    }
    let (waiting, outcomes): (Vec<_>, Vec<_>) = (0..300).map(|_| oneshot::channel()).unzip();
    let mut waiting = waiting.into_iter();
    for part in [100, 200] {
        let mut outbox = Outbox::default();
        for waiting in waiting.by_ref().take(part) {
            outbox.push(take(1, 7), Some(waiting));
        }
        client.send_in_background(outbox);
    }
    for outcome in outcomes {
        let (reply, _) = outcome.await.expect("the client lives").expect("the store replies");
        assert_eq!(reply.granted, 7);
    }
    assert_eq!(sizes(&script, 1), [1, 1, 1, 1, 256, 44]);
    let background = script.calls().into_iter().filter(|call| call.urgency == Urgency::Background);
    assert_eq!(background.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_together_goes_to_the_node_of_each_command() {
    let script = Script::new();
    let (client, _tasks) = script.start();
    let (mut outbox, mut outcomes) = (Outbox::default(), Vec::new());
    for (node, hits) in [(1, 3), (2, 5), (1, 7)] {
        let (waiting, outcome) = oneshot::channel();
        outbox.push(take(node, hits), Some(waiting));
        outcomes.push(outcome);
    }
    client.send_in_background(outbox);
    for outcome in outcomes {
        outcome.await.expect("the client lives").expect("the store replies");
    }
    let sent =
        script.calls().into_iter().map(|call| (call.node.0, call.commands.iter().map(hits_of).collect()));
    let mut sent: Vec<(u64, Vec<u64>)> = sent.collect();
    sent.sort_unstable();
    assert_eq!(sent, [(1, vec![3, 7]), (2, vec![5])]);
}

#[tokio::test(start_paused = true)]
async fn at_most_4096_decisions_wait_for_a_node() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for _ in 0..4 {
        drop_later(queue(&client, take(1, 0)));
        sleep(Duration::from_millis(1)).await;
    }
    let mut waiting: Vec<_> = (1..=4_096).map(|hits| queue(&client, take(1, hits))).collect();
    assert!(waiting.iter_mut().all(|reply| reply.try_recv().is_err()));
    let error = queue(&client, take(1, 1)).await.expect("it has a reply").expect_err("there is no room");
    assert!(error.is_definitely_not_applied(), "{error}");
    // a decision that no longer waits is left out
    drop(waiting.remove(7));
    for reply in waiting {
        reply.await.expect("the client lives").expect("the store replies");
    }
    let sent: u64 = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).sum();
    assert_eq!(sent, (1..=4_096).sum::<u64>() - 8);
}
