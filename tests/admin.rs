//! The admin API of a whole weir, over each store.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use weir_harness::{
    in_process::{Weir, replace, until},
    wire::{descriptor, request},
};
use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use weir_testing::redis_server::Server;

const MODES: [&str; 4] = ["local", "interval", "lease", "strict"];

async fn ask(weir: &Weir, method: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(weir.addresses.debug).await.expect("it listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("it takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

async fn get(weir: &Weir, path: &str) -> Value {
    ask(weir, "GET", path, "").await
}

/// The rules of one key for each mode: three hits of a window, and ten of another.
fn rules() -> String {
    let rule = |mode: &&str| {
        format!(
            "  - key: {mode}\n    rate_limit:\n      tiers: [{{requests: 3, per: 365d}}, {{requests: 10, per: 30d, algorithm: \
             sliding_window}}]\n      coordination: {mode}\n"
        )
    };
    format!("domain: d\ndescriptors:\n{}", MODES.iter().map(rule).collect::<Vec<_>>().concat())
}

async fn why(weir: &Weir, key: &str, value: &str) -> Value {
    let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": value}]}]});
    ask(weir, "POST", "/v1/why", &body.to_string()).await
}

/// What it says comes true, hit by hit, and asking counts nothing. The two values share a counter of three hits.
async fn agrees(weir: &mut Weir, key: &str, values: [&str; 2], source: &str) {
    for hit in 0..6 {
        let value = values[hit % 2];
        let told = why(weir, key, value).await;
        let counter = get(weir, &format!("/v1/counters?domain=d&entry={key}={value}")).await;
        let answered = weir.decide(request("d", [descriptor([(key, value)])])).await;
        let expected = if answered.overall_code() == Code::Ok { "admitted" } else { "rejected" };
        assert_eq!(told["verdict"], expected, "{key}={value}, hit {hit}: {told}");
        assert_eq!(expected == "admitted", hit < 3, "{key}={value}, hit {hit}");
        let view = &counter["items"][0];
        assert_eq!(view["source"], source, "{key}={value}, hit {hit}: {view}");
        assert_eq!(view["tiers"][0]["used"], hit.min(3), "{key}={value}, hit {hit}: {view}");
        assert_eq!(view["tiers"][0]["limit"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory_and_on_disk_what_is_told_comes_true() {
    let mut weir = Weir::start(&rules()).await;
    agrees(&mut weir, "local", ["x"; 2], "memory").await;
    let disk = [("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", "{dir}/data")];
    let mut weir = Weir::start_with(&rules(), &disk).await;
    agrees(&mut weir, "local", ["x"; 2], "disk").await;
    assert_eq!(get(&weir, "/v1/instance").await["store"]["kind"], "disk");
}

const CONTRACTS: [(&str, &str); 2] = [
    (
        "rules.yaml",
        "domain: d\nplans:\n  free: {requests: 3, per: 365d}\ndescriptors:\n- key: address\n  match: cidr\n  values: \
         [10.0.0.0/8, 2001:db8::/32]\n  count_by: network\n  rate_limit: {requests: 3, per: calendar year, timezone: \
         Europe/Berlin}\n- key: tenant\n  limits_from: plans.csv\n- key: hours\n  rate_limit:\n    schedule:\n    - \
         {requests: 3, per: 365d, active: {from: \"23:00\", to: \"01:00\"}}\n    - {requests: 1, per: 365d}\n",
    ),
    ("plans.csv", "value,plan,limit\nacme,,3 per calendar month\nbolt,free,\n"),
];

/// Networks, tables, schedules and calendars, also of addresses that share a counter.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_of_limits_as_in_contracts_comes_true_and_is_reset() {
    let mut weir = Weir::try_start_files(&CONTRACTS, &[("WEIR_ADMIN", "full")]).await.expect("it starts");
    for (key, values) in [
        ("address", ["10.1.2.3", "10.200.0.1"]),
        ("address", ["2001:db8::1", "2001:0DB8:0::2"]),
        ("tenant", ["acme", "acme"]),
        ("tenant", ["bolt", "bolt"]),
        ("hours", ["x", "x"]),
    ] {
        agrees(&mut weir, key, values, "memory").await;
        let body = json!({"domain": "d", "entries": [{"key": key, "value": values[1]}]});
        ask(&weir, "POST", "/v1/reset", &body.to_string()).await;
        assert_eq!(why(&weir, key, values[0]).await["verdict"], "admitted", "{key}={values:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_redis_what_is_told_comes_true_in_every_mode() {
    let server = Server::start();
    let url = format!("127.0.0.1:{}", server.port());
    let variables = [("REDIS_URL", url.as_str()), ("WEIR_DECISION_BUDGET", "2s")];
    let mut weir = Weir::start_with(&rules(), &variables).await;
    until("it is connected", async || get(&weir, "/v1/instance").await["store"]["state"] == "ok").await;
    for mode in MODES {
        agrees(&mut weir, mode, ["x"; 2], if mode == "local" { "memory" } else { "store" }).await;
    }
    let instance = get(&weir, "/v1/instance").await;
    assert_eq!(
        (&instance["store"]["kind"], &instance["store"]["is_shared"]),
        (&json!("redis"), &json!(true))
    );
    assert!(
        instance["clock_distance"].is_number() && instance["store"]["round_trip"].is_number(),
        "{instance}"
    );
    // without the store, what this instance believes
    drop(server);
    until("it is noticed", async || {
        let view = &get(&weir, "/v1/counters?domain=d&entry=interval=x").await["items"][0];
        view["source"] == "memory"
            && view["note"].as_str().is_some_and(|note| note.contains("did not answer"))
    })
    .await;
    until("it needs a person", async || {
        get(&weir, "/v1/attention").await.to_string().contains("store_unreachable")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_rules_are_in_the_trail_and_errors_need_attention() {
    let weir = Weir::start(&rules()).await;
    let before = get(&weir, "/v1/instance").await["rules"].clone();
    assert_eq!(get(&weir, "/v1/audit").await["items"], json!([]), "the first load is no change");
    let files = get(&weir, "/v1/files").await;
    assert_eq!(files["items"][0]["text"], rules());
    let rule = &get(&weir, "/v1/rules").await["items"][0];
    assert_eq!(rule["file"], files["items"][0]["name"]);
    replace(&weir.file(), &(rules() + "  - key: more\n    rate_limit: {requests: 1, per: 1m}\n"));
    until("it is loaded", async || get(&weir, "/v1/audit?kind=rules").await["items"][0].is_object()).await;
    let change = &get(&weir, "/v1/audit").await["items"][0];
    assert_eq!(
        (&change["before"], &change["after"]),
        (&json!("generation 1, 4 rules"), &json!("generation 2, 5 rules"))
    );
    let after = get(&weir, "/v1/instance").await["rules"].clone();
    assert_ne!(before["digest"], after["digest"]);
    let elsewhere = Weir::start(&rules()).await;
    assert_eq!(
        get(&elsewhere, "/v1/instance").await["rules"]["digest"],
        before["digest"],
        "in another folder"
    );
    replace(&weir.file(), "domain: d\ndescriptors:\n  - kye: more\n");
    until("it is told", async || {
        let finding = &get(&weir, "/v1/attention").await["items"][0];
        finding["kind"] == "rules_rejected" && finding["where"]["line"] == 3
    })
    .await;
    assert!(get(&weir, "/v1/files").await["note"].as_str().is_some_and(|note| note.contains("errors")));
}
