//! Requests that may wait, of one descriptor whose rule has nothing but a limit, where all counters are in memory: as
//! most are.

use std::slice::from_ref;

use super::{Limiter, LoadedRules, acquire::Acquired};
use weir_limit::{CounterKey, Decision, Hits, PlainCheck, Request, Scope, Status, Timestamp, Verdict};
use weir_observe::OwnCounts;
use weir_store::{MemoryStore, Receipt, Store};

/// The only check of a request, and what is known of its rule.
struct Plain<'a> {
    check: PlainCheck<'a>,
    scope: Scope,
    counts: &'a OwnCounts,
}

impl<S: Store> Limiter<S> {
    /// Takes hits that fit now while nobody waits for the same counters. Otherwise returns `encode`.
    #[inline]
    pub(super) fn acquire_plain<T, E: FnOnce(&Verdict<'_>, &Acquired) -> T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        encode: E,
    ) -> Result<T, E> {
        let Some(memory) = self.store.alone() else { return Err(encode) };
        let loaded = self.loaded.load();
        let Some(loaded) = loaded.as_deref() else { return Err(encode) };
        let Some(plain) = self.plain(loaded, request) else { return Err(encode) };
        let PlainCheck { key, tiers, hits, .. } = plain.check;
        match memory.take_fitting(key, |tier| key.of_tier(tier), tiers, hits, now) {
            Some(decision) => Ok(self.conclude_plain(loaded, request, &plain, &decision, (now, now), encode)),
            None => Err(encode),
        }
    }

    /// Hits of `key` were taken at `taken_at`. Returns `encode` if the rule is another now, or not plain.
    pub(super) fn conclude_wait<T, E: FnOnce(&Verdict<'_>, &Acquired) -> T>(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        (memory, key): (&MemoryStore, CounterKey),
        [started, taken_at, now]: [Timestamp; 3],
        encode: E,
    ) -> Result<T, E> {
        let Some(plain) = self.plain(loaded, request).filter(|plain| plain.check.key == key) else {
            return Err(encode);
        };
        let looked = memory.look(&plain.check.in_domain(request.domain), Hits(0), now);
        let decision = Decision { before: looked.before.minus(plain.check.hits), ..looked };
        Ok(self.conclude_plain(loaded, request, &plain, &decision, (started, taken_at), encode))
    }

    /// None if callers do not wait for it, or it is not plain.
    #[inline]
    fn plain<'a>(&self, loaded: &'a LoadedRules, request: &'a Request<'_>) -> Option<Plain<'a>> {
        let modes = &self.settings.modes;
        if modes.shadow || modes.describes() || request.domain.is_empty() {
            return None;
        }
        if loaded.rules.check_patterns(request).is_err() {
            return None;
        }
        let counts_of = |rule: usize| loaded.stats[rule].prefetch();
        let (check, scope, counts) = PlainCheck::sole(&loaded.rules, request, counts_of)?;
        let counts_hits = check.hits > Hits(0) && !check.compiled.shadow_mode();
        counts_hits.then(|| Plain { check, scope: self.settings.scope.max(scope), counts })
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that it finds in registers what was decided")]
    fn conclude_plain<T>(
        &self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        Plain { check, scope, counts }: &Plain<'_>,
        decision: &Decision,
        (started, taken_at): (Timestamp, Timestamp),
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> T {
        self.count_check(loaded, check, counts, scope.policy_of(check.over_limit_policy), decision);
        let status = Status::plain(check, decision, self.settings.modes.quota);
        let verdict = Verdict::of_sole(status, &self.settings.modes);
        if let Some(report) = self.report_of(verdict.code) {
            let check = check.in_domain(request.domain);
            self.report_checks(report, loaded, from_ref(&check), from_ref(decision), taken_at);
        }
        let receipt = Receipt::new(&check.in_domain(request.domain), taken_at);
        let acquired = Acquired { rejection: None, waited: taken_at.since(started), receipt: Some(receipt) };
        encode(&verdict, &acquired)
    }
}
