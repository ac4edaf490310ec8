//! Updates of the rules, and connections that end.

use std::{fs, time::Instant};

use weir_config::{Options, load};
use weir_proto::ratelimit::config::ratelimit::v3::{RateLimitPolicy, RateLimitReplace};

use crate::{
    control_plane::{ControlPlane, config, hourly, within},
    proxy::Proxy,
    service::Starting,
};

#[tokio::test]
async fn snapshots_are_applied_and_acknowledged_and_bad_ones_are_rejected() {
    let mut control_plane = ControlPlane::start().await;
    let variables = [
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=eu, pod=weir-0"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "<x-token:a:b>,<X-Region:eu>"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &format!("dns:///{}", control_plane.address)),
    ];
    let starting = Starting::new(&control_plane, &variables);
    let mut stream = control_plane.stream().await;
    assert_eq!(stream.headers.get("x-token").expect("a header"), "a:b");
    assert_eq!(stream.headers.get("x-region").expect("a header"), "eu");
    let first = stream.request().await;
    assert_eq!((&*first.version_info, &*first.response_nonce, first.resource_names.len()), ("", "", 0));
    assert_eq!(first.type_url, crate::control_plane::TYPE_URL);
    let node = first.node.expect("a node");
    assert_eq!(node.id, "envoy-ratelimit");
    let metadata = node.metadata.expect("metadata");
    assert_eq!(metadata.fields.keys().collect::<Vec<_>>(), ["pod", "zone"]);

    assert!(!starting.is_ready(), "it waits for its first rules");
    stream.accepted("1", "a", &[config("d", "k", 10)]).await;
    let weir = starting.ready().await;
    assert!(weir.page("/healthcheck").await.ends_with("OK"));
    assert!(weir.rules().await.contains("d.k: unit=HOUR requests_per_unit=10"));

    stream.accepted("2", "b", &[config("d", "k", 20), config("e", "k", 5)]).await;
    assert!(weir.rules().await.contains("requests_per_unit=20"));

    let mut bad = config("e", "k", 6);
    bad.descriptors[0].rate_limit = Some(RateLimitPolicy { unit: 42, ..hourly(1) });
    stream.send("3", "c", &[config("d", "k", 30), bad]);
    let message = stream.rejected("2", "c").await;
    assert!(message.starts_with("e: invalid rate limit unit '42'"), "{message}");
    let rules = weir.rules().await;
    assert!(rules.contains("requests_per_unit=20") && rules.contains("requests_per_unit=5"), "{rules}");
    assert!(weir.page("/healthcheck").await.ends_with("OK"));
    let metrics = weir.page("/metrics").await;
    for line in [
        "weir_xds_connected 1",
        "weir_xds_updates_total{outcome=\"accepted\"} 2",
        "weir_xds_updates_total{outcome=\"rejected\"} 1",
        "ratelimit_service_config_load_error 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }

    stream.accepted("4", "d", &[config("d", "k", 40)]).await;
    assert!(weir.rules().await.contains("requests_per_unit=40"));
    assert!(!weir.rules().await.contains("e.k"), "a domain that is not sent is gone");
    stream.accepted("5", "e", &[]).await;
    assert!(!weir.rules().await.contains("d.k"), "an empty snapshot is valid");
}

#[tokio::test]
async fn errors_have_the_texts_of_rule_files() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 1)]).await;
    let _weir = starting.ready().await;

    let mut configs = vec![config("d", "", 1), config("d", "k", 1)];
    let unlimited = RateLimitPolicy { unlimited: true, ..hourly(1) };
    configs[1].descriptors[0].rate_limit = Some(unlimited);
    let again = configs[1].descriptors[0].clone();
    configs[1].descriptors.push(again);
    let mut policy = RateLimitPolicy { unit: 0, name: "n".into(), ..hourly(1) };
    policy.replaces = vec![RateLimitReplace { name: "n".into() }, RateLimitReplace::default()];
    let mut third = config("", "k", 1);
    third.name = "third".into();
    third.descriptors[0].rate_limit = Some(policy);
    configs.push(third);
    stream.send("2", "b", &configs);
    let message = stream.rejected("1", "b").await;

    // the same rules as a file; there, messages have lines and columns
    let dir = tempfile::tempdir().expect("a directory");
    let files = [
        "domain: d\ndescriptors:\n- {key: '', rate_limit: {unit: hour, requests_per_unit: 1}}\n",
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1, unlimited: true}}\n\
         - {key: k, rate_limit: {unit: hour, requests_per_unit: 1, unlimited: true}}\n",
        "descriptors:\n- key: k\n  rate_limit:\n    {unit: UNKNOWN, requests_per_unit: 1, name: n, \
         replaces: [{name: n}, {}]}\n",
    ];
    for (i, file) in files.iter().enumerate() {
        fs::write(dir.path().join(format!("{i}.yaml")), file).expect("a file");
    }
    let errors = load(dir.path(), &Options::default()).expect_err("invalid rules").errors;
    assert!(errors.len() >= 7, "{errors:?}");
    for error in errors {
        // without the place of the first of two
        let text = error.message.split("; the first is at").next().unwrap_or_default();
        assert!(message.contains(text), "{text}: {message}");
    }
}

#[tokio::test]
async fn a_control_plane_that_restarts_is_asked_for_everything() {
    let mut control_plane = ControlPlane::start().await;
    let proxy = Proxy::start(control_plane.address);
    let url = proxy.address().to_string();
    let starting = Starting::new(&control_plane, &[("CONFIG_GRPC_XDS_SERVER_URL", &url)]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 10), config("e", "k", 1)]).await;
    let weir = starting.ready().await;
    // the ways in which a stream ends
    for (ending, limit) in [("returned", 20), ("failed", 30), ("cut", 40)] {
        match ending {
            "returned" => drop(stream),
            "failed" => stream.fail(),
            _ => proxy.cut(),
        }
        stream = control_plane.stream().await;
        let request = stream.request().await;
        assert_eq!((&*request.version_info, &*request.response_nonce), ("", ""), "{ending}");
        assert!(weir.rules().await.contains("d.k"), "the rules stay while nobody sends any");
        // its versions have begun anew, with other rules
        stream.accepted("1", "a", &[config("d", "k", limit)]).await;
        let rules = weir.rules().await;
        assert!(rules.contains(&format!("requests_per_unit={limit}")) && !rules.contains("e.k"), "{rules}");
    }
    assert!(weir.page("/metrics").await.contains("weir_xds_connected 1"));
}

#[tokio::test]
async fn a_server_that_repeats_a_bad_snapshot_causes_no_spinning() {
    const WAIT: std::time::Duration = std::time::Duration::from_millis(150);
    let mut control_plane = ControlPlane::start().await;
    let variables = [("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "150ms")];
    let starting = Starting::new(&control_plane, &variables);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 10)]).await;
    let weir = starting.ready().await;
    let begun = Instant::now();
    for i in 0..5 {
        let nonce = format!("bad-{i}");
        stream.send("2", &nonce, &[config("d", "", 1)]);
        assert!(stream.rejected("1", &nonce).await.contains("descriptor has empty key"));
    }
    // not before the first, then the initial interval at most
    assert!(begun.elapsed() >= 4 * WAIT, "{:?}", begun.elapsed());
    let stats = weir.page("/metrics").await;
    assert!(
        stats.contains("ratelimit_service_config_load_error 1\n"),
        "the repetitions are not loaded: {stats}"
    );
    // a good one is applied at once, even if the bad one is not rejected yet
    stream.send("2", "last", &[config("d", "", 1)]);
    stream.send("3", "good", &[config("d", "k", 30)]);
    let request = within(stream.request()).await;
    assert_eq!((&*request.version_info, &*request.response_nonce), ("3", "good"));
    assert!(weir.rules().await.contains("requests_per_unit=30"));
    // the next bad one is rejected at once
    stream.send("4", "next", &[config("d", "", 1)]);
    stream.rejected("3", "next").await;
}
