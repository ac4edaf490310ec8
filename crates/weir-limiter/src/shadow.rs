//! Limits in the shadow of rules: what they would have rejected is counted, and changes no answer.
//!
//! The store decides them with the rules, as it would decide further descriptors. Where one rejection affects the whole
//! request, they follow the rules: they must not reject it, and count only what no other rule rejects.

use std::time::Instant;

use super::{Limiter, LoadedRules};
use weir_limit::{Decision, Direction, LimitCheck, Matched, Scope, Tally, Timestamp};
use weir_observe::ShadowCounts;
use weir_store::{Decisions, Store, StoreError, TakeOptions};

impl<S: Store> Limiter<S> {
    /// Decides a request of all or none, and then what is in the shadow of its rules, within the same wait.
    pub(super) async fn take_before_shadows(
        &self,
        loaded: &LoadedRules,
        matched: &Matched<'_>,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let begun = Instant::now();
        let decisions = self.store.take_with(matched.enforced(), Scope::Request, now, options).await?;
        for check in counted(matched, &decisions) {
            let wait = Some(self.wait_left(options, begun));
            let options = TakeOptions { wait, ..TakeOptions::default() };
            // the answer is known: what fails here is not counted
            if let Ok(decisions) =
                self.store.take_with(std::slice::from_ref(check), Scope::Request, now, options).await
            {
                self.record_shadow(loaded, check, &decisions[0], Scope::Request);
            }
        }
        Ok(decisions)
    }

    /// Records what is in the shadow of the rules of a request, if `decisions` are about that, too.
    #[cold]
    pub(super) fn record_shadows(&self, loaded: &LoadedRules, matched: &Matched<'_>, decisions: &[Decision]) {
        for (check, decision) in matched.checks.iter().zip(decisions).skip(matched.enforced().len()) {
            self.record_shadow(loaded, check, decision, Scope::Descriptor);
        }
    }

    fn record_shadow(&self, loaded: &LoadedRules, check: &LimitCheck<'_>, decision: &Decision, scope: Scope) {
        if check.direction == Direction::GiveBack {
            return;
        }
        let (limit, policy) = (check.tiers()[decision.tier].capacity(), check.over_limit_policy_in(scope));
        let tally = Tally::of(decision, limit, policy, check.hits, self.settings.near_limit_ratio);
        let counts = ShadowCounts { within_limit: tally.within_limit, over_limit: tally.over_limit };
        self.with_stats(loaded, check, check.hits, |stats| stats.add_shadow(counts));
    }
}

/// The shadows that would have counted a request of all or none: no other rule rejects it.
fn counted<'m, 'r>(
    matched: &'m Matched<'r>,
    decisions: &'m [Decision],
) -> impl Iterator<Item = &'m LimitCheck<'r>> {
    matched.shadows().iter().filter(move |shadow| {
        let is_other = |check: &LimitCheck<'_>| !shadow.is_in_shadow_of(check);
        matched.enforced().iter().zip(decisions).all(|(check, decision)| !decision.over || !is_other(check))
    })
}
