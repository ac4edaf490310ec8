//! Entries whose rule and counter are found once.

use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use super::{AcquireError, Acquired, LimitError, Limiter, Loaded};
use crate::{
    limit::{
        self, CounterKey, Descriptor, Direction, Entry, Hits, LimitCheck, Period, Request, RuleRef, Scope,
        Timestamp, line::Rejection,
    },
    store::{MemoryStore, Receipt},
};

/// A domain and entries with their rule and the key of their counter, found once and again after each reload.
#[derive(Debug)]
pub struct Resolved {
    domain: Box<str>,
    entries: Box<[(Box<str>, Box<str>)]>,
    found: ArcSwap<Found>,
}

#[derive(Debug)]
struct Found {
    loaded: Arc<Loaded>,
    /// The index of the rule and the key of its counter; none if no counter in memory decides alone.
    counter: Option<(usize, CounterKey)>,
    /// What a rejection affects.
    scope: Scope,
}

// === impl Resolved ===

impl Resolved {
    /// Calls `act` with the request for `hits`.
    pub fn with_request<T>(&self, hits: Hits, act: impl FnOnce(&Request<'_>) -> T) -> T {
        act(&self.request(hits))
    }

    /// Returns the request for `hits`.
    #[must_use]
    pub fn request(&self, hits: Hits) -> Request<'_> {
        let descriptor = Descriptor { entries: self.entries(), hits: Some(hits.0), ..Descriptor::default() };
        Request { domain: &self.domain, descriptors: std::iter::once(descriptor).collect(), hits: 0 }
    }

    fn entries(&self) -> SmallVec<[Entry<'_>; 4]> {
        self.entries.iter().map(|(key, value)| Entry { key, value }).collect()
    }
}

impl Limiter<MemoryStore> {
    /// Finds the rule and the counter of `entries` in `domain`.
    ///
    /// # Errors
    ///
    /// If the domain is empty, or no rules are loaded.
    pub fn resolve(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Resolved, LimitError> {
        let entries: Box<[(Box<str>, Box<str>)]> =
            entries.iter().map(|entry| (entry.key.into(), entry.value.into())).collect();
        let loaded = self.loaded.load_full().ok_or(LimitError::NoRules)?;
        let resolved = Resolved {
            domain: domain.into(),
            entries,
            found: ArcSwap::from_pointee(Found { loaded, counter: None, scope: Scope::default() }),
        };
        let found = self.find(&resolved)?;
        resolved.found.store(Arc::new(found));
        Ok(resolved)
    }

    /// Takes `hits` of `resolved`, if they fit now.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::decide`].
    pub fn try_acquire(
        &self,
        resolved: &Resolved,
        hits: Hits,
        now: Timestamp,
    ) -> Result<Acquired, AcquireError> {
        let mut found = resolved.found.load();
        if !self.is_current(&found.loaded) {
            resolved.found.store(Arc::new(self.find(resolved)?));
            found = resolved.found.load();
        }
        let Some((rule, key)) = found.counter else {
            return self.acquire_now(&resolved.request(hits), now);
        };
        let check = LimitCheck {
            rule: RuleRef::Compiled(&found.loaded.rules.rules()[rule]),
            domain: &resolved.domain,
            entries: &resolved.entries(),
            key,
            pool: None,
            hits,
            direction: Direction::Take,
        };
        let decision = self.store.decide_one(&check, found.scope, now);
        self.record_check(&found.loaded, &check, &decision, found.scope);
        let rejection = decision.over.then(|| {
            if hits.0 > limit::capacity(check.tiers()) {
                Rejection::Never
            } else {
                Rejection::Timeout { retry_after: decision.reset }
            }
        });
        let receipt = rejection.is_none().then(|| Receipt::new(&check, now));
        Ok(Acquired { rejection, waited: Period::default(), receipt })
    }

    fn find(&self, resolved: &Resolved) -> Result<Found, LimitError> {
        let request = resolved.request(Hits(1));
        let loaded = self.current(&request)?;
        let matched = crate::limit::Matched::new(&loaded.rules, &request);
        let counter = match &*matched.checks {
            // what shadow mode admits is more than the counter says
            [check] if check.pool.is_none() && !check.rule.shadow_mode() && !self.settings.modes.shadow => {
                match &check.rule {
                    RuleRef::Compiled(rule) => Some((rule.index(), check.key)),
                    RuleRef::Beside(_) | RuleRef::Shadow(_) | RuleRef::Override(_) => None,
                }
            }
            _ => None,
        };
        let scope = self.scope_of(&matched);
        drop(matched);
        Ok(Found { loaded, counter, scope })
    }
}
