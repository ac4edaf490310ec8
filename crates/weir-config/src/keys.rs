//! The valid keys of each level, and suggestions for an unknown key.

use super::scalar::brief;
use weir_observe::spelling;

/// The keys of envoyproxy/ratelimit, at any level.
const REFERENCE: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLevel {
    Root,
    Descriptor,
    RateLimit,
    Tier,
    Shadow,
    Share,
    Replaces,
    Defaults,
    DomainDefaults,
    Mapper,
    MapperDefaults,
    Mapping,
    HistogramOptions,
    SummaryOptions,
    Quantile,
}

// === impl KeyLevel ===

impl KeyLevel {
    const ALL: [Self; 7] = [
        Self::Root,
        Self::Descriptor,
        Self::RateLimit,
        Self::Tier,
        Self::Shadow,
        Self::Share,
        Self::Replaces,
    ];

    #[expect(clippy::too_many_lines, reason = "a table")]
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Root => &["domain", "descriptors", "all_or_nothing", "give_back"],
            Self::Descriptor => &[
                "key",
                "value",
                "values",
                "descriptors",
                "rate_limit",
                "enabled",
                "shadow_mode",
                "quota_mode",
                "detailed_metric",
                "value_to_metric",
                "share_threshold",
                "metadata",
            ],
            Self::RateLimit => &[
                "unit",
                "requests_per_unit",
                "unit_multiplier",
                "requests",
                "per",
                "tiers",
                "algorithm",
                "smooth",
                "burst",
                "refill",
                "strict",
                "share",
                "shadow",
                "coordination",
                "sync_interval",
                "on_store_failure",
                "give_back",
                "instances",
                "unlimited",
                "name",
                "replaces",
            ],
            Self::Tier => &[
                "requests",
                "per",
                "unit",
                "requests_per_unit",
                "unit_multiplier",
                "algorithm",
                "smooth",
                "burst",
                "refill",
                "strict",
                "share",
            ],
            Self::Shadow => &[
                "requests",
                "per",
                "unit",
                "requests_per_unit",
                "unit_multiplier",
                "tiers",
                "algorithm",
                "burst",
                "refill",
                "strict",
            ],
            Self::Share => &[
                "borrow",
                "lend",
                "reserve",
                "headroom",
                "weights",
                "anonymous",
                "forget_after",
                "max_members",
                "min",
                "max",
            ],
            Self::Replaces => &["name"],
            Self::Defaults => &[
                "algorithm",
                "coordination",
                "sync_interval",
                "on_store_failure",
                "give_back",
                "share",
                "shadow",
                "domains",
            ],
            Self::DomainDefaults => &[
                "domain",
                "algorithm",
                "coordination",
                "sync_interval",
                "on_store_failure",
                "give_back",
                "share",
                "shadow",
            ],
            Self::Mapper => &["defaults", "mappings"],
            Self::MapperDefaults => &[
                "match_type",
                "glob_disable_ordering",
                "observer_type",
                "timer_type",
                "histogram_options",
                "buckets",
                "summary_options",
                "quantiles",
                "ttl",
            ],
            Self::Mapping => &[
                "match",
                "match_type",
                "match_metric_type",
                "action",
                "name",
                "labels",
                "help",
                "scale",
                "honor_labels",
                "observer_type",
                "timer_type",
                "histogram_options",
                "buckets",
                "summary_options",
                "quantiles",
                "ttl",
            ],
            Self::HistogramOptions => {
                &["buckets", "native_histogram_bucket_factor", "native_histogram_max_buckets"]
            }
            Self::SummaryOptions => &["quantiles", "max_age", "age_buckets", "buf_cap"],
            Self::Quantile => &["quantile", "error"],
        }
    }

    fn place(self) -> &'static str {
        match self {
            Self::Root => "at the top of a file",
            Self::Descriptor => "in a descriptor",
            Self::RateLimit => "under 'rate_limit'",
            Self::Tier => "in a tier",
            Self::Shadow => "under 'shadow'",
            Self::Share => "under 'share'",
            Self::Replaces => "in an entry of 'replaces'",
            Self::Defaults => "at the top of a file of defaults",
            Self::DomainDefaults => "in an entry of 'domains'",
            Self::Mapper => "at the top of a mapper file",
            Self::MapperDefaults => "under 'defaults'",
            Self::Mapping => "in an entry of 'mappings'",
            Self::HistogramOptions => "under 'histogram_options'",
            Self::SummaryOptions => "under 'summary_options'",
            Self::Quantile => "in an entry of 'quantiles'",
        }
    }

    /// Like envoyproxy/ratelimit, ignores its keys where they have no effect. It has neither tiers nor defaults.
    pub(super) fn ignores(self, key: &str) -> bool {
        !matches!(self, Self::Tier | Self::Shadow | Self::Share)
            && Self::ALL.contains(&self)
            && is_reference(key)
    }

    pub(super) fn misplaced(self, key: &str) -> String {
        let right = Self::places_of(key).join(" or ");
        format!("'{key}' has no effect {} and is ignored; it has one {right}", self.place())
    }

    fn places_of(key: &str) -> Vec<&'static str> {
        let levels = Self::ALL
            .into_iter()
            .filter(|level| !matches!(level, Self::Tier | Self::Shadow) && level.keys().contains(&key));
        levels.map(Self::place).collect()
    }

    /// Begins like envoyproxy/ratelimit's.
    pub(super) fn unknown(self, key: &str) -> String {
        let right = self.keys().join(", ");
        let elsewhere = if Self::ALL.contains(&self) { Self::places_of(key) } else { Vec::new() };
        let hint = match (&*elsewhere, spelling::nearest(key, self.keys().iter().copied())) {
            ([], Some(meant)) => format!("did you mean '{meant}'? "),
            ([], None) => String::new(),
            (places, _) => format!("it belongs {}; ", places.join(" or ")),
        };
        format!("config error, unknown key '{}': {hint}valid keys {} are {right}", brief(key), self.place())
    }
}

pub(super) fn is_reference(key: &str) -> bool {
    REFERENCE.contains(&key)
}

pub(super) fn unknown_without_effect(key: &str) -> String {
    let right = REFERENCE.join(", ");
    format!("config error, unknown key '{}': valid keys below a key without effect are {right}", brief(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_gets_a_suggestion() {
        for (level, key, meant) in [
            (KeyLevel::Descriptor, "ratelimit", Some("rate_limit")),
            (KeyLevel::Descriptor, "Descriptors", Some("descriptors")),
            (KeyLevel::RateLimit, "requestsperunit", Some("requests_per_unit")),
            (KeyLevel::RateLimit, "colour", None),
            (KeyLevel::Root, "zzz", None),
        ] {
            assert_eq!(spelling::nearest(key, level.keys().iter().copied()), meant, "{key}");
        }
    }

    #[test]
    fn a_key_at_a_wrong_level_is_reported_with_its_valid_level() {
        let message = KeyLevel::Descriptor.unknown("per");
        assert!(
            message.starts_with("config error, unknown key 'per': it belongs under 'rate_limit'"),
            "{message}"
        );
    }
}
