//! `weir simulate` of a rule of a file: the limit that applies to a descriptor.

use weir_config::{ConfigErrors, Loaded, put_in_force};
use weir_limit::{Entry, KeyHasher, Limit, Lookup, RuleCoordination, RuleSet, Tier};
use weir_store::clock::{Clock as _, SystemClock};

use super::error::CommandResult;

/// A descriptor whose rule is simulated, and the rules.
#[derive(Debug)]
pub struct DescriptorToSimulate<'a> {
    pub loaded: Result<Loaded, ConfigErrors>,
    pub domain: &'a str,
    pub entries: &'a [(String, String)],
}

#[derive(Debug)]
pub(super) struct SimulatedRule {
    pub(super) tier: Tier,
    pub(super) coordination: RuleCoordination,
    pub(super) has_one_counter: bool,
    /// The name with its place.
    pub(super) name: String,
}

// === impl DescriptorToSimulate ===

impl DescriptorToSimulate<'_> {
    pub(super) fn rule(self) -> CommandResult<SimulatedRule> {
        let mut domains = self.loaded?.domains;
        put_in_force(&mut domains, SystemClock.now());
        let rules = RuleSet::new(&domains, KeyHasher::random());
        let entries: Vec<Entry<'_>> = self.entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let compiled = match rules.find(self.domain, &entries) {
            Lookup::Rule(rule) => rule,
            Lookup::UnknownDomain => {
                return Err(format!("unknown domain {:?}: no rules are declared for it", self.domain).into());
            }
            Lookup::NoRule => {
                let entries = entries.iter().map(Entry::to_string).collect::<Vec<_>>().join(" ");
                let why = "`weir explain` with the same arguments says why";
                return Err(format!("no rule matches {entries}: {why}").into());
            }
        };
        let name = format!("{} ({})", compiled.path, compiled.rule.origin);
        let tiers = match &compiled.rule.limit {
            Limit::Unlimited => &[][..],
            Limit::Tiers { tiers, .. } => tiers,
        };
        if let Some(limit) = compiled.rule.in_flight.filter(|_| tiers.is_empty()) {
            return Err(format!("rule {name} limits {limit}: a simulation has rates only").into());
        }
        let Some((tier, others)) = tiers.split_first() else {
            return Err(format!("rule {name} is unlimited: there is nothing to simulate").into());
        };
        let limit = format!("--limit {} --period {}", tier.requests, tier.period);
        if let Some(calendar) = tier.calendar() {
            let unit = calendar.unit;
            return Err(format!(
                "rule {name} has 'per: {unit}': simulate windows of one length, such as {limit}"
            )
            .into());
        }
        if compiled.rule.sharing.is_some() {
            return Err(format!("rule {name} is a pool: simulate its members with --share {limit}").into());
        }
        if !others.is_empty() {
            return Err(
                format!("rule {name} has several limits: simulate one of them, such as {limit}").into()
            );
        }
        let (coordination, has_one_counter) = (compiled.rule.coordination, compiled.has_one_counter());
        Ok(SimulatedRule { tier: tier.clone(), coordination, has_one_counter, name })
    }
}
