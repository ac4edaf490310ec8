//! What all clones of a limiter share.

use std::sync::Arc;

#[cfg(feature = "dns")]
use super::rules::FollowedRules;
use super::rules::RuleFiles;
#[cfg(not(feature = "dns"))]
use super::rules::Rules;
use crate::any_store::AnyStore;
#[cfg(feature = "redis")]
use crate::store_thread::StoreThread;
use weir_limit::Domain;
use weir_limiter::{self as limiter, waiter_thread::WaiterThread};
use weir_store::clock::Clock;

pub(super) struct Inner {
    pub(super) limiter: Arc<limiter::Limiter<AnyStore>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) files: RuleFiles,
    #[cfg(feature = "dns")]
    pub(super) rules: FollowedRules,
    #[cfg(not(feature = "dns"))]
    pub(super) rules: Rules,
    /// The thread ends with the last clone, like `_store_thread`.
    pub(super) _waiters: WaiterThread,
    #[cfg(feature = "redis")]
    pub(super) _store_thread: Option<StoreThread>,
}

// === impl Inner ===

impl Inner {
    pub(super) fn load(&self, domains: Vec<Domain>) {
        #[cfg(feature = "dns")]
        self.rules.load(domains);
        #[cfg(not(feature = "dns"))]
        self.rules.load(domains, |_| weir_limit::part::UNKNOWN_INSTANCES);
    }
}
