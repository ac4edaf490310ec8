//! Builds limiters.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(feature = "dns")]
use super::rules::FollowedRules;
use super::{
    limiter::{Inner, Limiter},
    rules::{RuleFiles, Rules},
};
use crate::selected_store::AnyStore;
#[cfg(feature = "redis")]
use crate::store_thread::StoreThread;
use weir_config::{self as config, ConfigErrors, Document, DocumentContent};
#[cfg(feature = "redis")]
use weir_coordinate::CoordinationSettings;
#[cfg(feature = "disk")]
use weir_disk::{DiskError, DiskSettings, DiskStore, DiskSync, OnDamage};
#[cfg(feature = "disk")]
use weir_limit::OnStoreFailure;
use weir_limit::{Domain, Period};
use weir_limiter::{self as limiter, DecisionSettings, waiter_thread::WaiterThread};
#[cfg(feature = "dns")]
use weir_net::dns::DnsSettings;
#[cfg(feature = "redis")]
use weir_net::tls::TlsError;
use weir_observe::Stats;
#[cfg(feature = "redis")]
use weir_remotes::{
    RemoteSettings,
    redis::{Address, RedisSettings},
};
use weir_store::{
    MemoryStore, Store as _, WaitBounds,
    clock::{Clock, SystemClock},
};

/// Counters that are held at most, unless said otherwise. About 100 bytes each.
const MAX_COUNTERS: usize = 1_000_000;

#[cfg(feature = "redis")]
const REDIS_PORT: u16 = 6_379;

/// Configures a [`Limiter`].
#[derive(Clone, Default)]
pub struct Builder {
    dir: Option<PathBuf>,
    texts: Vec<String>,
    domains: Vec<Domain>,
    max_counters: Option<usize>,
    bounds: WaitBounds,
    clock: Option<Arc<dyn Clock>>,
    home: CounterHome,
    #[cfg(feature = "redis")]
    coordination: Option<CoordinationSettings>,
    #[cfg(feature = "dns")]
    dns: DnsSettings,
}

#[derive(Clone, Default)]
enum CounterHome {
    #[default]
    Memory,
    #[cfg(feature = "redis")]
    Redis(Result<Box<RedisSettings>, String>),
    #[cfg(feature = "disk")]
    Disk(DiskSettings),
}

/// Why a limiter was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Rules are invalid: each error has file, line and column.
    #[error("the rules are invalid: {0}")]
    Rules(#[from] ConfigErrors),
    /// The system cannot start the thread that serves waiting callers.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// The address of Redis is none.
    #[error("`{0}` is no address of Redis: write host:port, such as redis:6379")]
    Address(String),
    /// The TLS settings of Redis are invalid.
    #[cfg(feature = "redis")]
    #[error("cannot set up TLS to Redis: {0}")]
    RedisTls(#[from] TlsError),
    /// The data on disk cannot be used.
    #[cfg(feature = "disk")]
    #[error("cannot use the data directory: {0}")]
    Disk(#[from] DiskError),
}

impl Limiter {
    /// Returns a builder without rules.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

// === impl Builder ===

impl Builder {
    /// Reads rules from all files below `dir`. [`Limiter::reload`] reads them again.
    #[must_use]
    pub fn rules_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Adds the rules of one file that is given as its text. A domain is in one file only, as in a directory.
    #[must_use]
    pub fn rules_text(mut self, yaml: &str) -> Self {
        self.texts.push(yaml.to_owned());
        self
    }

    /// Adds rules.
    #[must_use]
    pub fn rules(mut self, domains: impl IntoIterator<Item = Domain>) -> Self {
        self.domains.extend(domains);
        self
    }

    /// Holds up to `counters` counters, at least one; 1,000,000 unless said otherwise.
    #[must_use]
    pub const fn max_counters(mut self, counters: usize) -> Self {
        self.max_counters = Some(counters);
        self
    }

    /// Lets `per_key` callers wait for one key and `total` in all; 100,000 and 1,000,000 unless said otherwise.
    #[must_use]
    pub const fn max_waiters(mut self, per_key: usize, total: usize) -> Self {
        (self.bounds.per_key, self.bounds.total) = (per_key, total);
        self
    }

    /// Cuts longer waits to `longest`; 60 s unless said otherwise.
    #[must_use]
    pub fn longest_wait(mut self, longest: std::time::Duration) -> Self {
        self.bounds.longest = Period::from_nanos(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        self
    }

    /// Shares the counters with all programs that use the Redis at `address`, such as `redis:6379`. Small limits use
    /// `lease`, large ones `interval` (`docs/coordination.md`); callers that wait never exceed the limit in both.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn redis(mut self, address: &str) -> Self {
        let settings = Address::parse(address.strip_prefix("redis://").unwrap_or(address), REDIS_PORT);
        let settings = settings.map(|address| Box::new(RedisSettings::single(address)));
        self.home = CounterHome::Redis(settings.ok_or_else(|| address.to_owned()));
        self
    }

    /// As [`Builder::redis`], with TLS, credentials, sentinels or a cluster.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn redis_settings(mut self, settings: RedisSettings) -> Self {
        self.home = CounterHome::Redis(Ok(Box::new(settings)));
        self
    }

    /// Coordinates the counters in Redis like this; [`Builder::max_counters`] still bounds those in memory.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn coordination(mut self, settings: CoordinationSettings) -> Self {
        self.coordination = Some(settings);
        self
    }

    /// How to look up the names of `instances: dns://…`; by default at the system's name servers, every 5 s.
    #[cfg(feature = "dns")]
    #[must_use]
    pub fn dns(mut self, settings: DnsSettings) -> Self {
        self.dns = settings;
        self
    }

    /// Keeps the counters in the directory `dir` too, created if missing, across restarts. Written every 100 ms.
    #[cfg(feature = "disk")]
    #[must_use]
    pub fn data_dir(self, dir: impl AsRef<Path>) -> Self {
        self.disk_settings(DiskSettings {
            dir: dir.as_ref().to_owned(),
            sync: DiskSync::Interval,
            interval: Period::from_millis(100),
            on_damage: OnDamage::Refuse,
            max_bytes: None,
            budget: Period::from_millis(15),
            on_store_failure: OnStoreFailure::Local,
            max_counters: MAX_COUNTERS,
        })
    }

    /// As [`Builder::data_dir`], with these settings; [`Builder::max_counters`] still bounds those in memory.
    #[cfg(feature = "disk")]
    #[must_use]
    pub fn disk_settings(mut self, settings: DiskSettings) -> Self {
        self.home = CounterHome::Disk(settings);
        self
    }

    /// Reads the time from `clock`, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// [`BuildError`]. A Redis need not be reachable yet.
    #[cfg_attr(
        not(any(feature = "redis", feature = "disk", feature = "dns")),
        expect(clippy::unused_async, reason = "a store over the network connects here")
    )]
    pub async fn build(self) -> Result<Limiter, BuildError> {
        let mut files = RuleFiles { dir: self.dir, domains: self.domains };
        let is_one = self.texts.len() == 1;
        let texts = self.texts.into_iter().zip(1..).map(|(text, number)| Document {
            name: if is_one { "rules".to_owned() } else { format!("rules {number}") },
            content: DocumentContent::Yaml(text),
        });
        let options = config::Options::default();
        files.domains.extend(config::load_documents(texts.collect(), &options)?.domains);
        let domains = files.read()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let max_counters = self.max_counters.unwrap_or(MAX_COUNTERS);
        #[cfg(feature = "redis")]
        let mut store_thread = None;
        let store = match self.home {
            CounterHome::Memory => AnyStore::Memory(MemoryStore::new(max_counters)),
            #[cfg(feature = "redis")]
            CounterHome::Redis(settings) => {
                let settings = settings.map(RemoteSettings::Redis).map_err(BuildError::Address)?;
                let mut coordination = self.coordination.unwrap_or_default();
                coordination.max_counters = max_counters;
                if coordination.instance.is_empty() {
                    coordination.instance = instance(&*clock);
                }
                let opened = StoreThread::open(settings, Arc::clone(&clock), coordination).await;
                let (store, thread) = opened??;
                store_thread = Some(thread);
                store
            }
            #[cfg(feature = "disk")]
            CounterHome::Disk(mut settings) => {
                settings.max_counters = max_counters;
                let clock = Arc::clone(&clock);
                // reads the journal first, which may take seconds
                let opened = tokio::task::spawn_blocking(move || DiskStore::open(settings, clock)).await;
                AnyStore::Disk(opened.map_err(io::Error::other)??)
            }
        };
        if let Some(room) = store.wait_room() {
            room.set_bounds(self.bounds);
        }
        let (stats, settings) = (Arc::new(Stats::default()), DecisionSettings::default());
        let limiter = Arc::new(limiter::Limiter::new(store, stats, settings));
        let rules = Rules::new(Arc::clone(&limiter), Arc::clone(&clock));
        #[cfg(feature = "dns")]
        let rules = FollowedRules::new(rules, Arc::clone(&clock), self.dns);
        #[cfg(feature = "dns")]
        rules.load_first(domains).await?;
        #[cfg(not(feature = "dns"))]
        rules.load(domains, |_| weir_limit::part::UNKNOWN_INSTANCES);
        let waiters = WaiterThread::start(&limiter, Arc::clone(&clock))?;
        Ok(Limiter {
            inner: Arc::new(Inner {
                limiter,
                clock,
                files,
                rules,
                _waiters: waiters,
                #[cfg(feature = "redis")]
                _store_thread: store_thread,
            }),
        })
    }
}

/// Returns the name of this instance among those that share the store: process, start time and a random number.
#[cfg(feature = "redis")]
fn instance(clock: &dyn Clock) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(0_u8);
    format!("client-{}-{:x}-{random:x}", std::process::id(), clock.now().as_nanos())
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("dir", &self.dir).finish_non_exhaustive()
    }
}
