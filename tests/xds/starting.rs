//! Starts with bad rules or none.

use weir_proto::ratelimit::config::ratelimit::v3::RateLimitConfig;

use crate::{
    control_plane::{ControlPlane, config},
    service::{Starting, Weir},
    wire::{descriptor, request},
};

const FORCE: (&str, &str) = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");

#[tokio::test]
async fn a_bad_first_snapshot_is_not_healthy() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[FORCE]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.send("1", "a", &[config("d", "", 1)]);
    stream.rejected("", "a").await;
    let mut weir = starting.ready().await;
    let health = weir.page("/healthcheck").await;
    assert!(health.starts_with("HTTP/1.1 500") && health.contains("no rate limit configuration"), "{health}");
    let decided = weir.decide(request("d", [descriptor([("k", "v")])])).await;
    assert_eq!(decided.expect_err("an error").message(), "no rate limit configuration loaded");

    stream.accepted("2", "b", &[config("d", "k", 1)]).await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
    assert!(weir.decide(request("d", [descriptor([("k", "v")])])).await.is_ok());
    // a later bad one is no reason to be unhealthy
    stream.send("3", "c", &[config("d", "", 1)]);
    stream.rejected("2", "c").await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
}

/// Rules that are too many to be decoded are rejected as other bad ones are.
#[tokio::test]
async fn too_many_rules_are_bad_rules() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[FORCE]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let rule = config("d", "k", 1);
    let many = RateLimitConfig { descriptors: vec![rule.descriptors[0].clone(); 22_000], ..rule.clone() };
    stream.send("1", "a", std::slice::from_ref(&many));
    assert!(stream.rejected("", "a").await.contains("more than 43690 resources"));
    let mut weir = starting.ready().await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 500"));
    let rejected = async |weir: &Weir| {
        let page = weir.page("/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix("weir_rules_rejected "));
        value.map(str::to_owned)
    };
    assert_eq!(rejected(&weir).await.as_deref(), Some("1"));
    stream.accepted("2", "b", &[rule]).await;
    assert_eq!(rejected(&weir).await.as_deref(), Some("0"));
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
    stream.send("3", "c", &[many]);
    stream.rejected("2", "c").await;
    assert_eq!(rejected(&weir).await.as_deref(), Some("1"));
    assert!(weir.decide(request("d", [descriptor([("k", "v")])])).await.is_ok());
}

#[tokio::test]
async fn a_start_waits_for_valid_rules() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.send("1", "a", &[config("d", "", 1)]);
    stream.rejected("", "a").await;
    assert!(!starting.is_ready(), "it listens on no port yet");
    stream.accepted("2", "b", &[config("d", "k", 1)]).await;
    let weir = starting.ready().await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_forced_start_without_rules_is_healthy_and_takes_the_rules_when_they_come() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[FORCE]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    // the control plane has no rules, and says nothing
    let mut weir = starting.ready().await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
    let decided = weir.decide(request("d", [descriptor([("k", "v")])])).await;
    assert_eq!(decided.expect_err("an error").message(), "no rate limit configuration loaded");
    stream.accepted("1", "a", &[config("d", "k", 1)]).await;
    assert!(weir.decide(request("d", [descriptor([("k", "v")])])).await.is_ok());
}

#[tokio::test]
async fn health_may_depend_on_domains() {
    let mut control_plane = ControlPlane::start().await;
    let starting =
        Starting::new(&control_plane, &[FORCE, ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[]).await;
    let weir = starting.ready().await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 500"));
    stream.accepted("2", "b", &[config("d", "k", 1)]).await;
    assert!(weir.page("/healthcheck").await.starts_with("HTTP/1.1 200"));
}
