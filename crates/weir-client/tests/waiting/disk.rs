//! The library over counters on disk.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use weir_client::{AcquireError, Limiter};
use weir_disk::{DiskSettings, DiskStore, DiskSync, OnDamage};
use weir_limit::{Descriptor, Entry, Hits, KeyHasher, OnStoreFailure, Period, Request, RuleSet, Timestamp};
use weir_limiter::{Acquired, DecisionSettings};
use weir_observe::Stats;
use weir_store::clock::{Clock, ManualClock};

use super::support::rules;

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

/// A limiter on disk with a clock that the test sets.
struct OnDisk {
    limiter: Arc<weir_limiter::Limiter<DiskStore>>,
    _dir: tempfile::TempDir,
}

impl OnDisk {
    fn new(limit: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = DiskSettings {
            dir: dir.path().join("data"),
            sync: DiskSync::Os,
            interval: Period::from_millis(1),
            on_damage: OnDamage::Refuse,
            max_bytes: None,
            budget: Period::from_secs(3_600),
            on_store_failure: OnStoreFailure::Deny,
            max_counters: 100,
        };
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000_020)));
        let store = DiskStore::open(settings, Arc::clone(&clock) as _).expect("a new directory");
        let limiter =
            weir_limiter::Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
        let limiter = Arc::new(limiter);
        let loaded = weir_config::parse("rules", &rules(limit)).unwrap_or_else(|errors| panic!("{errors}"));
        limiter.load(RuleSet::new(&loaded.domains, KeyHasher::with_secret([1, 2])));
        tokio::spawn(weir_limiter::Limiter::ask_store(&limiter, Arc::clone(&clock) as _, None));
        Self { limiter, _dir: dir }
    }

    /// Acquires `hits` without a wait.
    async fn acquire_by(&self, clock: &impl Clock, hits: u64) -> Acquired {
        let descriptor = Descriptor {
            entries: [Entry { key: "api", value: "x" }].into_iter().collect(),
            hits: Some(hits),
            ..Descriptor::default()
        };
        let request =
            Request { domain: "partners", descriptors: [descriptor].into_iter().collect(), hits: 0 };
        // so short that nobody is kept
        let acquired =
            self.limiter.acquire(&request, Period::from_nanos(1), clock, |_, acquired| acquired.clone());
        acquired.await.expect("a decision")
    }
}

/// A clock that goes on whenever it is read.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let read = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(read < 1_000, "the clock is read again and again");
        Timestamp::from_secs(1_000_020).after(Period::from_nanos(1_000 * read))
    }
}

/// The wait may end between two looks at the clock.
#[tokio::test]
async fn a_wait_that_ends_before_the_store_is_asked_is_none() {
    let disk = OnDisk::new("{ requests: 1, per: 1h, algorithm: fixed_window }");
    let clock = Ticking(AtomicU64::new(0));
    assert_eq!(disk.acquire_by(&clock, 1).await.rejection, None);
    assert!(disk.acquire_by(&clock, 1).await.rejection.is_some());
}
