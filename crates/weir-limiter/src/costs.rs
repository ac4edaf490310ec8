//! Costs that a rule without `reserve` loses: requests of no hits begin under it, and what they cost is reported later,
//! above what is left, rejected, and so not counted.

use super::LoadedRules;
use weir_limit::{CompiledRule, Decision, Hits, OverLimitPolicy};

/// Notes `hits` of `rule`, none or several, on which there is a `decision`.
#[cold]
#[inline(never)]
pub(super) fn note(
    loaded: &LoadedRules,
    rule: &CompiledRule,
    hits: Hits,
    decision: &Decision,
    policy: OverLimitPolicy,
) {
    let stats = &loaded.stats[rule.index()];
    if hits == Hits(0) {
        stats.note_none();
    } else if decision.over && policy == OverLimitPolicy::Ignore {
        stats.lose_cost(hits.0, &rule.rule.origin);
    }
}
