//! The answer to a request, from the answers of its counters.

use serde_json::{Value, json};
use smallvec::SmallVec;

use super::{
    decision::Decision,
    descriptor::{Descriptor, Request},
    headers::{Header, HeaderStyle, Told},
    matched::{LimitCheck, Matched, Plan},
    rule::Metadata,
    tier::{OverLimitPolicy, Tier},
    units::Period,
};

/// The answer to a request.
#[derive(Debug)]
pub struct Verdict<'a> {
    /// Whether the request may pass.
    pub code: Code,
    /// The request was over, but is let through because the whole service runs in shadow mode.
    pub shadowed: bool,
    /// One for each descriptor, in the request's order.
    pub statuses: SmallVec<[Status<'a>; 2]>,
    /// Headers for the response to the end user, in the order to be written.
    pub headers: Vec<Header<'a>>,
    /// What the proxy is told about the request.
    pub metadata: Option<Metadata>,
}

/// Whether something may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It may.
    Ok,
    /// It may not.
    OverLimit,
}

/// The answer for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status<'a> {
    /// Whether it may pass.
    pub code: Code,
    /// The limit that is reported; none if nothing was counted.
    pub limit: Option<CurrentLimit<'a>>,
    /// Requests that would still be admitted; 2^32-1 where there is no limit to them, 0 where nothing was counted.
    pub remaining: u32,
    /// With a limit: as [`Decision::reset`].
    pub reset: Option<Period>,
}

/// The limit that a status reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurrentLimit<'a> {
    /// What the rule is called.
    pub name: Option<&'a str>,
    /// The tier.
    pub tier: &'a Tier,
}

/// What the settings have to say about answers.
#[derive(Clone, Debug, Default)]
pub struct Modes {
    /// `SHADOW_MODE`: the request passes, whatever its descriptors say.
    pub shadow: bool,
    /// `QUOTA_MODE`: every descriptor that has a limit, or none, is a quota.
    pub quota: bool,
    /// The headers to send with every answer.
    pub headers: Vec<HeaderStyle>,
    /// `RESPONSE_DYNAMIC_METADATA`: tell the proxy about the request.
    pub metadata: bool,
}

// === impl Verdict ===

impl<'a> Verdict<'a> {
    /// The answer to `request`, which met the rules of `matched` and was counted as `taken`, one for each of its asks.
    #[must_use]
    pub fn new(
        request: &Request<'_>,
        matched: &'a Matched<'_>,
        decision: &[Decision],
        modes: &'a Modes,
    ) -> Self {
        let statuses: SmallVec<[Status<'a>; 2]> = matched
            .plans
            .iter()
            .map(|plan| match plan {
                Plan::Free => Status::free(),
                Plan::Unlimited(_) => Status::unlimited(),
                Plan::Limited(i) => Status::counted(&matched.checks[*i], &decision[*i]),
            })
            .collect();
        let tally = Tally::of(matched, &statuses, modes);
        let over = tally.over && !modes.shadow;
        let told =
            Told { matched, statuses: &statuses, all_quotas: modes.quota, nearest: tally.nearest, over };
        let headers = modes.headers.iter().flat_map(|style| style.headers(&told)).collect();
        Self {
            code: if over { Code::OverLimit } else { Code::Ok },
            shadowed: tally.over && modes.shadow,
            headers,
            metadata: modes.metadata.then(|| describe(request, matched, &statuses)),
            statuses,
        }
    }
}

/// What the statuses come to.
struct Tally {
    over: bool,
    /// The status that the headers tell about: the last that is over and no quota, else the one with the lowest
    /// remaining, the first on ties.
    nearest: Option<usize>,
}

impl Tally {
    fn of(matched: &Matched<'_>, statuses: &[Status<'_>], modes: &Modes) -> Self {
        let (mut limits_over, mut quotas, mut quotas_over) = (0, 0, 0);
        let mut nearest: Option<(usize, u32)> = None;
        for (i, (plan, status)) in matched.plans.iter().zip(statuses).enumerate() {
            let least = nearest.map_or(u32::MAX, |(_, least)| least);
            if status.limit.is_some() && status.remaining < least {
                nearest = Some((i, status.remaining));
            }
            let over = status.code == Code::OverLimit;
            let quota = match plan {
                Plan::Unlimited(_) => continue,
                Plan::Free => modes.quota,
                Plan::Limited(check) => modes.quota || matched.checks[*check].rule.quota_mode(),
            };
            if quota {
                quotas += 1;
                quotas_over += usize::from(over);
            } else if over {
                limits_over += 1;
                nearest = Some((i, 0));
            }
        }
        Self {
            over: limits_over > 0 || (quotas > 0 && quotas == quotas_over),
            nearest: nearest.map(|(i, _)| i),
        }
    }
}

// === impl Status ===

impl<'a> Status<'a> {
    /// No rule, or a rule without a limit.
    const fn free() -> Self {
        Self { code: Code::Ok, limit: None, remaining: 0, reset: None }
    }

    const fn unlimited() -> Self {
        Self { code: Code::Ok, limit: None, remaining: u32::MAX, reset: None }
    }

    fn counted(check: &'a LimitCheck<'_>, decision: &Decision) -> Self {
        let rule = &check.rule;
        Self {
            code: if decision.over && !rule.shadow_mode() { Code::OverLimit } else { Code::Ok },
            limit: Some(CurrentLimit { name: rule.name(), tier: &check.tiers()[decision.tier] }),
            remaining: match check.over_limit_policy() {
                // the reference says so, even where fewer hits would have fitted
                OverLimitPolicy::Count if decision.over => 0,
                _ => decision.remaining,
            },
            reset: Some(decision.reset),
        }
    }
}

/// The reference's dynamic metadata: the request as it was understood, and the metadata of the rules that passed.
fn describe(request: &Request<'_>, matched: &Matched<'_>, statuses: &[Status<'_>]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("domain".into(), request.domain.into());
    let descriptors = request.descriptors.iter().map(describe_descriptor).collect();
    metadata.insert("descriptors".into(), Value::Array(descriptors));
    if request.hits != 0 {
        metadata.insert("hitsAddend".into(), request.hits.into());
    }
    let mut passed = Metadata::new();
    for (plan, status) in matched.plans.iter().zip(statuses) {
        if let (Plan::Limited(check), Code::Ok) = (plan, status.code)
            && let Some(more) = &matched.checks[*check].rule.get().metadata
        {
            merge(&mut passed, more);
        }
    }
    if !passed.is_empty() {
        metadata.insert("metadata".into(), Value::Object(passed));
    }
    metadata
}

fn describe_descriptor(descriptor: &Descriptor<'_>) -> Value {
    let entries: Vec<String> = descriptor.entries.iter().map(ToString::to_string).collect();
    let mut described = Metadata::new();
    described.insert("entries".into(), json!(entries));
    if let Some(limit) = descriptor.limit {
        // the reference prints the message in protobuf's text format
        let text = format!("requests_per_unit:{} unit:{}", limit.requests, limit.unit);
        described.insert("limit".into(), text.into());
    }
    if let Some(hits) = descriptor.hits {
        described.insert("hitsAddend".into(), hits.into());
    }
    Value::Object(described)
}

/// Adds what `more` has and `metadata` has not, at every depth.
fn merge(metadata: &mut Metadata, more: &Metadata) {
    for (key, value) in more {
        match (metadata.get_mut(key), value) {
            (None, value) => {
                metadata.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(inner)), Value::Object(more)) => merge(inner, more),
            (Some(_), _) => {}
        }
    }
}
