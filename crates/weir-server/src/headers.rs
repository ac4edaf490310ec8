//! The response headers that report a request's limits to the end user.

use std::fmt::Write as _;

use weir_limit::{Code, InFlightLimit, NANOS_PER_SECOND, Period, Tier, Verdict};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHeaders {
    /// The styles, in the order to be written. None sends no headers.
    pub styles: Vec<HeaderStyle>,
}

/// A header for the response to the end user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name, as the settings spell it.
    pub name: &'a str,
    pub value: String,
    /// Whether it is for the request that goes on to the upstream, and not for the response.
    pub for_request: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// Limit, remaining and reset of the descriptor nearest to its limit, as envoyproxy/ratelimit sends them.
    LimitRemainingReset(HeaderNames),
    /// The same for the request that goes on to the upstream.
    LimitRemainingResetForRequest(HeaderNames),
    /// `RateLimit-Policy` with all tiers, `RateLimit` with the rest of each rule: draft-ietf-httpapi-ratelimit-headers.
    Ietf,
    /// `Retry-After` (RFC 9110) in whole seconds, if the request is rejected, and may be admitted later.
    RetryAfter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    pub limit: String,
    pub remaining: String,
    /// Carries the whole seconds until the limit is reset.
    pub reset: String,
}

// === impl ResponseHeaders ===

impl ResponseHeaders {
    /// Renders the headers for `verdict`. Allocates nothing if there are no styles.
    pub fn render(&self, verdict: &Verdict<'_>) -> Vec<Header<'_>> {
        self.styles.iter().flat_map(|style| style.render(verdict)).collect()
    }
}

// === impl HeaderNames ===

/// The defaults of envoyproxy/ratelimit, after an early IETF draft.
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
    fn render(&self, verdict: &Verdict<'_>) -> Vec<Header<'_>> {
        match self {
            Self::LimitRemainingReset(names) => limit_remaining_reset(names, verdict, false),
            Self::LimitRemainingResetForRequest(names) => limit_remaining_reset(names, verdict, true),
            Self::Ietf => ietf(verdict),
            Self::RetryAfter => retry_after(verdict),
        }
    }
}

fn limit_remaining_reset<'n>(
    names: &'n HeaderNames,
    verdict: &Verdict<'_>,
    for_request: bool,
) -> Vec<Header<'n>> {
    let status = verdict.nearest.map(|nearest| &verdict.statuses[nearest]);
    let Some((limit, status)) = status.and_then(|status| Some((status.limit?, status))) else {
        return Vec::new();
    };
    let header = |name, value: u64| Header { name, value: value.to_string(), for_request };
    let mut headers =
        vec![header(&names.limit, limit.requests.into()), header(&names.remaining, status.remaining.into())];
    if !status.is_closed() {
        headers.push(header(&names.reset, seconds(status.reset)));
    }
    headers
}

fn ietf(verdict: &Verdict<'_>) -> Vec<Header<'static>> {
    let (mut policies, mut limits) = (String::new(), String::new());
    for status in &verdict.statuses {
        let Some(limit) = status.limit else { continue };
        let tiers = limit.rule.tiers();
        let (name, several) = (limit.rule.label(), tiers.len() > 1);
        for tier in tiers {
            // of a pool, the member's share
            let is_reported = limit.tier.is_some_and(|reported| std::ptr::eq(tier, reported));
            let requests = if is_reported { limit.requests } else { tier.requests };
            push_item(&mut policies, &policy_name(&name, tier, several), &policy_parameters(tier, requests));
        }
        if let Some(tier) = limit.tier {
            let mut left = format!(";r={}", status.remaining);
            if !status.is_closed() {
                // writing to a string does not fail
                let _ = write!(left, ";t={}", seconds(status.reset));
            }
            push_item(&mut limits, &policy_name(&name, tier, several), &left);
        }
    }
    for InFlightLimit { rule, most, left } in verdict.in_flight.iter().flat_map(|places| &places.limits) {
        let name = format!("{}-in-flight", rule.label());
        push_item(&mut policies, &name, &format!(";q={most};qu=\"concurrent-requests\""));
        push_item(&mut limits, &name, &format!(";r={left}"));
    }
    if policies.is_empty() {
        return Vec::new();
    }
    let header = |name, value| Header { name, value, for_request: false };
    vec![header("RateLimit-Policy", policies), header("RateLimit", limits)]
}

fn retry_after(verdict: &Verdict<'_>) -> Vec<Header<'static>> {
    let wait = verdict.retry_after().filter(|_| verdict.code == Code::OverLimit);
    let header = |wait: Period| Header {
        name: "Retry-After",
        value: seconds(Some(wait)).to_string(),
        for_request: false,
    };
    wait.into_iter().map(header).collect()
}

/// Rounded up: a client that retries when the header says must not be early.
fn seconds(period: Option<Period>) -> u64 {
    period.unwrap_or_default().as_secs_ceil()
}

fn policy_name(rule: &str, tier: &Tier, several: bool) -> String {
    match tier.calendar() {
        _ if !several => rule.to_owned(),
        Some(calendar) => format!("{rule}-{}", calendar.unit.name()),
        None => format!("{rule}-{}", tier.period),
    }
}

/// The draft has windows of whole seconds and allows omitting others. `burst` is an extension that readers may ignore.
fn policy_parameters(tier: &Tier, requests: u32) -> String {
    let mut parameters = format!(";q={requests}");
    let window = tier.length();
    if window.as_nanos().is_multiple_of(NANOS_PER_SECOND) {
        let _ = write!(parameters, ";w={}", window.as_secs_ceil());
    }
    if tier.refills() {
        let _ = write!(parameters, ";burst={}", tier.capacity());
    }
    parameters
}

/// Appends a string, printable ASCII with `"` and `\` escaped, and its parameters to a structured list (RFC 9651).
fn push_item(list: &mut String, name: &str, parameters: &str) {
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
    fn names_are_escaped_for_structured_fields() {
        let mut list = String::new();
        push_item(&mut list, r#"a "b" \ ü"#, ";q=1");
        push_item(&mut list, "c", "");
        assert_eq!(list, r#""a \"b\" \\ ?";q=1, "c""#);
    }
}
