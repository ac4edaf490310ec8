//! The headers that tell the end user about a limit.

use std::fmt::Write as _;

use super::{
    matched::{Matched, Plan, RuleRef},
    tier::{Algorithm, Tier},
    units::{NANOS_PER_SECOND, Period},
    verdict::{Code, Status},
};

/// A header for the response to the end user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name, as the settings spell it.
    pub name: &'a str,
    /// Its value.
    pub value: String,
}

/// Headers that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// The reference's three: limit, remaining and reset of the descriptor that is nearest to its limit.
    Three(HeaderNames),
    /// `RateLimit-Policy` with every tier of every rule that the request met, and `RateLimit` with what is left of each
    /// rule, as structured fields: draft-ietf-httpapi-ratelimit-headers.
    Ietf,
    /// `Retry-After` (RFC 9110) in whole seconds, when the request is over.
    RetryAfter,
}

/// The names of three headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Carries the limit.
    pub limit: String,
    /// Carries the remaining requests.
    pub remaining: String,
    /// Carries the whole seconds until the limit is reset.
    pub reset: String,
}

/// What the headers can tell of.
pub(super) struct Told<'t, 'm> {
    pub(super) matched: &'t Matched<'m>,
    pub(super) statuses: &'t [Status<'t>],
    /// Every descriptor is a quota.
    pub(super) all_quotas: bool,
    /// The status that is nearest to its limit.
    pub(super) nearest: Option<usize>,
    /// The request is refused.
    pub(super) over: bool,
}

// === impl HeaderNames ===

/// As the reference names them, after an early draft of the IETF's.
impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        }
    }
}

impl HeaderNames {
    /// `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`.
    #[must_use]
    pub fn x_ratelimit() -> Self {
        Self {
            limit: "x-ratelimit-limit".into(),
            remaining: "x-ratelimit-remaining".into(),
            reset: "x-ratelimit-reset".into(),
        }
    }
}

// === impl HeaderStyle ===

impl HeaderStyle {
    pub(super) fn headers(&self, told: &Told<'_, '_>) -> Vec<Header<'_>> {
        match self {
            Self::Three(names) => told.three(names),
            Self::Ietf => told.ietf(),
            Self::RetryAfter => told.retry_after(),
        }
    }
}

// === impl Told ===

impl Told<'_, '_> {
    fn three<'n>(&self, names: &'n HeaderNames) -> Vec<Header<'n>> {
        let status = self.nearest.map(|nearest| &self.statuses[nearest]);
        let Some((limit, status)) = status.and_then(|status| Some((status.limit?, status))) else {
            return Vec::new();
        };
        let header = |name, value: u64| Header { name, value: value.to_string() };
        vec![
            header(&names.limit, limit.tier.requests.into()),
            header(&names.remaining, status.remaining.into()),
            header(&names.reset, seconds(status.reset)),
        ]
    }

    fn ietf(&self) -> Vec<Header<'static>> {
        let (mut policies, mut limits) = (String::new(), String::new());
        for (plan, status) in self.matched.plans.iter().zip(self.statuses) {
            let (Plan::Limited(check), Some(current)) = (plan, status.limit) else {
                continue;
            };
            let check = &self.matched.checks[*check];
            let name = match (check.rule.name(), &check.rule) {
                (Some(name), _) => name.to_string(),
                (None, RuleRef::Compiled(compiled_rule)) => compiled_rule.path.to_string(),
                (None, RuleRef::Override(_)) => "override".to_owned(),
            };
            let several = check.tiers().len() > 1;
            for tier in check.tiers() {
                item(&mut policies, &policy_name(&name, tier, several), &policy(tier));
            }
            let left = format!(";r={};t={}", status.remaining, seconds(status.reset));
            item(&mut limits, &policy_name(&name, current.tier, several), &left);
        }
        if policies.is_empty() {
            return Vec::new();
        }
        vec![
            Header { name: "RateLimit-Policy", value: policies },
            Header { name: "RateLimit", value: limits },
        ]
    }

    /// The wait after which this very request could pass, if nobody else takes any: every limit that is over has to let
    /// it pass, and of quotas, where being over needs all of them, one.
    fn retry_after(&self) -> Vec<Header<'static>> {
        if !self.over {
            return Vec::new();
        }
        let waits = |quota: bool| {
            self.matched.plans.iter().zip(self.statuses).filter_map(move |(plan, status)| match plan {
                Plan::Limited(check) if status.code == Code::OverLimit => {
                    let is_quota = self.all_quotas || self.matched.checks[*check].rule.quota_mode();
                    (is_quota == quota).then_some(status.reset?)
                }
                _ => None,
            })
        };
        let wait = waits(false).max().or_else(|| waits(true).min());
        vec![Header { name: "Retry-After", value: seconds(wait).to_string() }]
    }
}

/// Rounded up: a client that comes back when the header says must not be early.
fn seconds(period: Option<Period>) -> u64 {
    period.unwrap_or_default().as_secs_ceil()
}

/// The name of a tier's policy: the rule's, with the tier's period behind it where the rule has several.
fn policy_name(rule: &str, tier: &Tier, several: bool) -> String {
    if several { format!("{rule}-{}", tier.period) } else { rule.to_owned() }
}

/// The parameters of a tier's policy. The draft counts windows in whole seconds; where a period is none, it is left out,
/// which the draft allows. `burst` is ours: the draft has no word for a bucket, and readers skip what they do not know.
fn policy(tier: &Tier) -> String {
    let mut parameters = format!(";q={}", tier.requests);
    if tier.period.as_nanos().is_multiple_of(NANOS_PER_SECOND) {
        let _ = write!(parameters, ";w={}", tier.period.as_secs_ceil());
    }
    if let Algorithm::TokenBucket(bucket) = tier.algorithm {
        let _ = write!(parameters, ";burst={}", bucket.burst);
    }
    parameters
}

/// Adds an item to a list of structured fields (RFC 9651): a string, which is printable ASCII with `"` and `\` escaped,
/// and its parameters.
fn item(list: &mut String, name: &str, parameters: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push('"');
    for char in name.chars() {
        match char {
            '"' | '\\' => list.extend(['\\', char]),
            ' '..='~' => list.push(char),
            _ => list.push('?'),
        }
    }
    list.push('"');
    list.push_str(parameters);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_structured_fields_want_it() {
        let mut list = String::new();
        item(&mut list, r#"a "b" \ ü"#, ";q=1");
        item(&mut list, "c", "");
        assert_eq!(list, r#""a \"b\" \\ ?";q=1, "c""#);
    }
}
