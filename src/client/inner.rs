//! What all clones of a limiter share.

use std::{path::PathBuf, sync::Arc};

use crate::{
    WaiterThread,
    clock::Clock,
    config::{self, ConfigErrors, Options},
    limit::{Domain, KeyHasher, RuleSet},
    limiter,
    store::MemoryStore,
};

/// What all clones of a limiter share.
pub(super) struct Inner {
    pub(super) limiter: Arc<limiter::Limiter<MemoryStore>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) files: RuleFiles,
    /// Ends with the last clone.
    pub(super) _thread: WaiterThread,
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
