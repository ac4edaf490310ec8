//! Builds limiters.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    inner::{Inner, RuleFiles},
    limiter::Limiter,
};
use crate::{
    DecisionSettings, WaiterThread,
    clock::{Clock, SystemClock},
    config::{self, ConfigErrors},
    limit::{Domain, KeyHasher, Period},
    limiter,
    observe::Stats,
    store::{MemoryStore, WaitBounds},
};

/// Counters that are held at most, unless said otherwise. About 100 bytes each.
const MAX_COUNTERS: usize = 1_000_000;

/// Configures a [`Limiter`].
#[derive(Clone, Default)]
pub struct Builder {
    dir: Option<PathBuf>,
    texts: Vec<String>,
    domains: Vec<Domain>,
    max_counters: Option<usize>,
    bounds: WaitBounds,
    clock: Option<Arc<dyn Clock>>,
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
}

impl Limiter {
    /// Returns a builder without rules.
    #[must_use]
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

    /// Adds the rules of one file that is given as its text.
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

    /// Lets up to `per_key` callers wait for one key, and up to `total` in all; 100,000 and 1,000,000 unless said otherwise.
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
    /// [`BuildError`], if the rules are invalid, or the system cannot start a thread.
    #[expect(clippy::unused_async, reason = "a store over the network will connect here")]
    pub async fn build(self) -> Result<Limiter, BuildError> {
        let Self { dir, texts, domains, max_counters, bounds, clock } = self;
        let mut files = RuleFiles { dir, domains, hasher: KeyHasher::random() };
        for (i, text) in texts.iter().enumerate() {
            let name = if texts.len() == 1 { "rules".to_owned() } else { format!("rules {}", i + 1) };
            files.domains.extend(config::parse(&name, text)?.domains);
        }
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
        let store = MemoryStore::new(max_counters.unwrap_or(MAX_COUNTERS));
        store.set_wait_bounds(bounds);
        let (stats, settings) = (Arc::new(Stats::default()), DecisionSettings::default());
        let limiter = Arc::new(limiter::Limiter::new(store, stats, settings));
        limiter.load(files.load()?);
        let thread = WaiterThread::start(&limiter, Arc::clone(&clock))?;
        Ok(Limiter::new(Arc::new(Inner { limiter, clock, files, _thread: thread })))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("dir", &self.dir).finish_non_exhaustive()
    }
}
