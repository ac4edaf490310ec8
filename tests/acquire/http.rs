//! `POST /v1/acquire`.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{RULES, Weir, until_waiting};

/// Begins a request with this body.
async fn begin(address: SocketAddr, body: &str) -> TcpStream {
    begin_at("/v1/acquire", address, body).await
}

async fn begin_at(path: &str, address: SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("it takes it");
    stream
}

/// Returns the status and the body of the response.
async fn end(mut stream: TcpStream) -> (u16, String) {
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, response.split_once("\r\n\r\n").expect("a body").1.to_owned())
}

/// Posts `body` to `path`, and returns the status and the body of the response.
pub(super) async fn post(weir: &Weir, path: &str, body: &Value) -> (u16, String) {
    end(begin_at(path, weir.addresses.http, &body.to_string()).await).await
}

async fn acquire(weir: &Weir, body: &Value) -> (u16, String) {
    end(begin(weir.addresses.http, &body.to_string()).await).await
}

/// A request for `hits` of the value `a`.
fn body(hits: u64, max_wait: &str) -> Value {
    json!({
        "domain": "partners",
        "descriptors": [{"entries": [{"key": "api", "value": "a"}], "hitsAddend": hits}],
        "maxWait": max_wait,
    })
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn a_request_is_answered_as_at_json_and_says_the_wait() {
    let weir = Weir::start(RULES).await;
    let (status, text) = acquire(&weir, &body(1, "200ms")).await;
    let answer = parsed(&text);
    assert_eq!((status, &answer["waited"], &answer["overallCode"]), (200, &json!("0s"), &json!("OK")));
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1);
    // the window ends in 30 s
    let (status, text) = acquire(&weir, &body(2, "29.999s")).await;
    let answer = parsed(&text);
    assert_eq!((status, &answer["retryAfter"], &answer["reason"]), (429, &json!("30s"), &json!("timeout")));
    assert_eq!(answer["statuses"][0]["durationUntilReset"], "30s");
    let (status, text) = acquire(&weir, &body(3, "60s")).await;
    let answer = parsed(&text);
    assert_eq!((status, &answer["retryAfter"], &answer["reason"]), (429, &Value::Null, &json!("never")));
    // without a wait, it is an ordinary request
    let mut request = body(2, "");
    request.as_object_mut().expect("an object").remove("maxWait");
    let (status, text) = acquire(&weir, &request).await;
    assert_eq!((status, &parsed(&text)["retryAfter"]), (429, &json!("30s")));
}

#[tokio::test]
async fn a_caller_waits_for_its_turn() {
    let weir = Weir::start(RULES).await;
    assert_eq!(acquire(&weir, &body(2, "0s")).await.0, 200);
    let waits = begin(weir.addresses.http, &body(1, "30s").to_string()).await;
    until_waiting(&weir, 1).await;
    weir.advance(30);
    let (status, text) = end(waits).await;
    assert_eq!((status, &parsed(&text)["waited"]), (200, &json!("30s")));
    until_waiting(&weir, 0).await;
}

#[tokio::test]
async fn closing_the_connection_gives_the_place_up() {
    let weir = Weir::start(RULES).await;
    assert_eq!(acquire(&weir, &body(2, "0s")).await.0, 200);
    let waits = begin(weir.addresses.http, &body(1, "30s").to_string()).await;
    until_waiting(&weir, 1).await;
    drop(waits);
    until_waiting(&weir, 0).await;
}

#[tokio::test]
async fn a_stop_answers_whoever_waits() {
    let weir = Weir::start(RULES).await;
    assert_eq!(acquire(&weir, &body(2, "0s")).await.0, 200);
    let waits = begin(weir.addresses.http, &body(1, "30s").to_string()).await;
    until_waiting(&weir, 1).await;
    let stopped = weir.stop();
    let (status, text) = end(waits).await;
    assert_eq!((status, &parsed(&text)["reason"]), (503, &json!("closed")));
    stopped.await.expect("it ends").expect("without an error");
}

#[tokio::test]
async fn invalid_requests_say_what_is_wrong() {
    let weir = Weir::start_with(RULES, &[("WEIR_MAX_WAIT", "40s")]).await;
    let two =
        json!([{"entries": [{"key": "api", "value": "a"}]}, {"entries": [{"key": "other", "value": "a"}]}]);
    for (body, status, part) in [
        (body(1, "soon"), 400, "maxWait is \"soon\"; write a duration such as \"200ms\""),
        (json!({"domain": "partners", "maxWait": 5}), 400, "maxWait is 5; write a duration"),
        (json!({"domain": "partners", "maxwait": "5s"}), 400, "maxwait"),
        (json!([1]), 400, "not a JSON object"),
        (json!({"maxWait": "5s", "descriptors": two}), 400, "domain must not be empty"),
        (json!({"domain": "partners", "maxWait": "5s"}), 400, "descriptor list must not be empty"),
        (
            json!({"domain": "partners", "maxWait": "5s", "descriptors": two}),
            400,
            "2 descriptors of the request",
        ),
        (json!({"domain": "x".repeat(70_000)}), 413, "the body exceeds 65536 bytes"),
    ] {
        let (found, text) = acquire(&weir, &body).await;
        assert!(found == status && text.contains(part), "{found} {text}");
    }
    // a year is cut to the longest wait
    assert_eq!(acquire(&weir, &body(2, "8760h")).await.0, 200);
    weir.advance(30);
    assert_eq!(acquire(&weir, &body(2, "8760h")).await.0, 200);
    assert_eq!(parsed(&acquire(&weir, &body(1, "8760h")).await.1)["reason"], "timeout");
}

#[tokio::test]
async fn whoever_may_not_use_json_may_not_acquire() {
    let weir = Weir::start_with(RULES, &[("WEIR_JSON", "off")]).await;
    assert_eq!(acquire(&weir, &body(1, "1s")).await.0, 404);
}
