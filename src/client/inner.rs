//! What all clones of a limiter share.

use std::{path::PathBuf, sync::Arc};

#[cfg(feature = "redis")]
use crate::store::StoreThread;
use crate::{
    WaiterThread,
    clock::Clock,
    config::{self, ConfigError, ConfigErrors, Options},
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
        let names = domains.iter().flat_map(|domain| config::names_of_instances(&domain.nodes));
        let errors: Vec<ConfigError> = names
            .map(|(name, at)| ConfigError {
                at,
                message: format!(
                    "'instances: dns://{name}' needs the service, which follows the name; write a number and load \
                     rules anew when it changes"
                ),
            })
            .collect();
        if !errors.is_empty() {
            return Err(ConfigErrors { errors, warnings: Vec::new() });
        }
        Ok(RuleSet::new(&domains, self.hasher))
    }
}
