//! What a request would get now, for people: nothing is counted.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{LimitError, Limiter, LoadedRules, find};
use weir_limit::{
    self as limit, Code, Decision, Hits, LimitCheck, Matched, PlaceAsk, PlaceCheck, PlaceDecision,
    PlaceDecisions, Request, RuleSet, Timestamp, Verdict,
};
use weir_observe::hot_keys::HotKeyValues;
use weir_store::{CounterSight, PlaceRequest, Store, TakeOptions};

/// What was found about a request.
#[derive(Debug)]
pub struct Looked<'a, 'r> {
    pub rules: &'a RuleSet,
    pub matched: &'a Matched<'r>,
    /// One for each of [`Matched::enforced`].
    pub sights: &'a [CounterSight],
    /// One for each of `sights`: what its hits would get.
    pub decisions: &'a [Decision],
    /// One for each of [`Matched::places`]; none if the store does not keep places.
    pub places: &'a [PlaceDecision],
    pub code: Code,
    /// One for each descriptor.
    pub codes: &'a [Code],
}

impl<S: Store> Limiter<S> {
    /// Finds the rules of `request` and looks at their counters. `describe` gets what it would be answered as of `now`.
    pub async fn inspect<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        describe: impl FnOnce(&Looked<'_, '_>) -> T,
    ) -> Result<T, LimitError> {
        let loaded = self.loaded.load_full();
        let (loaded, matched) = find(loaded.as_deref(), request, LoadedRules::check_values)?;
        let (mut sights, mut decisions) = (Vec::new(), SmallVec::<[Decision; 2]>::new());
        for check in matched.enforced() {
            let sight = self.store.sight(check, now).await;
            decisions.push(decision(check, &sight));
            sights.push(sight);
        }
        let places: Vec<PlaceCheck<'_>> =
            matched.places.iter().map(|(_, place)| PlaceCheck { ask: PlaceAsk::Look, ..*place }).collect();
        let stats = |place: &PlaceCheck<'_>| Arc::clone(loaded.stats[place.rule.index()].places());
        let stats: Vec<_> = places.iter().map(stats).collect();
        let asked: Vec<PlaceRequest<'_>> = places
            .iter()
            .zip(&stats)
            .map(|(check, stats)| PlaceRequest { check, stats, reserved: Hits(0) })
            .collect();
        let taken = if asked.is_empty() {
            None
        } else {
            self.store.take_places(&asked, 0, now, TakeOptions::default()).await.ok()
        };
        let taken = taken.map(|taken| taken.decisions).unwrap_or_default();
        let decided = (!taken.is_empty()).then(|| PlaceDecisions {
            decisions: taken.iter().copied().map(Some).collect(),
            ..PlaceDecisions::default()
        });
        let verdict =
            Verdict::with_places(request, &matched, &decisions, decided.as_ref(), &self.settings.modes);
        let (code, codes) =
            (verdict.code, verdict.statuses.iter().map(|status| status.code).collect::<Vec<_>>());
        Ok(describe(&Looked {
            rules: &loaded.rules,
            matched: &matched,
            sights: &sights,
            decisions: &decisions,
            places: &taken,
            code,
            codes: &codes,
        }))
    }

    /// Returns whether and how values of hot keys are shown.
    pub const fn shown_values(&self) -> HotKeyValues {
        self.settings.hot_keys
    }
}

/// What the hits of `check` would get, by how its counters stand.
fn decision(check: &LimitCheck<'_>, sight: &CounterSight) -> Decision {
    let tiers = sight.part.as_deref().unwrap_or_else(|| check.own_tiers());
    let hits = check.hits.max(Hits(1));
    let own = (!tiers.is_empty() && tiers.len() == sight.counters.len())
        .then(|| limit::look(tiers, &sight.counters, hits, sight.at));
    match (own, sight.pool) {
        // the tiers beside a pool follow it
        (Some(own), Some(pool)) if own.over || !pool.over => Decision { tier: own.tier + 1, ..own },
        (_, Some(pool)) => pool,
        (Some(own), None) => own,
        (None, None) => Decision::unknown(limit::Period::default()),
    }
}
