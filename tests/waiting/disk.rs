//! The library over counters on disk.

use std::time::Duration;

use weir::{
    client::{AcquireError, Limiter},
    limit::Hits,
};

const RULES: &str = "
domain: partners
descriptors:
  - key: api
    value: fast
    rate_limit: { algorithm: token_bucket, requests: 100, per: 1s, burst: 1 }
  - key: api
    rate_limit: { requests: 2, per: 1h, algorithm: sliding_window }
";

async fn open(dir: &tempfile::TempDir) -> Limiter {
    Limiter::builder().rules_text(RULES).data_dir(dir.path()).build().await.expect("a new directory")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_on_disk_are_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let limiter = open(&dir).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let permit = limiter.acquire("partners", &[("api", "fast")], Hits(1), Duration::from_secs(50));
            permit.await.map(|permit| permit.waited())
        });
    }
    let mut waits = 0;
    while let Some(call) = calls.join_next().await {
        waits += usize::from(!call.expect("no panic").expect("a permit").is_zero());
    }
    assert!(waits > 10 && limiter.waiters() == 0, "{waits} waited");
    let slow = [("api", "slow")];
    assert!(matches!(limiter.try_acquire("partners", &slow, Hits(1)), Err(AcquireError::MustAsk)));
    limiter.acquire("partners", &slow, Hits(2), Duration::ZERO).await.expect("both");
    limiter.shut_down().await;
    drop(limiter);
    // they are there after a restart
    let limiter = open(&dir).await;
    let error =
        limiter.acquire("partners", &slow, Hits(1), Duration::from_secs(5)).await.expect_err("none left");
    assert!(error.retry_after() > Some(Duration::from_mins(50)), "{error}");
    limiter.shut_down().await;
}
