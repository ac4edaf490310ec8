//! Defaults for rules from a control plane, which cannot express algorithms.

use std::fs;

use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    control_plane::{ControlPlane, config, within},
    service::{Starting, Weir},
    wire::{descriptor, hits, request},
};

/// Returns the algorithm of the rule `k` of `domain`, as the debug page shows it.
async fn algorithm(weir: &Weir, domain: &str) -> &'static str {
    let rules = weir.rules().await;
    let line = rules.lines().find(|line| line.starts_with(&format!("{domain}.k: "))).expect("the rule");
    ["sliding_window", "token_bucket"].into_iter().find(|name| line.contains(name)).unwrap_or("fixed_window")
}

#[tokio::test]
async fn a_file_sets_algorithms_by_domain_and_is_watched() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("defaults.yaml");
    let write = |text: &str| fs::write(&file, text).expect("a file");
    write(
        "domains:\n- {domain: 'shop/*', algorithm: sliding_window}\n- {domain: shop/b, algorithm: fixed_window}\n",
    );
    let mut control_plane = ControlPlane::start().await;
    let path = file.to_str().expect("a path in UTF-8");
    let variables = [("WEIR_XDS_DEFAULTS", path), ("WEIR_XDS_ALGORITHM", "token_bucket")];
    let starting = Starting::new(&control_plane, &variables);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let configs = ["shop/a", "shop/b", "other"].map(|domain| config(domain, "k", 10));
    stream.accepted("1", "a", &configs).await;
    let weir = starting.ready().await;
    for (domain, expected) in
        [("shop/a", "sliding_window"), ("shop/b", "fixed_window"), ("other", "token_bucket")]
    {
        assert_eq!(algorithm(&weir, domain).await, expected, "{domain}");
    }
    // an error leaves the previous ones, also for the next snapshot
    write("algorithm: leaky_bucket\n");
    stream.accepted("2", "b", &configs).await;
    assert_eq!(algorithm(&weir, "shop/a").await, "sliding_window");
    weir.until_page("/metrics", "weir_rules_rejected 1\n").await;
    write("algorithm: sliding_window\n");
    within(async {
        while algorithm(&weir, "other").await != "sliding_window" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    weir.until_page("/metrics", "weir_rules_rejected 0\n").await;
    // nothing was acknowledged for it: the next answer is that to the next snapshot
    stream.accepted("3", "c", &configs).await;
}

/// As Envoy Gateway's usage-based limits send them, with 0 hits, and the quotas of Envoy AI Gateway, with 1.
#[tokio::test]
async fn a_cost_above_the_rest_ends_the_budget_whatever_the_defaults_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, reserve] =
        ["{algorithm: token_bucket, coordination: lease}", "reserve: auto"].map(|defaults| {
            let file = dir.path().join(defaults);
            fs::write(&file, defaults).expect("a file");
            file.to_str().expect("a path in UTF-8").to_owned()
        });
    for variables in [
        &[][..],
        &[("WEIR_XDS_ALGORITHM", "sliding_window")],
        &[("WEIR_XDS_DEFAULTS", &*path)],
        &[("WEIR_XDS_DEFAULTS", &*reserve)],
        &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")],
        &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"), ("WEIR_XDS_DEFAULTS", &*path)],
    ] {
        let mut control_plane = ControlPlane::start().await;
        let starting = Starting::new(&control_plane, variables);
        let mut stream = control_plane.stream().await;
        stream.request().await;
        stream.accepted("1", "a", &[config("default/eg/http", "k", 100)]).await;
        let mut weir = starting.ready().await;
        for begins in [0, 1] {
            let value = format!("begins with {begins}");
            let mut send = async |count| {
                let asked = request("default/eg/http", [hits(count, descriptor([("k", &value)]))]);
                weir.decide(asked).await.expect("a response").overall_code()
            };
            let codes = [send(begins).await, send(1_400).await, send(begins).await, send(begins).await];
            let expected = [Code::Ok, Code::OverLimit, Code::OverLimit, Code::OverLimit];
            assert_eq!(codes, expected, "{variables:?}, {begins}");
        }
    }
}
