//! Calls, and what their replies say about the clock, the round trip and the health of a node.

use std::future::Future;

use super::*;

fn failed() -> Answer {
    Answer::Failed(RemoteError::Unreachable("gone".into()))
}

async fn call(client: &Client, nodes: &[u64]) -> Result<Vec<Result<u64, RemoteError>>, RemoteError> {
    let mut all = Vec::new();
    for (hits, node) in (1..).zip(nodes) {
        let replies = client.call(take(*node, hits)).await?;
        all.extend(replies.replies.into_iter().map(|reply| reply.map(|reply| reply.granted)));
    }
    Ok(all)
}

fn spawn(work: impl Future<Output: Send> + Send + 'static) {
    tokio::spawn(async move { drop(work.await) });
}

#[tokio::test(start_paused = true)]
async fn the_round_trip_is_a_moving_average_whose_newest_call_is_an_eighth() {
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_millis(10)));
    let client = script.client();
    assert_eq!(client.round_trip(), Period::from_millis(1));
    call(&client, &[1]).await.expect("the node replies");
    assert_eq!(client.round_trip(), Period::from_millis(10), "the first is the average");
    script.set(1, Answer::After(Duration::from_millis(18)));
    call(&client, &[1]).await.expect("the node replies");
    assert_eq!(client.round_trip(), Period::from_millis(11));
    for _ in 0..100 {
        call(&client, &[1]).await.expect("the node replies");
    }
    assert_eq!(client.round_trip().as_nanos() / 100_000, 179);
    // failures say nothing about it
    let before = client.round_trip();
    script.set(1, failed());
    call(&client, &[1]).await.expect_err("the node fails");
    assert_eq!(client.round_trip(), before);
}

#[tokio::test(start_paused = true)]
async fn a_reply_measures_the_clock_of_the_store() {
    let script = Script::new();
    let client = script.client();
    assert_eq!((client.store_clock.offset(), client.time().now), (0, EPOCH));
    call(&client, &[1]).await.expect("the node replies");
    // the script reads its clock at the end of the round trip
    assert_eq!(client.store_clock.offset(), OFFSET + 1_000_000);
    let now = script.0.clock.now();
    assert_eq!(client.local_time_since(EPOCH), now);
    let later = now.after(Period::from_secs(1));
    assert_eq!(client.local_time_since(later), later);
    assert_eq!(client.time().now, client.time_at(now).now);
}

#[tokio::test(start_paused = true)]
async fn three_failures_in_a_row_make_a_node_unavailable_until_it_replies() {
    let script = Script::new();
    let client = script.client();
    for rounds in [2, 3] {
        script.set(1, failed());
        for _ in 0..rounds {
            call(&client, &[1]).await.expect_err("the node fails");
        }
        let is_open = rounds == 3;
        assert_eq!((client.is_unavailable(), client.is_silent(StoreNode(1))), (is_open, is_open));
        assert!(!client.is_silent(StoreNode(2)));
        assert_eq!(client.is_unavailable_for(&target(1), EPOCH), is_open);
        assert!(!client.is_unavailable_for(&target(2), EPOCH));
        script.set(1, Answer::After(ROUND_TRIP));
        call(&client, &[1]).await.expect("the node replies");
        assert!(!client.is_unavailable() && !client.is_silent(StoreNode(1)));
    }
}

/// The reply must not be missed, since the call is never repeated.
#[tokio::test(start_paused = true)]
async fn a_silent_node_becomes_unavailable_and_its_late_reply_still_arrives() {
    let script = Script::new();
    script.set(1, Answer::After(Duration::from_secs(3)));
    let client = script.client();
    let (begun, calling) = (Instant::now(), Arc::clone(&client));
    let reply = tokio::spawn(async move { call(&calling, &[1]).await });
    sleep(Duration::from_millis(499)).await;
    assert!(!client.is_unavailable());
    sleep(Duration::from_millis(2)).await;
    assert!(client.is_silent(StoreNode(1)));
    assert_eq!(reply.await.expect("it runs"), Ok(vec![Ok(1)]));
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert!(!client.is_unavailable());

    // a call to an unavailable node alone is sent, too
    script.set(1, failed());
    for _ in 0..3 {
        call(&client, &[1]).await.expect_err("the node fails");
    }
    script.set(1, Answer::After(ROUND_TRIP));
    assert_eq!(call(&client, &[1, 1]).await, Ok(vec![Ok(1), Ok(2)]));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_replies_to_other_calls_is_not_silent() {
    let script = Script::new();
    let client = script.client();
    script.set(1, Answer::After(Duration::from_secs(3)));
    let calling = Arc::clone(&client);
    spawn(async move { call(&calling, &[1]).await });
    tokio::task::yield_now().await;
    script.set(1, Answer::After(ROUND_TRIP));
    for _ in 0..25 {
        call(&client, &[1]).await.expect("the node replies");
        sleep(Duration::from_millis(100)).await;
        assert!(!client.is_unavailable());
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_always_slow_is_silent_after_two_round_trips() {
    let script = Script::new();
    let client = script.client();
    script.set(1, Answer::After(Duration::from_millis(400)));
    for _ in 0..60 {
        call(&client, &[1]).await.expect("the node replies");
    }
    script.set(1, Answer::After(Duration::from_secs(5)));
    let calling = Arc::clone(&client);
    spawn(async move { call(&calling, &[1]).await });
    sleep(Duration::from_millis(780)).await;
    assert!(!client.is_unavailable());
    sleep(Duration::from_millis(30)).await;
    assert!(client.is_unavailable());
}

#[test]
fn a_mode_that_the_store_does_not_support_is_replaced_by_the_next() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
    let _context = runtime.enter();
    let client = Script::new().client();
    let nearest = |mode| client.nearest_mode(&target(1), mode);
    assert_eq!(nearest(Coordination::Lease), Coordination::Strict);
    assert_eq!(nearest(Coordination::Interval), Coordination::Interval);
    assert_eq!(nearest(Coordination::Local), Coordination::Local);
}
