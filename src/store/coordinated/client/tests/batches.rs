//! Commands of decisions, which share calls.

use super::*;
use crate::store::coordinated::delivery::{Delivery, Undecided};

const SLOW: Duration = Duration::from_millis(100);

const BUDGET: Period = Period::from_millis(15);

/// Returns the size of each call to `node` that has been sent.
fn sizes(script: &Script, node: u64) -> Vec<usize> {
    let calls = script.calls().into_iter().filter(|call| call.node == StoreNode(node));
    calls.map(|call| call.commands.len()).collect()
}

#[tokio::test(start_paused = true)]
async fn at_most_four_calls_of_512_commands_are_on_their_way_to_a_node() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    let replies: Vec<_> = (0..5 * 512 + 7).map(|i| client.queue(take(1, i)).reply).collect();
    sleep(SLOW / 2).await;
    assert_eq!(sizes(&script, 1), [512; 4]);
    sleep(SLOW).await;
    assert_eq!(sizes(&script, 1), [512, 512, 512, 512, 512, 7]);
    // each command has its own reply, with the time of its call
    for (i, reply) in (0..).zip(replies) {
        let (reply, now) = reply.await.expect("the client lives").expect("the store replies");
        assert_eq!(reply.granted, i);
        assert!(now > EPOCH.after(Period::from_secs(5)), "{now:?}");
    }
    // in the order in which they were queued
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert!(sent.is_sorted() && sent.len() == 5 * 512 + 7);
    assert!(script.calls().iter().all(|call| call.urgency == Urgency::Decision));
}

#[tokio::test(start_paused = true)]
async fn a_node_has_four_calls_at_a_time_however_many_it_has_answered() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for round in 1..=3 {
        for call in 1..=6 {
            drop_later(client.queue(take(1, 1)).reply);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(sizes(&script, 1).len(), 5 * (round - 1) + call.min(4));
        }
        // the last two share a call
        sleep(2 * SLOW).await;
        assert_eq!(sizes(&script, 1).len(), 5 * round);
        assert_eq!(sizes(&script, 1).iter().sum::<usize>(), 6 * round);
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
        drop_later(client.queue(take(1, 1)).reply);
        sleep(Duration::from_millis(1)).await;
    }
    for hits in 1..10 {
        let (reply, _) = client.receive(client.queue(take(2, hits)), BUDGET).await.expect("the node replies");
        assert_eq!(reply.granted, hits);
    }
    assert_eq!((sizes(&script, 1).len(), sizes(&script, 2).len()), (4, 9));
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_decision_no_longer_waits_is_never_sent_and_may_be_sent_again() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for hits in 1..=4 {
        drop_later(client.queue(take(1, hits)).reply);
        sleep(Duration::from_millis(1)).await;
    }
    let kept = client.queue(take(1, 5)).reply;
    let undecided =
        client.receive(client.queue(take(1, 6)), BUDGET).await.map(|_| ()).expect_err("it is not sent");
    assert!(matches!(undecided, Undecided { delivery: Delivery::NotApplied, late: true }), "{undecided:?}");
    drop(client.queue(take(1, 7)).reply);
    let (reply, _) = kept.await.expect("the client lives").expect("the store replies");
    assert_eq!(reply.granted, 5);
    sleep(2 * SLOW).await;
    let sent: Vec<u64> = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).collect();
    assert_eq!(sent, [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_was_sent_and_has_no_reply_in_time_must_not_be_repeated() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    let mut sent = Vec::new();
    // every one is sent in a call of its own
    for hits in 1..=4 {
        let client = Arc::clone(&client);
        sent.push(tokio::spawn(async move { client.receive(client.queue(take(1, hits)), BUDGET).await }));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sizes(&script, 1), [1; 4]);
    // others wait meanwhile
    let _waiting = [client.queue(take(1, 5)).reply, client.queue(take(1, 6)).reply];
    for request in sent {
        let undecided = request.await.expect("it runs").map(|_| ()).expect_err("the reply is late");
        assert!(matches!(undecided, Undecided { delivery: Delivery::Unknown, late: true }), "{undecided:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_fails_each_of_its_commands_with_its_reason() {
    for (error, delivery) in [
        (RemoteError::NotSent("full".into()), Delivery::NotApplied),
        (RemoteError::Unreachable("gone".into()), Delivery::Unknown),
    ] {
        let script = Script::new();
        script.set(1, Answer::Failed(error.clone()));
        let (client, _tasks) = script.start();
        let queued = [client.queue(take(1, 1)).reply, client.queue(take(1, 2)).reply];
        let undecided =
            client.receive(client.queue(take(1, 3)), BUDGET).await.map(|_| ()).expect_err("the call fails");
        assert_eq!((undecided.delivery, undecided.late), (delivery, false));
        assert_eq!(undecided.reason(), "the call failed");
        for reply in queued {
            assert_eq!(reply.await.expect("the client lives").expect_err("the call fails"), error);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_4096_decisions_wait_for_a_node() {
    let script = Script::new();
    script.set(1, Answer::After(SLOW));
    let (client, _tasks) = script.start();
    for _ in 0..4 {
        drop_later(client.queue(take(1, 0)).reply);
        sleep(Duration::from_millis(1)).await;
    }
    let mut waiting: Vec<_> = (1..=4_096).map(|hits| client.queue(take(1, hits)).reply).collect();
    assert!(waiting.iter_mut().all(|reply| reply.try_recv().is_err()));
    let error = client.queue(take(1, 1)).reply.await.expect("it has a reply").expect_err("there is no room");
    assert!(error.is_definitely_not_applied(), "{error}");
    // a decision that no longer waits makes room
    drop(waiting.remove(7));
    waiting.push(client.queue(take(1, 4_097)).reply);
    let error = client.queue(take(1, 1)).reply.await.expect("it has a reply").expect_err("there is no room");
    assert!(error.is_definitely_not_applied(), "{error}");
    for reply in waiting {
        reply.await.expect("the client lives").expect("the store replies");
    }
    let sent: u64 = script.calls().iter().flat_map(|call| &call.commands).map(hits_of).sum();
    assert_eq!(sent, (1..=4_097).sum::<u64>() - 8);
}
