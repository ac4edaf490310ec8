//! `weir.v1.Limiter`.

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, transport::Channel};
use weir_proto::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::Entry as EnvoyEntry,
        },
        service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code as EnvoyCode},
    },
    weir::v1::{
        AcquireRequest, AcquireResponse, ReleaseRequest, acquire_request::Entry, acquire_response::Outcome,
        limiter_client::LimiterClient,
    },
};

use super::{
    RULES, Weir,
    in_process::{get, replace, uri},
    until, until_waiting,
};

pub(super) async fn client(weir: &Weir) -> LimiterClient<Channel> {
    LimiterClient::connect(uri(&weir.addresses)).await.expect("it listens")
}

/// A request for `hits` of this value of `api`, with a wait in seconds.
fn request(value: &str, hits: u64, max_wait: i64) -> AcquireRequest {
    AcquireRequest {
        domain: "partners".to_owned(),
        entries: vec![Entry { key: "api".to_owned(), value: value.to_owned() }],
        hits,
        max_wait: Some(prost_types::Duration { seconds: max_wait, nanos: 0 }),
        ..AcquireRequest::default()
    }
}

fn seconds(duration: Option<prost_types::Duration>) -> Option<i64> {
    duration.map(|duration| duration.seconds)
}

pub(super) async fn acquire(client: &mut LimiterClient<Channel>, request: AcquireRequest) -> AcquireResponse {
    client.acquire(request).await.expect("a response").into_inner()
}

#[tokio::test]
async fn each_outcome_has_its_response() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let admitted = acquire(&mut client, AcquireRequest { id: 7, ..request("a", 0, 0) }).await;
    assert_eq!((admitted.outcome(), admitted.id, seconds(admitted.waited)), (Outcome::Admitted, 7, Some(0)));
    assert!(admitted.token.is_empty());
    let timeout = acquire(&mut client, request("a", 2, 29)).await;
    assert_eq!((timeout.outcome(), seconds(timeout.retry_after)), (Outcome::Timeout, Some(30)));
    let never = acquire(&mut client, request("a", 3, 60)).await;
    assert_eq!((never.outcome(), never.retry_after), (Outcome::Never, None));
    let invalid = [
        (AcquireRequest { entries: Vec::new(), ..request("a", 1, 0) }, "entries must not be empty"),
        (AcquireRequest { domain: String::new(), ..request("a", 1, 0) }, "domain must not be empty"),
        (request("a", 1, -1), "max_wait is -1 s and 0 ns; it must be 0 or longer"),
    ];
    for (request, text) in invalid {
        let status = client.acquire(request).await.expect_err("it is invalid");
        assert!(status.code() == Code::InvalidArgument && status.message().contains(text), "{status}");
    }
}

#[tokio::test]
async fn hits_are_given_back_once_by_their_token() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let admitted = acquire(&mut client, AcquireRequest { returnable: true, ..request("a", 2, 0) }).await;
    let mut waiting = client.clone();
    let waits = tokio::spawn(async move { acquire(&mut waiting, request("a", 2, 60)).await });
    until_waiting(&weir, 1).await;
    let release = ReleaseRequest { token: admitted.token, cost: None };
    assert!(client.release(release.clone()).await.expect("a response").into_inner().known);
    assert_eq!(waits.await.expect("it ends").outcome(), Outcome::Admitted);
    assert!(!client.release(release.clone()).await.expect("a response").into_inner().known);
    let mut guessed = release.token;
    guessed[15] ^= 1;
    for token in [guessed, Vec::new(), vec![0; 16]] {
        assert!(
            !client
                .release(ReleaseRequest { token, cost: None })
                .await
                .expect("a response")
                .into_inner()
                .known
        );
    }
    // a token lasts as long as the period of its limit
    let late = acquire(&mut client, AcquireRequest { returnable: true, ..request("b", 1, 0) }).await;
    weir.advance(61);
    let release = ReleaseRequest { token: late.token, cost: None };
    assert!(!client.release(release).await.expect("a response").into_inner().known);
}

#[tokio::test]
async fn a_rule_may_deny_that_hits_are_given_back() {
    let rules = |more| {
        format!(
            "domain: partners\n{more}descriptors:\n- {{key: api, rate_limit: {{requests: 2, per: 1m}}}}\n"
        )
    };
    for (more, denies) in [("give_back: deny\n", true), ("", false)] {
        let weir = Weir::start(&rules(more)).await;
        let mut client = client(&weir).await;
        let admitted = acquire(&mut client, AcquireRequest { returnable: true, ..request("a", 2, 0) }).await;
        assert_eq!((admitted.outcome(), admitted.token.is_empty()), (Outcome::Admitted, denies));
        let release = ReleaseRequest { token: admitted.token, cost: None };
        assert_eq!(client.release(release).await.expect("a response").into_inner().known, !denies);
        let outcome = acquire(&mut client, request("a", 1, 0)).await.outcome();
        assert_eq!(outcome, if denies { Outcome::Timeout } else { Outcome::Admitted });
        let returned = "weir_hits_returned_total{domain=\"partners\",key1=\"api\"} 2\n";
        assert_eq!(get(weir.addresses.http, "/metrics").await.contains(returned), !denies);
        // the place of a caller that leaves is not the caller's to keep
        let mut waiting = client.clone();
        let waits = tokio::spawn(async move { acquire(&mut waiting, request("b", 2, 60)).await });
        waits.await.expect("it ends");
        let mut waiting = client.clone();
        let waits = tokio::spawn(async move { acquire(&mut waiting, request("b", 1, 60)).await });
        until_waiting(&weir, 1).await;
        waits.abort();
        until_waiting(&weir, 0).await;
    }
}

#[tokio::test]
async fn cancelling_the_call_gives_the_place_up() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    acquire(&mut client, request("a", 2, 0)).await;
    let mut waiting = client.clone();
    let waits = tokio::spawn(async move { acquire(&mut waiting, request("a", 1, 60)).await });
    until_waiting(&weir, 1).await;
    waits.abort();
    until_waiting(&weir, 0).await;
    // so does the deadline of the call
    let mut short = tonic::Request::new(request("a", 1, 60));
    short.set_timeout(std::time::Duration::from_secs(20));
    let outcome = client.acquire(short).await.expect("a response").into_inner().outcome();
    assert_eq!(outcome, Outcome::Timeout, "a wait of 30 s does not fit the deadline");
}

#[tokio::test]
async fn requests_of_a_stream_are_answered_as_they_are_decided() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let (send, requests) = mpsc::unbounded_channel();
    let responses = client.acquire_stream(UnboundedReceiverStream::new(requests)).await;
    let mut responses = responses.expect("a stream").into_inner();
    for (id, value, hits) in [(1, "a", 2), (2, "a", 1), (3, "a", 1), (4, "b", 1)] {
        send.send(AcquireRequest { id, ..request(value, hits, 60) }).expect("it reads");
    }
    let mut next = async || responses.message().await.expect("a response").expect("one more");
    assert_eq!((next().await.id, next().await.id), (1, 4));
    until_waiting(&weir, 2).await;
    weir.advance(30);
    let (second, third) = (next().await, next().await);
    assert_eq!((second.id, third.id, third.outcome()), (2, 3, Outcome::Admitted));
    assert_eq!(seconds(third.waited), Some(30));
    send.send(request("a", 1, 60)).expect("it reads");
    until_waiting(&weir, 1).await;
    drop((send, responses));
    until_waiting(&weir, 0).await;
}

/// The end of the client's side answers what waits, and a bad request ends the stream.
#[tokio::test]
async fn a_stream_ends_when_all_requests_are_answered() {
    let weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let requests = tokio_stream::iter((0..3).map(|id| AcquireRequest { id, ..request("a", 1, 60) }));
    let mut responses = client.acquire_stream(requests).await.expect("a stream").into_inner();
    for id in 0..2 {
        assert_eq!(responses.message().await.expect("a response").map(|response| response.id), Some(id));
    }
    until_waiting(&weir, 1).await;
    weir.advance(30);
    assert_eq!(responses.message().await.expect("a response").map(|response| response.id), Some(2));
    assert_eq!(responses.message().await.expect("the end"), None);
    let requests = tokio_stream::iter([request("b", 1, 0), request("b", 1, -1)]);
    let mut responses = client.acquire_stream(requests).await.expect("a stream").into_inner();
    let mut statuses = Vec::new();
    loop {
        match responses.message().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(status) => {
                statuses.push(status.code());
                break;
            }
        }
    }
    assert_eq!(statuses, [Code::InvalidArgument]);
}

/// Envoy and callers that wait share counters, and a reload moves the line.
#[tokio::test]
async fn envoy_and_a_reload_change_what_the_line_gets() {
    let mut weir = Weir::start(RULES).await;
    let mut client = client(&weir).await;
    let entry = EnvoyEntry { key: "api".to_owned(), value: "a".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let of_envoy =
        RateLimitRequest { domain: "partners".to_owned(), descriptors: vec![descriptor], hits_addend: 2 };
    assert_eq!(weir.decide(of_envoy.clone()).await.overall_code(), EnvoyCode::Ok);
    let mut waiting = client.clone();
    let waits = tokio::spawn(async move { acquire(&mut waiting, request("a", 2, 60)).await });
    until_waiting(&weir, 1).await;
    replace(&weir.file(), &RULES.replace("requests: 2,", "requests: 4,"));
    weir.reload.now();
    assert_eq!(waits.await.expect("it ends").outcome(), Outcome::Admitted);
    assert_eq!(acquire(&mut client, request("a", 1, 0)).await.outcome(), Outcome::Timeout);
    assert_eq!(weir.decide(of_envoy).await.overall_code(), EnvoyCode::OverLimit);
}

/// Hundreds of callers wait and hang up at once.
#[tokio::test]
async fn callers_that_hang_up_leave_nothing_behind() {
    let weir = Weir::start_with(RULES, &[("WEIR_MAX_WAITERS_PER_KEY", "500")]).await;
    let mut client = client(&weir).await;
    let of_other = |hits, seconds| {
        let mut request = request("a", hits, seconds);
        request.entries[0].key = "other".to_owned();
        request
    };
    acquire(&mut client, of_other(1_000, 0)).await;
    let mut tasks: Vec<_> = (0..600)
        .map(|_| {
            let (mut client, year) = (client.clone(), of_other(1, 365 * 86_400));
            tokio::spawn(async move { acquire(&mut client, year).await.outcome() })
        })
        .collect();
    until_waiting(&weir, 500).await;
    until("the others are rejected", async || tasks.iter().filter(|task| task.is_finished()).count() == 100)
        .await;
    for rejected in tasks.extract_if(.., |task| task.is_finished()) {
        assert_eq!(rejected.await.expect("it ended"), Outcome::Full);
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiting(&weir, 0).await;
}
