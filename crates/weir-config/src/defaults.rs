//! Defaults for rules from a control plane, whose messages have no place for weir's own settings.
//!
//! ```yaml
//! algorithm: sliding_window
//! domains:
//!   - domain: default/eg/*
//!     coordination: lease
//!     share: { borrow: max_min }
//! ```

use std::{path::Path, sync::Arc};

use super::{
    error::{ConfigErrors, ConfigReport},
    fields::Fields,
    keys::KeyLevel,
    load::read_file,
    rate_limit::{coordination, give_back, reserve, shadow},
    share, tier,
    yaml::{self, YamlNode},
};
use weir_limit::{
    AlgorithmKind, Domain, GiveBack, Limit, OverLimitPolicy, Pattern, Reserve, Rule, RuleCoordination,
    RuleNode, Values, share::Sharing,
};

/// Algorithms, coordination and sharing for rules that set none, by domain.
#[derive(Clone, Debug, Default)]
pub struct RuleDefaults {
    all: DefaultFields,
    domains: Vec<(Pattern, DefaultFields)>,
}

#[derive(Clone, Debug, Default)]
struct DefaultFields {
    algorithm: Option<AlgorithmKind>,
    coordination: RuleCoordination,
    give_back: Option<GiveBack>,
    /// What requests reserve, whose costs are reported after them, in every rule that nothing shares.
    reserve: Option<Reserve>,
    /// Applies to rules that are for any value of their last key.
    sharing: Option<Arc<Sharing>>,
    /// Applies to rules whose limit nothing shares.
    shadow: Option<Limit>,
}

// === impl RuleDefaults ===

impl RuleDefaults {
    /// Sets only the algorithm, for every domain. None if no algorithm has that `name`.
    pub fn of_algorithm(name: &str) -> Option<Self> {
        let all = DefaultFields { algorithm: Some(AlgorithmKind::parse(name)?), ..DefaultFields::default() };
        Some(Self { all, domains: Vec::new() })
    }

    /// Has costs count above the limit in every domain: what a rule of a control plane does by itself, unless a
    /// rejected request counts nowhere.
    pub fn with_costs(mut self) -> Self {
        self.all.reserve = Some(Reserve::NOTHING);
        self
    }

    /// Reads the file `path`. Its settings take precedence over these.
    pub fn with_file(&self, path: &Path) -> Result<Self, ConfigErrors> {
        let mut report = ConfigReport::of_file(&path.display().to_string());
        let read = read_file(path, &mut report).map(|text| read(&text, &mut report)).unwrap_or_default();
        report.finish().map(|_| Self { all: read.all.or(&self.all), domains: read.domains })
    }

    /// Sets what `domains` leave out. An algorithm replaces fixed windows: control planes can express no others.
    pub fn apply(&self, domains: &mut [Domain]) {
        for domain in domains {
            let exact = |pattern: &Pattern| !pattern.is_wildcard() && pattern.text() == domain.name;
            let entry = self
                .domains
                .iter()
                .find(|(pattern, _)| exact(pattern))
                .or_else(|| self.domains.iter().find(|(pattern, _)| pattern.matches(&domain.name)));
            let all = || self.all.clone();
            let defaults = entry.map_or_else(all, |(_, defaults)| defaults.clone().or(&self.all));
            domain.give_back = domain.give_back.or(defaults.give_back);
            defaults.apply(&mut domain.nodes);
        }
    }
}

fn read(text: &str, report: &mut ConfigReport) -> RuleDefaults {
    let unreadable = "error loading defaults";
    let mut document = yaml::parse(text);
    // no other program reads this file, so nothing has to be tolerated
    for warning in document.warnings.drain(..) {
        report.error(warning.at, format!("{unreadable}: {}", warning.message));
    }
    let root = report.root_of(document, unreadable);
    let Some(root) = root.filter(|root| !root.is_null()) else { return RuleDefaults::default() };
    let Some(fields) = Fields::new(&root, KeyLevel::Defaults, "a file of defaults", report) else {
        return RuleDefaults::default();
    };
    let all = DefaultFields::read(&fields, report);
    let nodes: Vec<&YamlNode> = fields.maps("domains", report).collect();
    RuleDefaults { all, domains: nodes.into_iter().filter_map(|node| domain(node, report)).collect() }
}

fn domain(node: &YamlNode, report: &mut ConfigReport) -> Option<(Pattern, DefaultFields)> {
    let fields = Fields::new(node, KeyLevel::DomainDefaults, "a domain", report)?;
    let defaults = DefaultFields::read(&fields, report);
    let name = fields.text("domain", report);
    if name.is_none() {
        report.error(node.at, "the domain's name is missing; '*' in it matches any characters");
    }
    Some((Pattern::new(name?.value), defaults))
}

// === impl DefaultFields ===

impl DefaultFields {
    fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> Self {
        let algorithm = tier::kind(fields, report);
        Self {
            algorithm,
            coordination: coordination(fields, report),
            give_back: give_back(fields, report),
            reserve: reserve(fields, report),
            sharing: share::read(fields, None, report).map(Arc::new),
            shadow: shadow(fields, algorithm, report),
        }
    }

    fn or(self, other: &Self) -> Self {
        Self {
            algorithm: self.algorithm.or(other.algorithm),
            coordination: RuleCoordination {
                mode: self.coordination.mode.or(other.coordination.mode),
                sync_interval: self.coordination.sync_interval.or(other.coordination.sync_interval),
                on_store_failure: self.coordination.on_store_failure.or(other.coordination.on_store_failure),
                split_between: self.coordination.split_between,
            },
            give_back: self.give_back.or(other.give_back),
            reserve: self.reserve.or(other.reserve),
            sharing: self.sharing.or_else(|| other.sharing.clone()),
            shadow: self.shadow.or_else(|| other.shadow.clone()),
        }
    }

    fn apply(&self, nodes: &mut [RuleNode]) {
        for node in nodes {
            let has_members = node.values == Values::Any;
            if let Some(rule) = &mut node.rule {
                rule.change_variants(&|rule| self.apply_to_rule(rule, has_members));
            }
            self.apply(&mut node.children);
        }
    }

    fn apply_to_rule(&self, rule: &mut Rule, has_members: bool) {
        let own = Self { coordination: rule.coordination, ..Self::default() };
        rule.coordination = own.or(self).coordination;
        let Limit::Tiers { tiers, over_limit_policy } = &mut rule.limit else { return };
        if has_members && rule.sharing.is_none() && tiers[0].has_windows() && tiers[0].calendar.is_none() {
            rule.sharing.clone_from(&self.sharing);
        }
        if rule.sharing.is_some() {
            // a shared limit is a fixed window
            *over_limit_policy = OverLimitPolicy::Ignore;
            return;
        }
        if rule.shadow.is_none() {
            rule.shadow.clone_from(&self.shadow);
        }
        for tier in tiers.iter_mut().filter(|tier| tier.has_windows() && tier.calendar.is_none()) {
            tier.algorithm = self.algorithm.unwrap_or_default().for_limit(tier.requests);
            if !tier.has_windows() {
                *over_limit_policy = OverLimitPolicy::Ignore;
                // a control plane cannot say that costs are reported, and its fixed windows count all of them
                rule.reserve = Some(Reserve::NOTHING);
            }
        }
        // nobody has said that the requests of this rule have costs, and none is tried in a shadow
        let reserve = self.reserve.map(|reserve| Reserve { awaits_cost: true, ..reserve });
        let reserve = reserve.map(|reserve| if rule.shadow.is_some() { Reserve::NOTHING } else { reserve });
        rule.reserve = reserve.or(rule.reserve);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::parse;
    use weir_limit::{Coordination, OnStoreFailure, Period, Tier};

    fn defaults(text: &str) -> Result<RuleDefaults, ConfigErrors> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("defaults.yaml");
        fs::write(&path, text).expect("a file");
        RuleDefaults::of_algorithm("token_bucket").expect("an algorithm").with_file(&path)
    }

    /// Returns the rules of the domain `name` with `defaults`: one of 10 requests and one of none.
    fn applied(defaults: &RuleDefaults, name: &str) -> [Rule; 2] {
        let rule = |key, requests, more| {
            format!("- {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {requests}{more}}}}}\n")
        };
        let text = format!(
            "domain: {name}\ndescriptors:\n{}{}- {{key: c, rate_limit: {{unlimited: true}}}}\n",
            rule("a", 10, ", coordination: local"),
            rule("b", 0, "")
        );
        let mut domains = parse("rules", &text).expect("valid rules").domains;
        defaults.apply(&mut domains);
        assert_eq!(domains[0].nodes[2].rule.as_ref().expect("a rule").limit, Limit::Unlimited);
        [0, 1].map(|i| domains[0].nodes[i].rule.clone().expect("a rule"))
    }

    #[test]
    fn a_rule_has_the_defaults_of_its_domain_and_keeps_its_own() {
        let defaults = defaults(
            "coordination: lease\non_store_failure: deny\ndomains:\n\
             - {domain: 'shop*', coordination: interval, sync_interval: 50ms}\n\
             - {domain: shop, algorithm: sliding_window}\n",
        )
        .expect("valid defaults");
        let mode = |rule: &Rule| rule.coordination.mode.expect("a mode");
        let [own, none] = applied(&defaults, "shop");
        assert_eq!((mode(&own), mode(&none)), (Coordination::Local, Coordination::Lease));
        assert_eq!(none.coordination.on_store_failure, Some(OnStoreFailure::Deny));
        assert_eq!(own.limit.tiers()[0].algorithm.kind(), AlgorithmKind::SlidingWindow);
        assert_eq!(own.limit.over_limit_policy(), OverLimitPolicy::Ignore);
        let [own, none] = applied(&defaults, "shop/eu");
        assert_eq!(own.limit.tiers()[0].bucket().burst, 10);
        assert_eq!(own.coordination.sync_interval, Some(Period::from_nanos(50_000_000)));
        // a bucket without tokens would be an error in a file
        assert!(none.limit.tiers()[0].has_windows());
        assert_eq!(
            (mode(&none), none.limit.over_limit_policy()),
            (Coordination::Interval, OverLimitPolicy::Count)
        );
    }

    #[test]
    fn values_of_a_key_share_a_limit_by_default() {
        let defaults =
            defaults("domains:\n- {domain: eg, share: {borrow: max_min, weights: {a: 2}}}\n").expect("valid");
        let text = "domain: eg\ndescriptors:\n\
                    - {key: client, rate_limit: {unit: minute, requests_per_unit: 9}}\n\
                    - {key: client, value: a, rate_limit: {unit: minute, requests_per_unit: 9}}\n\
                    - {key: own, rate_limit: {requests: 9, per: 1m, share: {}}}\n";
        let mut domains = parse("rules", text).expect("valid rules").domains;
        defaults.apply(&mut domains);
        let rules: Vec<&Rule> = domains[0].nodes.iter().filter_map(|node| node.rule.as_ref()).collect();
        let borrow = |rule: &Rule| rule.sharing.as_ref().map(|sharing| sharing.borrow);
        assert_eq!(borrow(rules[0]), Some(weir_limit::share::Borrow::MaxMin));
        assert_eq!(rules[0].limit.over_limit_policy(), OverLimitPolicy::Ignore);
        assert!(rules[0].limit.tiers()[0].has_windows());
        // a rule for one value has no members, and one with its own keeps it
        assert_eq!(borrow(rules[1]), None);
        assert_eq!(borrow(rules[2]), Some(weir_limit::share::Borrow::ByDemand));
        assert!(rules[1].limit.tiers()[0].bucket().burst == 9);
    }

    #[test]
    fn rules_have_the_limit_in_their_shadow_unless_they_are_shared_or_have_one() {
        let defaults = defaults(
            "algorithm: sliding_window\nshadow: {requests: 5, per: 1m}\ndomains:\n\
             - {domain: eg, shadow: {requests: 7, per: 1m}}\n",
        )
        .expect("valid");
        let text = |domain| {
            format!(
                "domain: {domain}\ndescriptors:\n\
                 - {{key: a, rate_limit: {{unit: minute, requests_per_unit: 9}}}}\n\
                 - {{key: own, rate_limit: {{requests: 9, per: 1m, shadow: {{requests: 2, per: 1s}}}}}}\n\
                 - {{key: shared, rate_limit: {{requests: 9, per: 1m, share: {{}}}}}}\n\
                 - {{key: free, rate_limit: {{unlimited: true}}}}\n"
            )
        };
        let minute = Period::from_secs(60);
        for (domain, expected) in
            [("any", Tier::sliding_window(5, minute)), ("eg", Tier::fixed_window(7, minute))]
        {
            let mut domains = parse("rules", &text(domain)).expect("valid rules").domains;
            defaults.apply(&mut domains);
            let shadows: Vec<Option<Tier>> = domains[0]
                .nodes
                .iter()
                .map(|node| Some(node.rule.as_ref()?.shadow.as_ref()?.tiers()[0].clone()))
                .collect();
            let own = Tier::fixed_window(2, Period::from_secs(1));
            assert_eq!(shadows, [Some(expected), Some(own), None, None]);
        }
    }

    #[test]
    fn a_fixed_window_that_becomes_another_limit_still_counts_costs() {
        let meters = |defaults: &RuleDefaults| applied(defaults, "shop").map(|rule| rule.meters());
        // one of no requests rejects all, whatever it counts
        for (text, expected) in [
            ("", [true, false]),
            ("algorithm: fixed_window", [false, false]),
            ("{algorithm: fixed_window, reserve: 0}", [true, true]),
            ("{algorithm: fixed_window, domains: [{domain: shop, reserve: 0}]}", [true, true]),
            ("{algorithm: fixed_window, domains: [{domain: other, reserve: 0}]}", [false, false]),
        ] {
            assert_eq!(meters(&defaults(text).expect("valid defaults")), expected, "{text}");
        }
        assert_eq!(meters(&RuleDefaults::default()), [false, false]);
        assert_eq!(meters(&RuleDefaults::default().with_costs()), [true, true]);
    }

    #[test]
    fn errors_have_their_places() {
        let many = format!("shadow: {{tiers: [{}]}}", ["{requests: 1, per: 1s}"; 65].join(","));
        for (text, expected) in [
            (&*many, ": a limit has at most 64 tiers, and this one has 65"),
            ("shadow: {requests: 5}", "defaults.yaml:1:10: 'requests' requires 'per'"),
            ("reserve: 20%", "defaults.yaml:1:10: 'reserve' is the hits that a request reserves"),
            ("share: {borrow: fair}", "defaults.yaml:1:17: unknown borrow 'fair'"),
            ("algorithm: leaky", "defaults.yaml:1:12: unknown algorithm 'leaky'"),
            ("domains:\n- coordination: lease", "defaults.yaml:2:3: the domain's name is missing"),
            ("algoritm: fixed_window", "unknown key 'algoritm': did you mean 'algorithm'?"),
            ("unit: hour", "unknown key 'unit'"),
            ("- a", "a file of defaults must be a mapping of algorithm"),
            ("a: [", "error loading defaults: "),
            (
                "algorithm: token_bucket\nalgorithm: token_bucket",
                "defaults.yaml:2:1: error loading defaults: duplicate key 'algorithm'; the first is at 1:1",
            ),
        ] {
            let errors = defaults(text).expect_err("invalid defaults").to_string();
            assert!(errors.contains(expected), "{text}: {errors}");
        }
        assert!(defaults("").is_ok());
    }
}
