//! The fuzz targets of the servers, and the limiter behind them.

use std::sync::Arc;

pub use super::{
    grpc::fuzz::{connection, frame, message},
    http::fuzz::json,
    resp::fuzz::connection as redis_commands,
};
use weir_config as config;
use weir_limit::{KeyHasher, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{MemoryStore, clock::ManualClock};

/// Rules with every algorithm, with names that have no limit, and with limits that requests may override.
const RULES: &str = "
domain: d
descriptors:
  - key: f
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: s
    detailed_metric: true
    rate_limit: { requests: 3, per: 1m, algorithm: sliding_window }
  - key: b
    rate_limit: { requests: 3, per: 1m, algorithm: token_bucket, burst: 5 }
  - key: t
    rate_limit: { tiers: [{ requests: 2, per: 1s }, { requests: 9, per: 1h }] }
  - key: n
    descriptors:
      - key: m
        value: v*
        rate_limit: { unlimited: true }
";

/// Counters in the store: few, so that inputs reach the bound.
const MAX_COUNTERS: usize = 64;

const MAX_NAMES: usize = 64;

pub(super) struct Parts {
    pub(super) limiter: Arc<Limiter<MemoryStore>>,
    pub(super) stats: Arc<Stats>,
    pub(super) clock: Arc<ManualClock>,
}

pub(super) fn parts() -> Parts {
    let stats = Arc::new(Stats::new(MAX_NAMES));
    let limiter =
        Limiter::new(MemoryStore::new(MAX_COUNTERS), Arc::clone(&stats), DecisionSettings::default());
    let loaded = config::parse("rules.yaml", RULES).expect("the rules are valid");
    limiter.load(RuleSet::new(&loaded.domains, KeyHasher::with_secret([1, 2])));
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_234_567_890)));
    Parts { limiter: Arc::new(limiter), stats, clock }
}
