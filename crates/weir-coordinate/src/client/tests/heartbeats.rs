//! Heartbeats: the number of instances, the clock and probes of unavailable nodes.

use super::*;

const BEAT: Duration = Duration::from_secs(1);

fn failed() -> Answer {
    Answer::Failed(RemoteError::Unreachable("gone".into()))
}

async fn fail(client: &Client, script: &Script, node: u64) {
    script.set(node, failed());
    for _ in 0..3 {
        client.call(take(node, 1)).await.expect_err("the node fails");
    }
}

#[tokio::test(start_paused = true)]
async fn a_larger_number_of_instances_counts_at_once_and_a_smaller_one_after_six_seconds() {
    let script = Script::new();
    *script.0.instances.lock() = 7;
    let (client, _tasks) = script.start();
    assert_eq!((client.instances(), client.membership.instances()), (1, None));
    sleep(BEAT / 2).await;
    *script.0.instances.lock() = 2;
    for _ in 0..7 {
        assert_eq!(client.instances(), 7);
        sleep(BEAT).await;
    }
    assert_eq!(client.instances(), 2);
    *script.0.instances.lock() = 3;
    sleep(BEAT).await;
    assert_eq!(client.instances(), 3);
    // this instance is alive, whatever the store has lost
    *script.0.instances.lock() = 0;
    sleep(BEAT * 8).await;
    assert_eq!(client.membership.instances(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn every_heartbeat_registers_the_instance_for_two_beats_until_it_leaves() {
    let script = Script::new();
    *script.0.instances.lock() = 5;
    let (client, mut tasks) = script.start();
    assert_eq!(client.membership.instances(), None);
    sleep(BEAT * 7 / 2).await;
    assert_eq!(client.instances(), 5);
    let registered = ("here".to_owned(), Period::from_secs(2));
    assert_eq!(*script.0.heartbeats.lock(), vec![registered; 4]);
    client.leave().await;
    sleep(BEAT * 3).await;
    assert_eq!(script.0.heartbeats.lock()[4..], [("here".to_owned(), Period::default())]);
    assert!(tasks.try_join_next().is_some() && tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_is_probed_with_a_read_of_what_it_failed_to_count() {
    let script = Script::new();
    let (client, _tasks) = script.start();
    sleep(BEAT / 2).await;
    fail(&client, &script, 3).await;
    let sent = script.calls().len();
    sleep(BEAT * 3).await;
    assert!(client.is_silent(StoreNode(3)));
    let probes = &script.calls()[sent..];
    assert_eq!(probes.len(), 3);
    for probe in probes {
        let [command] = &probe.commands[..] else { panic!("{probe:?}") };
        assert_eq!((&command.target, hits_of(command), probe.node), (&target(3), 0, StoreNode(3)));
    }
    // the first reply ends it
    script.set(3, Answer::After(ROUND_TRIP));
    sleep(BEAT).await;
    assert!(!client.is_unavailable());
    let sent = script.calls().len();
    sleep(BEAT * 3).await;
    assert_eq!(script.calls().len(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_counters_have_moved_is_forgotten_without_a_probe() {
    let script = Script::new();
    let (client, _tasks) = script.start();
    sleep(BEAT / 2).await;
    fail(&client, &script, 3).await;
    let sent = script.calls().len();
    *script.0.moved.lock() = Some(StoreNode(4));
    sleep(BEAT).await;
    assert!(!client.is_unavailable());
    assert_eq!(script.calls().len(), sent);
}

#[tokio::test(start_paused = true)]
async fn the_node_of_the_instances_is_probed_by_heartbeats_alone() {
    let script = Script::new();
    *script.0.instances.lock() = 4;
    let (client, _tasks) = script.start();
    sleep(BEAT / 2).await;
    fail(&client, &script, 0).await;
    let (sent, beats) = (script.calls().len(), script.0.heartbeats.lock().len());
    sleep(BEAT * 3).await;
    assert_eq!((script.calls().len(), script.0.heartbeats.lock().len()), (sent, beats + 3));
    assert!(client.is_silent(StoreNode(0)));
    assert_eq!(client.instances(), 4, "the number stays");
    script.set(0, Answer::After(ROUND_TRIP));
    sleep(BEAT).await;
    assert!(!client.is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn three_failed_heartbeats_make_the_store_unavailable() {
    let script = Script::new();
    let (client, _tasks) = script.start();
    sleep(BEAT / 2).await;
    script.set(0, failed());
    sleep(BEAT * 2).await;
    assert!(!client.is_unavailable());
    sleep(BEAT).await;
    assert!(client.is_silent(StoreNode(0)));
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_reads_the_clock() {
    let script = Script::new();
    let (client, _tasks) = script.start();
    assert_eq!(client.store_clock.offset(), 0);
    sleep(BEAT / 2).await;
    assert_eq!(client.store_clock.offset(), OFFSET + 1_000_000);
    assert!(script.calls().is_empty());
}
