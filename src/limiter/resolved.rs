//! Entries whose rule and counter are found once.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{AcquireError, Acquired, LimitError, Limiter, Loaded};
use crate::{
    limit::{
        self, CounterKey, Direction, Entry, Hits, LimitCheck, Named, Period, Request, RuleRef, Scope,
        Timestamp, line::Rejection,
    },
    store::{Receipt, Store},
};

/// A domain and entries with their rule and the key of their counter, found once and again after each reload.
#[derive(Debug)]
pub struct Resolved {
    names: Named,
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
    /// Returns the request for `hits`.
    #[must_use]
    pub fn request(&self, hits: Hits) -> Request<'_> {
        self.names.request(hits)
    }
}

impl<S: Store> Limiter<S> {
    /// Finds the rule and the counter of `entries` in `domain`.
    ///
    /// # Errors
    ///
    /// If the domain is empty, or no rules are loaded.
    pub fn resolve(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Resolved, LimitError> {
        let loaded = self.loaded.load_full().ok_or(LimitError::NoRules)?;
        let resolved = Resolved {
            names: Named::new(domain, entries),
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
    /// Those of [`Limiter::decide`]; [`AcquireError::MustAsk`] if the counters are not in this process.
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
            domain: resolved.names.domain(),
            entries: &resolved.names.entries(),
            key,
            pool: None,
            hits,
            direction: Direction::Take,
        };
        let Some(store) = self.store.lines_for(&check) else { return Err(AcquireError::MustAsk) };
        let decision = store.decide_one(&check, found.scope, now);
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
