//! The valid keys of each level, and suggestions for an unknown key.

use super::scalar::brief;
use KeyLevel::{
    Active, Defaults, Descriptor, DomainDefaults, HistogramOptions, LimitsFrom, Mapper, MapperDefaults,
    Mapping, Quantile, RateLimit, Replaces, Root, Scheduled, Shadow, Share, SummaryOptions, Tier,
};
use weir_observe::spelling;

/// A key, and the levels at which it has an effect.
type Key = (&'static str, &'static [KeyLevel]);

/// The keys of envoyproxy/ratelimit. It ignores them at other levels.
const REFERENCE: &[Key] = &[
    ("domain", &[Root, DomainDefaults]),
    ("key", &[Descriptor]),
    ("value", &[Descriptor]),
    ("descriptors", &[Root, Descriptor]),
    ("rate_limit", &[Descriptor]),
    ("unit", &[RateLimit, Scheduled, Tier, Shadow]),
    ("requests_per_unit", &[RateLimit, Scheduled, Tier, Shadow]),
    ("unlimited", &[RateLimit, Scheduled]),
    ("shadow_mode", &[Descriptor]),
    ("quota_mode", &[Descriptor]),
    ("name", &[RateLimit, Replaces, Mapping]),
    ("replaces", &[RateLimit]),
    ("detailed_metric", &[Descriptor]),
    ("value_to_metric", &[Descriptor]),
    ("share_threshold", &[Descriptor]),
    ("metadata", &[Descriptor]),
];

const OURS: &[Key] = &[
    ("all_or_nothing", &[Root]),
    ("plans", &[Root]),
    ("values", &[Descriptor]),
    ("values_from", &[Descriptor]),
    ("count_by", &[Descriptor]),
    ("limits_from", &[Descriptor]),
    ("default", &[Descriptor]),
    ("file", &[LimitsFrom]),
    ("by", &[LimitsFrom]),
    ("column", &[LimitsFrom]),
    ("enabled", &[Descriptor]),
    ("unit_multiplier", &[RateLimit, Scheduled, Tier, Shadow]),
    ("requests", &[RateLimit, Scheduled, Tier, Shadow]),
    ("per", &[RateLimit, Scheduled, Tier, Shadow]),
    ("in_flight", &[RateLimit, Scheduled, Tier]),
    ("give_up_after", &[RateLimit, Scheduled, Tier]),
    ("timezone", &[Root, RateLimit, Active]),
    ("starts", &[RateLimit, Scheduled, Tier, Shadow]),
    ("schedule", &[RateLimit]),
    ("active", &[Scheduled]),
    ("days", &[Active]),
    ("dates", &[Active]),
    ("from", &[Active]),
    ("to", &[Active]),
    ("tiers", &[RateLimit, Scheduled, Shadow]),
    ("algorithm", &[RateLimit, Scheduled, Tier, Shadow, Defaults, DomainDefaults]),
    ("smooth", &[RateLimit, Scheduled, Tier]),
    ("burst", &[RateLimit, Scheduled, Tier, Shadow]),
    ("refill", &[RateLimit, Scheduled, Tier, Shadow]),
    ("strict", &[RateLimit, Scheduled, Tier, Shadow]),
    ("share", &[RateLimit, Scheduled, Tier, Defaults, DomainDefaults]),
    ("shadow", &[RateLimit, Scheduled, Defaults, DomainDefaults]),
    ("coordination", &[RateLimit, Defaults, DomainDefaults]),
    ("sync_interval", &[RateLimit, Defaults, DomainDefaults]),
    ("on_store_failure", &[RateLimit, Defaults, DomainDefaults]),
    ("give_back", &[Root, RateLimit, Defaults, DomainDefaults]),
    ("instances", &[RateLimit]),
    ("borrow", &[Share]),
    ("lend", &[Share]),
    ("reserve", &[RateLimit, Scheduled, Share, Defaults, DomainDefaults]),
    ("headroom", &[Share]),
    ("weights", &[Share]),
    ("anonymous", &[Share]),
    ("forget_after", &[Share]),
    ("max_members", &[Share]),
    ("min", &[Share]),
    ("max", &[Share]),
    ("domains", &[Defaults]),
    ("defaults", &[Mapper]),
    ("mappings", &[Mapper]),
    ("match_type", &[MapperDefaults, Mapping]),
    ("glob_disable_ordering", &[MapperDefaults]),
    ("observer_type", &[MapperDefaults, Mapping]),
    ("timer_type", &[MapperDefaults, Mapping]),
    ("histogram_options", &[MapperDefaults, Mapping]),
    ("buckets", &[MapperDefaults, Mapping, HistogramOptions]),
    ("summary_options", &[MapperDefaults, Mapping]),
    ("quantiles", &[MapperDefaults, Mapping, SummaryOptions]),
    ("ttl", &[MapperDefaults, Mapping]),
    ("match", &[Descriptor, Mapping]),
    ("match_metric_type", &[Mapping]),
    ("action", &[Mapping]),
    ("labels", &[Mapping]),
    ("help", &[Mapping]),
    ("scale", &[Mapping]),
    ("honor_labels", &[Mapping]),
    ("native_histogram_bucket_factor", &[HistogramOptions]),
    ("native_histogram_max_buckets", &[HistogramOptions]),
    ("max_age", &[SummaryOptions]),
    ("age_buckets", &[SummaryOptions]),
    ("buf_cap", &[SummaryOptions]),
    ("quantile", &[Quantile]),
    ("error", &[Quantile]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLevel {
    Root,
    Descriptor,
    RateLimit,
    Scheduled,
    Active,
    Tier,
    Shadow,
    Share,
    Replaces,
    LimitsFrom,
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
    /// The levels of rules.
    const RULES: [Self; 10] =
        [Root, Descriptor, RateLimit, Scheduled, Active, Tier, Shadow, Share, Replaces, LimitsFrom];

    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        let keys = REFERENCE.iter().chain(OURS).filter(move |(_, levels)| levels.contains(&self));
        keys.map(|(key, _)| *key)
    }

    pub(super) fn list(self) -> String {
        self.keys().collect::<Vec<_>>().join(", ")
    }

    fn place(self) -> &'static str {
        match self {
            Self::Root => "at the top of a file",
            Self::Descriptor => "in a descriptor",
            Self::RateLimit => "under 'rate_limit'",
            Self::Scheduled => "in an entry of 'schedule'",
            Self::Active => "under 'active'",
            Self::Tier => "in a tier",
            Self::Shadow => "under 'shadow'",
            Self::Share => "under 'share'",
            Self::Replaces => "in an entry of 'replaces'",
            Self::LimitsFrom => "under 'limits_from'",
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
        matches!(self, Root | Descriptor | RateLimit | Replaces)
            && REFERENCE.iter().any(|(reference, _)| *reference == key)
    }

    pub(super) fn misplaced(self, key: &str) -> String {
        let right = Self::places_of(key).join(" or ");
        format!("'{key}' has no effect {} and is ignored; it has one {right}", self.place())
    }

    fn places_of(key: &str) -> Vec<&'static str> {
        let levels = Self::RULES.into_iter().filter(|level| {
            !matches!(level, Scheduled | Tier | Shadow) && level.keys().any(|known| known == key)
        });
        levels.map(Self::place).collect()
    }

    /// Begins like envoyproxy/ratelimit's.
    pub(super) fn unknown(self, key: &str) -> String {
        let elsewhere = if Self::RULES.contains(&self) { Self::places_of(key) } else { Vec::new() };
        let hint = match (&*elsewhere, spelling::nearest(key, self.keys())) {
            ([], Some(meant)) => format!("did you mean '{meant}'? "),
            ([], None) => String::new(),
            (places, _) => format!("it belongs {}; ", places.join(" or ")),
        };
        let (key, right) = (brief(key), self.list());
        format!("config error, unknown key '{key}': {hint}valid keys {} are {right}", self.place())
    }
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
            assert_eq!(spelling::nearest(key, level.keys()), meant, "{key}");
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
