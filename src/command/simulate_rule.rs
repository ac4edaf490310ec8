//! `weir simulate` of a rule of a file: the limit that applies to a descriptor.

use weir_config::{ConfigErrors, DisplayOrigin, Loaded};
use weir_limit::{Entry, KeyHasher, Limit, Lookup, RuleCoordination, RuleSet, Tier};

/// A descriptor whose rule is simulated, and the rules.
#[derive(Debug)]
pub struct DescriptorToSimulate<'a> {
    /// The rules.
    pub loaded: Result<Loaded, ConfigErrors>,
    /// The domain of the request.
    pub domain: &'a str,
    /// The keys and values of the descriptor.
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

/// The reason why no rule can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The rules are invalid.
    #[error(transparent)]
    Invalid(#[from] ConfigErrors),
    /// The domain has no rules.
    #[error("unknown domain {0:?}: no rules are declared for it")]
    UnknownDomain(String),
    /// No rule matches the descriptor.
    #[error("no rule matches {0}: `weir explain` with the same arguments says why")]
    NoRule(String),
    /// The rule admits all requests.
    #[error("rule {0} is unlimited: there is nothing to simulate")]
    Unlimited(String),
    /// The values of the last entry share the limit.
    #[error("rule {name} is a pool: simulate its members with --share --limit {} --period {}", .tier.requests, .tier.period)]
    Pool {
        /// The rule.
        name: String,
        /// Its limit.
        tier: Tier,
    },
    /// The rule has several limits.
    #[error("rule {name} has several limits: simulate one of them, such as --limit {} --period {}", .tier.requests, .tier.period)]
    Several {
        /// The rule.
        name: String,
        /// The first of the limits.
        tier: Tier,
    },
}

// === impl DescriptorToSimulate ===

impl DescriptorToSimulate<'_> {
    pub(super) fn rule(self) -> Result<SimulatedRule, RuleError> {
        let rules = RuleSet::new(&self.loaded?.domains, KeyHasher::random());
        let entries: Vec<Entry<'_>> = self.entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let compiled = match rules.find(self.domain, &entries) {
            Lookup::Rule(rule) => rule,
            Lookup::UnknownDomain => return Err(RuleError::UnknownDomain(self.domain.to_owned())),
            Lookup::NoRule => {
                let entries: Vec<String> = entries.iter().map(Entry::to_string).collect();
                return Err(RuleError::NoRule(entries.join(" ")));
            }
        };
        let name = format!("{} ({})", compiled.path, DisplayOrigin(&compiled.rule.origin));
        let tiers = match &compiled.rule.limit {
            Limit::Unlimited => return Err(RuleError::Unlimited(name)),
            Limit::Tiers { tiers, .. } => tiers,
        };
        match &tiers[..] {
            [tier] if compiled.rule.sharing.is_none() => Ok(SimulatedRule {
                tier: tier.clone(),
                coordination: compiled.rule.coordination,
                has_one_counter: compiled.has_one_counter(),
                name,
            }),
            [tier, ..] if compiled.rule.sharing.is_some() => {
                Err(RuleError::Pool { name, tier: tier.clone() })
            }
            [tier, ..] => Err(RuleError::Several { name, tier: tier.clone() }),
            [] => Err(RuleError::Unlimited(name)),
        }
    }
}
