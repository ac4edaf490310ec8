//! Callers that would wait for a year, by the thousand, and callers that hang up at once.

use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use weir_proto::weir::v1::{
    AcquireRequest, acquire_request::Entry, acquire_response::Outcome, limiter_client::LimiterClient,
};

use crate::target::{MB, Target};

/// The hits of the rule `waited`, which has none for nearly a minute once all were taken.
const HITS: u64 = 1_000_000;

async fn connect(target: &Target) -> LimiterClient<Channel> {
    LimiterClient::connect(format!("http://{}", target.address("grpc"))).await.expect("it listens")
}

/// A year in seconds.
const YEAR: i64 = 365 * 86_400;

fn request(hits: u64, seconds: i64) -> AcquireRequest {
    AcquireRequest {
        domain: "d".to_owned(),
        entries: vec![Entry { key: "waited".to_owned(), value: "x".to_owned() }],
        hits,
        max_wait: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..AcquireRequest::default()
    }
}

/// Starts a weir whose callers have to wait.
async fn exhausted(variables: &[(&str, &str)]) -> Target {
    let target = Target::start(variables).await;
    let taken = connect(&target).await.acquire(request(HITS, 0)).await.expect("a response").into_inner();
    assert_eq!(taken.outcome(), Outcome::Admitted);
    target
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_hold_a_bounded_number_of_bytes() {
    let mut target = exhausted(&[("WEIR_MAX_BUFFERED_BYTES", "16MiB")]).await;
    let mut attacks = JoinSet::new();
    for _ in 0..12 {
        let mut client = connect(&target).await;
        attacks.spawn(async move {
            // ends its stream only when it is gone
            let (send, requests) = mpsc::unbounded_channel();
            for _ in 0..1_000 {
                send.send(request(1, YEAR)).expect("it is open");
            }
            let requests = UnboundedReceiverStream::new(requests);
            let mut responses = client.acquire_stream(requests).await?.into_inner();
            while responses.message().await?.is_some() {}
            drop(send);
            Ok::<(), tonic::Status>(())
        });
    }
    target.until_exceeded("buffered_bytes", 1).await;
    assert!(target.metric("weir_waiters ").await > 1_000, "those within the bound wait");
    target.still_serves().await;
    attacks.shutdown().await;
    target.until_at_most("weir_waiters ", 0).await;
    // the buffers of connections are beside the bound
    target.assert_grown_below(60 * MB);
}

/// They leave nothing behind, neither in memory nor in the line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_hang_up_at_once_push_nobody_back() {
    let mut target = exhausted(&[]).await;
    let mut client = connect(&target).await;
    let honest = tokio::spawn(async move { client.acquire(request(1, YEAR)).await });
    while target.metric("weir_waits_total ").await == 0 {
        target.still_serves().await;
    }
    let mut attacks = JoinSet::new();
    for attacker in 0..10_usize {
        let client = connect(&target).await;
        attacks.spawn(async move {
            for call in 0..200 {
                let mut client = client.clone();
                let acquired = tokio::spawn(async move { client.acquire(request(HITS / 100, YEAR)).await });
                // at different steps on its way
                for _ in 0..(attacker + call) % 40 {
                    tokio::task::yield_now().await;
                }
                acquired.abort();
            }
        });
    }
    while let Some(attack) = attacks.join_next().await {
        attack.expect("no panic");
        target.still_serves().await;
    }
    target.until_at_most("weir_waiters ", 1).await;
    assert!(target.metric("weir_waits_left_total ").await > 0, "some of them came into the line");
    // with the places of a hundred of them, the next one would have to wait for another window
    let next = connect(&target).await.acquire(request(HITS / 2, 1)).await.expect("a response").into_inner();
    let retry_after = next.retry_after.map_or(0, |retry_after| retry_after.seconds);
    assert!(matches!(next.outcome(), Outcome::Timeout | Outcome::Admitted) && retry_after <= 55, "{next:?}");
    honest.abort();
    target.assert_grown_below(60 * MB);
}
