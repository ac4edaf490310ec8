//! Tables under requests: limits by value, and reloads.

use std::{fs, path::Path};

use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use weir_testing::redis_server::Server;

use crate::{
    in_process::{Weir, get, replace, until},
    wire::{descriptor, gist, request},
};

const RULES: &str = "\
domain: shop
plans:
  free: {requests: 2, per: 1h}
descriptors:
  - key: tenant
    limits_from: plans.csv
    default: free
  - key: address
    values_from: blocked.txt
    count_by: value
    rate_limit: {requests: 1, per: 1h}
";

const FILES: [(&str, &str); 3] = [
    ("rules.yaml", RULES),
    ("plans.csv", "value,plan,limit\nacme,,3 per 1h\nbolt,free,\n"),
    ("blocked.txt", "192.0.2.1\n192.0.2.9\n"),
];

async fn start(variables: &[(&str, &str)]) -> Weir {
    Weir::try_start_files(&FILES, variables).await.expect("it starts")
}

/// How many of five requests of `value` are admitted.
async fn admitted(weir: &mut Weir, key: &str, value: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..5 {
        let response = weir.decide(request("shop", [descriptor([(key, value)])])).await;
        admitted += usize::from(gist(&response).0 == Code::Ok);
    }
    admitted
}

/// The limit of `value`, as a request that is counted tells it.
async fn limit(weir: &Weir, value: &str) -> Option<u32> {
    let both = request("shop", [descriptor([("tenant", value)])]);
    let response = weir.client.clone().should_rate_limit(both).await.expect("a response").into_inner();
    response.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

fn beside(weir: &Weir, name: &str) -> std::path::PathBuf {
    weir.file().parent().unwrap_or(Path::new("")).join(name)
}

async fn stat(weir: &Weir, name: &str) -> u64 {
    let page = get(weir.addresses.debug, "/stats").await;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_value_has_a_counter_of_its_own_in_every_store() {
    let redis = Server::start();
    let (data, url) = (tempfile::tempdir().expect("a directory"), format!("127.0.0.1:{}", redis.port()));
    let data = data.path().to_str().expect("a plain path");
    for variables in [
        vec![],
        vec![("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", data)],
        vec![("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*url)],
    ] {
        let mut weir = start(&variables).await;
        for (tenant, expected) in [("acme", 3), ("bolt", 2), ("corp", 2), ("duff", 2)] {
            assert_eq!(admitted(&mut weir, "tenant", tenant).await, expected, "{tenant} {variables:?}");
        }
        for (address, expected) in [("192.0.2.1", 1), ("192.0.2.9", 1), ("192.0.2.2", 5)] {
            assert_eq!(admitted(&mut weir, "address", address).await, expected, "{address} {variables:?}");
        }
    }
}

#[tokio::test]
async fn stats_and_metrics_are_by_plan() {
    let mut weir = start(&[]).await;
    for tenant in ["acme", "bolt", "corp", "duff"] {
        admitted(&mut weir, "tenant", tenant).await;
    }
    let name = |rule: &str, what: &str| format!("ratelimit.service.rate_limit.shop.{rule}.{what}");
    assert_eq!(stat(&weir, &name("tenant.plan_free", "total_hits")).await, 15);
    assert_eq!(stat(&weir, &name("tenant.limit_3_per_1h", "over_limit")).await, 2);
    for page in [get(weir.addresses.debug, "/stats").await, get(weir.addresses.http, "/metrics").await] {
        assert!(page.contains("plan_free") && !page.contains("bolt") && !page.contains("duff"), "{page}");
    }
}

#[tokio::test]
async fn a_table_is_reloaded_with_the_rules_and_counts_stay() {
    let tables = tempfile::tempdir().expect("a directory");
    let dir = tables.path().to_str().expect("a plain path");
    let plans = tables.path().join("current/plans.csv");
    fs::create_dir(tables.path().join("current")).expect("a directory");
    fs::write(&plans, "value,limit\nacme,3 per 1h\n").expect("a file");
    let rules = RULES.replace("limits_from: plans.csv", "limits_from: current/plans.csv");
    let files = [("rules.yaml", &*rules), FILES[2]];
    let mut weir = Weir::try_start_files(&files, &[("WEIR_TABLES_DIR", dir)]).await.expect("it starts");
    assert_eq!(admitted(&mut weir, "tenant", "acme").await, 3);
    replace(&plans, "value,limit\nacme,9 per 1h\n");
    until("the new limit", async || limit(&weir, "acme").await == Some(9)).await;
    let response = weir.decide(request("shop", [descriptor([("tenant", "acme")])])).await;
    let (code, statuses) = gist(&response);
    assert!(code == Code::Ok && statuses[0].1 <= 9 - 4, "earlier hits still count: {statuses:?}");

    // an error in a table leaves rules and tables as they were
    replace(&plans, "value,limit\nacme,10 per 1h\nacme,11 per 1h\n");
    until("the error", async || stat(&weir, "ratelimit.service.config_load_error").await > 0).await;
    assert_eq!(limit(&weir, "acme").await, Some(9));
    replace(&plans, "value,limit\nbolt,7 per 1h\n");
    until("the other value", async || limit(&weir, "bolt").await == Some(7)).await;
    assert_eq!(limit(&weir, "acme").await, Some(2), "the default");
    fs::write(beside(&weir, "blocked.txt"), "192.0.2.7\n").expect("a file");
    until("the new list", async || {
        let address = request("shop", [descriptor([("address", "192.0.2.7")])]);
        let response = weir.client.clone().should_rate_limit(address).await.expect("a response").into_inner();
        response.statuses[0].current_limit.is_some()
    })
    .await;
}
