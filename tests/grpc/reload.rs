//! Reloads of rules under requests.

use std::{
    fmt::Write as _,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tonic::Code;
use weir::app::AppError;

use crate::{
    in_process::{Weir, connect, get, replace, until},
    wire::{descriptor, gist, request},
};

/// Returns two rules with the same limit.
fn rules(limit: u32) -> String {
    let rule =
        |key| format!("  - key: {key}\n    rate_limit: {{ unit: hour, requests_per_unit: {limit} }}\n");
    format!("domain: d\ndescriptors:\n{}{}", rule("a"), rule("b"))
}

async fn stat(weir: &Weir, name: &str) -> u64 {
    let page = get(weir.addresses.debug, "/stats").await;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
}

/// Returns the reported limits of a request.
async fn limits(client: &mut crate::in_process::Client) -> Vec<u32> {
    let both = request("d", [descriptor([("a", "x")]), descriptor([("b", "x")])]);
    let response = client.should_rate_limit(both).await.expect("a response").into_inner();
    response
        .statuses
        .iter()
        .map(|s| s.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_response_uses_a_partially_loaded_rule_set() {
    let weir = Weir::start(&rules(1000)).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..4 {
        let (mut client, done) = (connect(&weir.addresses).await, Arc::clone(&done));
        readers.push(tokio::spawn(async move {
            while !done.load(Ordering::Acquire) {
                let limits = limits(&mut client).await;
                assert!(limits == [1000, 1000] || limits == [2000, 2000], "{limits:?}");
            }
        }));
    }
    let mut client = weir.client.clone();
    for limit in [2000, 1000].into_iter().cycle().take(10) {
        replace(&weir.file(), &rules(limit));
        until("the new rules", async || limits(&mut client).await == [limit, limit]).await;
    }
    done.store(true, Ordering::Release);
    for reader in readers {
        reader.await.expect("every response was consistent");
    }
}

#[tokio::test]
async fn counters_survive_a_reload_and_a_changed_limit_applies_to_them() {
    let mut weir = Weir::start(&rules(2)).await;
    let one_hit = || request("d", [descriptor([("a", "x")])]);
    for _ in 0..3 {
        weir.decide(one_hit()).await;
    }
    replace(&weir.file(), &rules(10));
    let mut client = weir.client.clone();
    until("the new limit", async || limits(&mut client).await[0] == 10).await;
    let remaining = gist(&weir.decide(one_hit()).await).1[0].1;
    assert!(remaining <= 10 - 5, "earlier hits still count: {remaining}");
}

#[tokio::test]
async fn invalid_rules_keep_the_previous_ones() {
    let mut weir = Weir::start(&rules(5)).await;
    replace(&weir.file(), "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: fortnight }\n");
    until("the error", async || stat(&weir, "ratelimit.service.config_load_error").await > 0).await;
    assert_eq!(limits(&mut weir.client).await, [5, 5]);
    assert_eq!(stat(&weir, "ratelimit.service.config_load_success").await, 1);
    assert_eq!(stat(&weir, "weir.rules_rejected").await, 1);
    replace(&weir.file(), &rules(6));
    let mut client = weir.client.clone();
    until("the corrected rules", async || limits(&mut client).await == [6, 6]).await;
    until("the end of the rejection", async || stat(&weir, "weir.rules_rejected").await == 0).await;
}

/// Returns nested YAML aliases, which expand to 10^20 values.
fn bomb() -> String {
    let mut text = "domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..20 {
        let alias = format!("*a{},", i - 1).repeat(10);
        writeln!(text, "a{i}: &a{i} [{alias}]").expect("a string");
    }
    text
}

#[tokio::test]
async fn hostile_rules_keep_the_previous_ones_and_delay_no_request() {
    let mut weir = Weir::start(&rules(5)).await;
    let deep = format!("domain: d\ndescriptors: {}{}", "[".repeat(3_000), "]".repeat(3_000));
    let beside = weir.file().with_file_name("more.yaml");
    let errors = async || stat(&weir, "ratelimit.service.config_load_error").await;
    for text in [bomb(), deep, "x".repeat(20_000_000), "domain: d\n\0".into()] {
        let before = errors().await;
        replace(&beside, &text);
        until("the rejection", async || {
            assert_eq!(limits(&mut weir.client.clone()).await, [5, 5]);
            errors().await > before
        })
        .await;
    }
    let before = errors().await;
    // a sparse file of 100 MB
    fs::File::create(&beside).and_then(|file| file.set_len(100_000_000)).expect("a file");
    until("the rejection", async || errors().await > before).await;
    fs::remove_file(&beside).expect("it is there");
    replace(&weir.file(), &rules(6));
    let mut client = weir.client.clone();
    until("the corrected rules", async || limits(&mut client).await == [6, 6]).await;
    assert_eq!(limits(&mut weir.client).await, [6, 6]);
}

#[tokio::test]
async fn a_missing_directory_keeps_the_rules_and_is_read_when_it_returns() {
    let mut weir = Weir::start(&rules(5)).await;
    let config = weir.file().parent().expect("its directory").to_owned();
    fs::remove_dir_all(&config).expect("it is there");
    until("the error", async || stat(&weir, "ratelimit.service.config_load_error").await > 0).await;
    assert_eq!(limits(&mut weir.client).await, [5, 5]);
    fs::create_dir(&config).expect("a directory");
    replace(&weir.file(), &rules(6));
    let mut client = weir.client.clone();
    until("the new rules", async || limits(&mut client).await == [6, 6]).await;
}

#[tokio::test]
async fn a_requested_reload_reads_the_rules_again() {
    let weir = Weir::start(&rules(5)).await;
    assert_eq!(stat(&weir, "ratelimit.service.config_load_success").await, 1);
    weir.reload.now();
    until("the reload", async || stat(&weir, "ratelimit.service.config_load_success").await == 2).await;
}

#[tokio::test]
async fn invalid_initial_rules_prevent_the_start() {
    let bad = "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unit: fortnight\n";
    let Err(AppError::Rules(errors)) = Weir::try_start(bad, &[]).await else { panic!("it must not start") };
    let text = errors.to_string();
    assert!(text.contains("rules.yaml:5:") && text.contains("invalid rate limit unit 'fortnight'"), "{text}");
}

#[tokio::test]
async fn a_forced_start_waits_for_rules() {
    let mut weir = Weir::start_with("domain: [", &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]).await;
    let one_hit = || request("d", [descriptor([("a", "x")])]);
    let status = weir.try_decide(one_hit()).await.expect_err("there are no rules");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "no rate limit configuration loaded"));
    replace(&weir.file(), &rules(5));
    let mut client = weir.client.clone();
    until("the rules", async || client.should_rate_limit(one_hit()).await.is_ok()).await;
    assert_eq!(limits(&mut client).await, [5, 5]);
}

#[tokio::test]
async fn without_a_domain_the_service_is_unhealthy_if_so_configured() {
    let variables =
        [("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"), ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")];
    let weir = Weir::start_with("domain: [", &variables).await;
    let healthy = async || get(weir.addresses.http, "/healthcheck").await.starts_with("HTTP/1.1 200");
    assert!(!healthy().await);
    replace(&weir.file(), &rules(5));
    until("health", healthy).await;
    fs::remove_file(weir.file()).expect("it is there");
    until("no health without a domain", async || !healthy().await).await;
}
