//! A limiter in the process of its caller, and a tenant whose rule and counter are found.

use weir_limit::{Code, Hits, Timestamp};
use weir_limiter::Key;

use crate::in_process::InProcess;

/// The limiter, and the key of the tenant.
pub struct OfKey(InProcess, Key);

impl OfKey {
    /// Creates the limiter, and the counter of `tenant`.
    pub fn new(tenant: &str) -> Self {
        let limiter = InProcess::new(tenant);
        let key = limiter.0.key("shop", &[("tenant", tenant)]).expect("rules are loaded");
        Self(limiter, key)
    }

    /// Decides one hit of the tenant, and returns whether it is admitted.
    // as in the program that measures it
    #[inline]
    pub fn admits(&self, now: Timestamp) -> bool {
        let decided = self.0.0.decide_key(&self.1, Hits(1), now);
        decided.expect("rules are loaded").code == Code::Ok
    }
}
