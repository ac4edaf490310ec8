//! What all clones of a limiter share.

use std::{path::PathBuf, sync::Arc};

#[cfg(feature = "redis")]
use crate::store::StoreThread;
use crate::{
    WaiterThread,
    clock::Clock,
    config::{self, ConfigErrors, Options},
    limit::{Domain, KeyHasher, RuleSet},
    limiter,
    store::AnyStore,
};

/// What all clones of a limiter share.
pub(super) struct Inner {
    pub(super) limiter: Arc<limiter::Limiter<AnyStore>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) files: RuleFiles,
    /// Ends with the last clone, as the one below does.
    pub(super) _waiters: WaiterThread,
    #[cfg(feature = "redis")]
    pub(super) _store_thread: Option<StoreThread>,
}

/// Where the rules come from.
pub(super) struct RuleFiles {
    pub(super) dir: Option<PathBuf>,
    /// Those that are not files.
    pub(super) domains: Vec<Domain>,
    /// Kept across loads, since counters are found by it.
    pub(super) hasher: KeyHasher,
}

// === impl RuleFiles ===

impl RuleFiles {
    pub(super) fn load(&self) -> Result<RuleSet, ConfigErrors> {
        let mut domains = self.domains.clone();
        if let Some(dir) = &self.dir {
            domains.extend(config::load(dir, &Options::default())?.domains);
        }
        Ok(RuleSet::new(&domains, self.hasher))
    }
}
