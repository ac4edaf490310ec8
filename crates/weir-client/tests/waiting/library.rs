//! The library for programs that call others, with its own thread and the real clock.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use weir_client::{AcquireError, LayerError, LimitLayer, Limiter};
use weir_limit::Hits;

const RULES: &str = "
domain: partners
descriptors:
  - key: api
    value: fast
    rate_limit: { algorithm: token_bucket, requests: 1000, per: 1s, burst: 1 }
  - key: api
    rate_limit: { requests: 2, per: 1h, algorithm: sliding_window }
";

async fn limiter() -> Limiter {
    Limiter::builder().rules_text(RULES).build().await.expect("valid rules")
}

/// Tasks on several threads wait in one line; everybody is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_wait_in_one_line() {
    let limiter = limiter().await;
    let (done, mut served) = mpsc::unbounded_channel();
    for _ in 0..300 {
        let (limiter, done) = (limiter.clone(), done.clone());
        tokio::spawn(async move {
            let permit =
                limiter.acquire("partners", &[("api", "fast")], Hits(1), Duration::from_mins(1)).await;
            let _ = done.send(permit.map(|permit| permit.waited()));
        });
    }
    drop(done);
    let mut waited = Vec::new();
    while let Some(permit) = served.recv().await {
        waited.push(permit.expect("a permit"));
    }
    assert_eq!((waited.len(), limiter.waiters()), (300, 0));
    assert!(waited.iter().filter(|waited| !waited.is_zero()).count() > 100, "nobody had to wait");
}

#[tokio::test]
async fn each_outcome_has_an_error() {
    let limiter = limiter().await;
    let entries = [("api", "slow")];
    let key = limiter.key("partners", &entries).expect("a key");
    let permit = key.try_acquire(Hits(2)).expect("both hits");
    let error = limiter.acquire("partners", &entries, Hits(1), Duration::from_secs(1)).await;
    let error = error.expect_err("no room for an hour");
    assert!(
        matches!(error, AcquireError::Timeout { .. }) && error.retry_after() > Some(Duration::from_mins(50))
    );
    assert!(matches!(key.try_acquire(Hits(1)), Err(AcquireError::Timeout { .. })));
    assert!(matches!(key.try_acquire(Hits(3)), Err(AcquireError::Never)));
    permit.give_back();
    assert!(limiter.acquire("partners", &entries, Hits(2), Duration::ZERO).await.is_ok());
    assert!(matches!(limiter.try_acquire("", &entries, Hits(1)), Err(AcquireError::Invalid(_))));
    assert!(matches!(limiter.try_acquire("partners", &[], Hits(1)), Err(AcquireError::Invalid(_))));
    let error =
        limiter.acquire("partners", &[], Hits(1), Duration::ZERO).await.expect_err("nothing to limit");
    assert_eq!(error.to_string(), "entries must not be empty");
    // a longer wait than the longest is cut to it
    let error = limiter.until_ready("partners", &entries).await.expect_err("longer than a minute");
    assert!(matches!(error, AcquireError::Timeout { .. }));
    // without a limit, everything is admitted
    assert!(limiter.until_ready("partners", &[("other", "x")]).await.is_ok());
    assert!(limiter.try_acquire("unknown", &entries, Hits(9)).is_ok());
}

/// One of them would be in force only.
#[tokio::test]
async fn a_domain_of_two_sources_is_an_error() {
    let rules = |key: &str| {
        format!(
            "domain: partners\ndescriptors:\n  - key: {key}\n    rate_limit: {{ requests: 2, per: 1h }}\n"
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("rules.yaml"), rules("api")).expect("a file in it");
    let built = Limiter::builder().rules_text(&rules("api")).rules_text(&rules("upload")).build().await;
    let error = built.expect_err("two texts").to_string();
    assert!(error.contains("rules 2:1:9") && error.contains("duplicate domain 'partners'"), "{error}");
    let built = Limiter::builder().rules_text(&rules("upload")).rules_dir(dir.path()).build().await;
    let error = built.expect_err("a text and a directory").to_string();
    assert!(error.contains("the domain 'partners' has rules of another source, too"), "{error}");
    let others = Limiter::builder().rules_text("domain: others").rules_text(&rules("api")).build().await;
    let others = others.expect("two domains");
    assert!(others.acquire("partners", &[("api", "x")], Hits(3), Duration::ZERO).await.is_err());
}

/// A resolved key follows the rules.
#[tokio::test]
async fn a_key_follows_reloads() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |requests: u32| {
        let text = format!(
            "domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {{ requests: {requests}, per: 1h, algorithm: sliding_window }}\n"
        );
        std::fs::write(dir.path().join("rules.yaml"), text).expect("a file");
    };
    write(1);
    let limiter =
        Limiter::builder().rules_dir(dir.path()).longest_wait(Duration::from_hours(2)).build().await;
    let limiter = limiter.expect("valid rules");
    let key = Arc::new(limiter.key("partners", &[("api", "x")]).expect("a key"));
    assert!(key.try_acquire(Hits(1)).is_ok() && key.try_acquire(Hits(1)).is_err());
    let waits = tokio::spawn({
        let key = Arc::clone(&key);
        async move { key.until_ready().await.map(|permit| permit.waited()) }
    });
    while limiter.waiters() == 0 {
        tokio::task::yield_now().await;
    }
    write(3);
    limiter.reload().expect("valid rules");
    waits.await.expect("it ends").expect("a permit");
    assert!(key.try_acquire(Hits(1)).is_ok() && key.try_acquire(Hits(1)).is_err());
    std::fs::write(dir.path().join("rules.yaml"), "domain: [").expect("a file");
    assert!(limiter.reload().is_err());
    assert!(key.try_acquire(Hits(1)).is_err(), "the rules before stay");
}

#[tokio::test]
async fn closing_ends_all_waits() {
    let limiter = limiter().await;
    let _both = limiter.try_acquire("partners", &[("api", "x")], Hits(2)).expect("both hits");
    let longer = Limiter::builder().rules_text(RULES).longest_wait(Duration::from_hours(2)).build();
    let limiter = longer.await.expect("valid rules");
    let key = Arc::new(limiter.key("partners", &[("api", "x")]).expect("a key"));
    let _taken = key.try_acquire(Hits(2)).expect("both hits");
    let waits = tokio::spawn(async move { key.until_ready().await.map(|_| ()) });
    while limiter.waiters() == 0 {
        tokio::task::yield_now().await;
    }
    limiter.close();
    assert!(matches!(waits.await.expect("it ends"), Err(AcquireError::Closed)));
}

#[tokio::test]
async fn a_layer_limits_a_client() {
    use tower::{Layer as _, Service as _, service_fn};
    let client = service_fn(|path: &'static str| async move {
        if path == "bad" { Err("the client failed") } else { Ok(path.len()) }
    });
    let layer = LimitLayer::new(limiter().await, "partners", Duration::ZERO, |path: &&'static str| {
        vec![("api".to_owned(), (*path).to_owned())]
    });
    let mut client = layer.layer(client);
    assert_eq!(client.call("stickers").await.ok(), Some(8));
    assert_eq!(client.call("stickers").await.ok(), Some(8));
    let limited = client.call("stickers").await.expect_err("no room");
    assert!(matches!(limited, LayerError::Limited(AcquireError::Timeout { .. })));
    assert!(matches!(client.call("bad").await, Err(LayerError::Client("the client failed"))));
}

#[tokio::test]
async fn invalid_rules_are_an_error_with_their_place() {
    let error = Limiter::builder().rules_text("domain: d\ndescriptors:\n  - ky: api\n").build().await;
    let error = error.expect_err("invalid rules").to_string();
    assert!(error.contains("rules:3:"), "{error}");
}

#[tokio::test]
async fn a_permit_of_a_rule_that_denies_it_is_not_given_back() {
    for (give_back, is_back) in [("deny", false), ("allow", true)] {
        let rules = format!(
            "domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {{ requests: 2, per: 1h, give_back: {give_back} }}\n"
        );
        let limiter = Limiter::builder().rules_text(&rules).build().await.expect("a limiter");
        let entries = [("api", "slow")];
        let key = limiter.key("partners", &entries).expect("a key");
        key.try_acquire(Hits(2)).expect("both hits").give_back();
        assert_eq!(key.try_acquire(Hits(1)).is_ok(), is_back, "{give_back}");
    }
}
