//! Defaults for rules from a control plane, which cannot express algorithms.

use std::fs;

use crate::{
    control_plane::{ControlPlane, config, within},
    service::{Starting, Weir},
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
