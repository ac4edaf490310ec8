//! Requests in flight that callers of `Acquire` and `POST /v1/acquire` begin, wait for and end.

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, transport::Channel};
use weir_harness::wire::{descriptor, gist, hits, request as of_envoy};
use weir_limit::{PlaceName, RequestName};
use weir_proto::{
    envoy::service::ratelimit::v3::rate_limit_response::Code::Ok as Admits,
    weir::v1::{
        AcquireRequest, ReleaseRequest, acquire_request::Entry, acquire_response::Outcome,
        limiter_client::LimiterClient,
    },
};

use super::{
    Weir,
    grpc::{acquire, client},
    http::post,
    in_process::get,
    until, until_waiting,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { in_flight: 2 }
  - key: one
    rate_limit: { in_flight: 1 }
  - key: cost
    rate_limit: { tiers: [{ in_flight: 2 }, { requests: 100, per: 365d }], reserve: 0 }
  - key: tokens
    rate_limit: { requests: 100, per: 365d, reserve: 0 }
";

fn request(key: &str, max_wait: i64) -> AcquireRequest {
    AcquireRequest {
        domain: "shop".to_owned(),
        entries: vec![Entry { key: key.to_owned(), value: "acme".to_owned() }],
        max_wait: Some(prost_types::Duration { seconds: max_wait, nanos: 0 }),
        ..AcquireRequest::default()
    }
}

/// Returns the token, or none if the request is rejected.
async fn begin(client: &mut LimiterClient<Channel>, key: &str) -> Option<Vec<u8>> {
    let response = acquire(client, request(key, 0)).await;
    assert_eq!(response.outcome() == Outcome::Admitted, !response.token.is_empty(), "{response:?}");
    Some(response.token).filter(|token| !token.is_empty())
}

async fn release(client: &mut LimiterClient<Channel>, token: &[u8], cost: Option<u64>) -> bool {
    let request = ReleaseRequest { token: token.to_vec(), cost };
    client.release(request).await.expect("a response").into_inner().known
}

async fn until_running(weir: &Weir, key: &str, requests: u64) {
    let line = format!("\nweir_in_flight{{domain=\"shop\",key1=\"{key}\"}} {requests}\n");
    until("the number of requests in flight", async || {
        get(weir.addresses.http, "/metrics").await.contains(&line)
    })
    .await;
}

#[tokio::test]
async fn a_token_ends_its_request_once() {
    let mut weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let first = begin(&mut client, "user").await.expect("a place");
    let second = begin(&mut client, "user").await.expect("a place");
    let rejected = acquire(&mut client, request("user", 0)).await;
    assert_eq!(rejected.outcome(), Outcome::Timeout);
    assert_eq!(rejected.retry_after.map(|wait| wait.seconds), Some(1));
    // twice is as once, and a name that nobody gave ends nothing
    let name = String::from_utf8(first.clone()).expect("text");
    let place = RequestName::read(name.split('/').next().expect("a name")).expect("a name").place;
    let other = PlaceName::new(place.start(), place.serial() + 999, false);
    let entries = [weir_limit::Entry { key: "user", value: "acme" }];
    let made_up = RequestName::write(other, [&entries[..]]) + "/shop";
    for token in [&first, &first, &made_up.into_bytes()] {
        assert!(release(&mut client, token, None).await);
    }
    assert!(!release(&mut client, b"AAAA.BBBB/shop", None).await);
    let third = begin(&mut client, "user").await.expect("a place");
    assert_eq!(begin(&mut client, "user").await, None);
    // Envoy's way ends it, too
    let name = String::from_utf8(second).expect("text").split('/').next().expect("a name").to_owned();
    let ended = weir.decide(of_envoy("shop", [descriptor([("in_flight", &*name)])])).await;
    assert_eq!(gist(&ended), (Admits, vec![(Admits, 0)]));
    assert!(release(&mut client, &third, Some(7)).await);
    until_running(&weir, "user", 0).await;
}

/// Tiers count what `Release` says, beside places or not.
#[tokio::test]
async fn a_release_may_have_a_cost() {
    let mut weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    for key in ["cost", "tokens"] {
        for (cost, left) in [(Some(30), 69), (None, 68), (Some(0), 67)] {
            let token = begin(&mut client, key).await.expect("room");
            assert!(release(&mut client, &token, cost).await);
            let check = weir.decide(of_envoy("shop", [hits(0, descriptor([(key, "acme")]))])).await;
            assert_eq!(gist(&check), (Admits, vec![(Admits, left)]), "{key}");
        }
    }
    until_running(&weir, "cost", 0).await;
}

#[tokio::test]
async fn an_end_serves_whoever_waits_longest() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let mut held = begin(&mut client, "one").await.expect("a place");
    let (admitted, mut order) = mpsc::unbounded_channel();
    for i in 0..4 {
        let (mut client, admitted) = (client.clone(), admitted.clone());
        tokio::spawn(async move {
            let response = acquire(&mut client, request("one", 60)).await;
            let _ = admitted.send((i, response.outcome(), response.token));
        });
        until_waiting(&weir, i + 1).await;
    }
    for next in 0..4 {
        assert!(release(&mut client, &held, None).await);
        let (i, outcome, token) = order.recv().await.expect("one more");
        assert_eq!((i, outcome), (next, Outcome::Admitted));
        held = token;
    }
    until_running(&weir, "one", 1).await;
}

#[tokio::test]
async fn callers_leave_the_line_at_their_deadline_or_before() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let held = begin(&mut client, "one").await.expect("a place");
    let wait = |seconds| {
        let mut client = client.clone();
        tokio::spawn(async move { acquire(&mut client, request("one", seconds)).await })
    };
    let late = wait(5);
    until_waiting(&weir, 1).await;
    let leaves = wait(60);
    until_waiting(&weir, 2).await;
    let stays = wait(60);
    until_waiting(&weir, 3).await;
    leaves.abort();
    until_waiting(&weir, 2).await;
    weir.advance(6);
    assert_eq!(late.await.expect("it ends").outcome(), Outcome::Timeout);
    assert!(release(&mut client, &held, None).await);
    assert_eq!(stays.await.expect("it ends").outcome(), Outcome::Admitted);
    until_running(&weir, "one", 1).await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_what_it_has_begun() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let (send, requests) = mpsc::unbounded_channel();
    let responses = client.acquire_stream(UnboundedReceiverStream::new(requests)).await;
    let mut responses = responses.expect("a stream").into_inner();
    let mut tokens = Vec::new();
    for id in 1..=2 {
        send.send(AcquireRequest { id, ..request("user", 0) }).expect("it reads");
        tokens.push(responses.message().await.expect("a response").expect("one more").token);
    }
    let released = |token: &[u8]| AcquireRequest {
        id: 3,
        release: Some(ReleaseRequest { token: token.to_vec(), cost: None }),
        ..AcquireRequest::default()
    };
    for (token, outcome) in [(&*tokens[0], Outcome::Released), (b"x", Outcome::UnknownToken)] {
        send.send(released(token)).expect("it reads");
        let response = responses.message().await.expect("a response").expect("one more");
        assert_eq!((response.id, response.outcome()), (3, outcome));
    }
    until_running(&weir, "user", 1).await;
    let waits = request("one", 60);
    let mut other = client.clone();
    let held = begin(&mut other, "one").await.expect("a place");
    send.send(waits).expect("it reads");
    until_waiting(&weir, 1).await;
    drop((send, responses));
    until_waiting(&weir, 0).await;
    until_running(&weir, "user", 0).await;
    assert!(release(&mut other, &held, None).await);
    until_running(&weir, "one", 0).await;
    // one that is ended leaves the tokens to its client
    let requests = tokio_stream::iter([request("user", 0)]);
    let mut responses = client.acquire_stream(requests).await.expect("a stream").into_inner();
    let response = responses.message().await.expect("a response").expect("one");
    assert_eq!(responses.message().await.expect("the end"), None);
    until_running(&weir, "user", 1).await;
    assert!(release(&mut client, &response.token, None).await);
    until_running(&weir, "user", 0).await;
    let error = client.acquire(released(b"x")).await.expect_err("it is for streams");
    assert_eq!(error.code(), Code::InvalidArgument);
}

fn body(key: &str, max_wait: &str) -> Value {
    let entries = json!([{"key": key, "value": "acme"}]);
    json!({"domain": "shop", "descriptors": [{"entries": entries}], "maxWait": max_wait})
}

#[tokio::test]
async fn requests_begin_and_end_over_http() {
    let mut weir = Weir::start(RULES).await;
    let acquire = async |weir: &Weir, key| {
        let (status, text) = post(weir, "/v1/acquire", &body(key, "0s")).await;
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (status, answer)
    };
    let (status, answer) = acquire(&weir, "one").await;
    let token = answer["token"].as_str().expect("a token").to_owned();
    assert_eq!(status, 200);
    assert_eq!(answer["dynamicMetadata"]["in_flight"], token.split('/').next().expect("a name"));
    let (status, answer) = acquire(&weir, "one").await;
    assert_eq!((status, &answer["reason"], &answer["retryAfter"]), (429, &json!("timeout"), &json!("1s")));
    for _ in 0..2 {
        assert_eq!(post(&weir, "/v1/release", &json!({"token": token})).await, (200, "{}".to_owned()));
    }
    until_running(&weir, "one", 0).await;
    let (_, answer) = acquire(&weir, "cost").await;
    let settled = json!({"token": answer["token"], "cost": "30"});
    assert_eq!(post(&weir, "/v1/release", &settled).await.0, 200);
    let check = weir.decide(of_envoy("shop", [hits(0, descriptor([("cost", "acme")]))])).await;
    assert_eq!(gist(&check), (Admits, vec![(Admits, 69)]));
    for (body, part) in [
        (json!({"token": "AAAA"}), "token is not one of a request in flight"),
        (json!({}), "token is not one of a request in flight"),
        (json!({"token": token, "cost": -1}), "cost is -1; write a whole number"),
        (json!({"token": token, "costs": 1}), "unknown field costs"),
        (json!([1]), "not a JSON object"),
    ] {
        let (status, text) = post(&weir, "/v1/release", &body).await;
        assert!(status == 400 && text.contains(part), "{status} {text}");
    }
    assert_eq!(post(&weir, "/v1/release", &json!({"token": "x".repeat(70_000)})).await.0, 413);
    let weir = Weir::start_with(RULES, &[("WEIR_JSON", "off")]).await;
    assert_eq!(post(&weir, "/v1/release", &json!({"token": token})).await.0, 404);
}
