//! Callers that leave before the answer to a cost that they have reported: it counts.

use std::time::Duration;

use prost_types::value::Kind;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::transport::Channel;
use weir_proto::{
    envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_service_client::RateLimitServiceClient},
    weir::v1::{ReleaseRequest, limiter_client::LimiterClient},
};

use crate::{
    proxy::Faults,
    support::{Weirs, until},
    wire::{descriptor, hits, request},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { requests: 1000, per: 365d, algorithm: fixed_window, reserve: 300, coordination: strict }
";

const COST: u64 = 500;

/// How a cost is reported.
#[derive(Clone, Copy, Debug)]
enum Report {
    Rpc,
    RpcWithoutName,
    Json,
    JsonWithoutName,
    Release,
    HttpRelease,
}

async fn decide(address: &str, entries: &[(&str, &str)], cost: u64) -> RateLimitResponse {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await.expect("it listens");
    let mut asked = request("shop", [hits(cost, descriptor([]))]);
    asked.descriptors[0].entries = entries.iter().flat_map(|entry| descriptor([*entry]).entries).collect();
    client.should_rate_limit(asked).await.expect("a response").into_inner()
}

/// Sends a body, and keeps the connection until there is an answer.
async fn post(address: &str, path: &str, body: &Value) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.expect("it is sent");
    let _ = stream.read(&mut [0]).await;
}

async fn report(how: Report, [grpc, http]: [String; 2], tenant: String, name: String) {
    let json = |key: &str, value: &str| {
        let entries = [json!({"key": key, "value": value})];
        json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": COST}]})
    };
    let token = format!("{name}/shop");
    match how {
        Report::Rpc => drop(decide(&grpc, &[("in_flight", &name)], COST).await),
        Report::RpcWithoutName => drop(decide(&grpc, &[("tenant", &tenant)], COST).await),
        Report::Json => post(&http, "/json", &json("in_flight", &name)).await,
        Report::JsonWithoutName => post(&http, "/json", &json("tenant", &tenant)).await,
        Report::HttpRelease => post(&http, "/v1/release", &json!({"token": token, "cost": COST})).await,
        Report::Release => {
            let channel = Channel::from_shared(format!("http://{grpc}")).expect("an address");
            let mut client = LimiterClient::new(channel.connect().await.expect("it listens"));
            let _ = client.release(ReleaseRequest { token: token.into_bytes(), cost: Some(COST) }).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_caller_that_leaves_counts() {
    let weirs = Weirs::start(1, RULES).await;
    let weir = &weirs.all[0];
    let doors = [
        Report::Rpc,
        Report::RpcWithoutName,
        Report::Json,
        Report::JsonWithoutName,
        Report::Release,
        Report::HttpRelease,
    ];
    for how in doors {
        let (tenant, addresses) =
            (format!("{how:?}"), [weir.grpc_address(), weir.http_address()].map(String::from));
        let begun = decide(weir.grpc_address(), &[("tenant", &tenant)], 0).await;
        let mut fields = begun.dynamic_metadata.expect("it is admitted").fields;
        let Some(Kind::StringValue(name)) = fields.remove("in_flight").and_then(|value| value.kind) else {
            panic!("no name")
        };
        let pattern = format!("*={tenant}}}ih");
        let is_there = || !weirs.server.send::<Vec<String>>(&["KEYS", &pattern]).is_empty();
        until("the store has its place", async || is_there()).await;
        weir.proxy.set(Faults { delay: Duration::from_millis(100), ..Faults::default() });
        let caller = tokio::spawn(report(how, addresses, tenant.clone(), name));
        until("it has ended there", async || !is_there()).await;
        // the reply is on its way
        caller.abort();
        assert!(caller.await.is_err_and(|error| error.is_cancelled()), "{how:?}: no answer yet");
        weir.proxy.set(Faults::default());
        until("its cost counts", async || {
            let entries = [("tenant", &*tenant), ("in_flight", "check")];
            let left = decide(weir.grpc_address(), &entries, 0).await.statuses[0].limit_remaining;
            u64::from(left) == 1_000 - COST
        })
        .await;
    }
}
