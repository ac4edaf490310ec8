//! The parent of a request, from its headers: b3 in one header or in several, or W3C trace context.
//!
//! b3 takes precedence, as in envoyproxy/ratelimit. (<https://github.com/openzipkin/b3-propagation>,
//! <https://www.w3.org/TR/trace-context/>)

use http::HeaderMap;

/// The most bytes of a `tracestate` that is passed on; a longer one is left out, as the specification allows.
const MAX_STATE: usize = 512;

/// The span of the caller that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    /// Not 0.
    pub(super) trace_id: u128,
    /// Not 0.
    pub(super) span_id: u64,
    /// Whether the caller records the trace. One that leaves the decision open does not, as in envoyproxy/ratelimit.
    pub(super) sampled: bool,
    /// The `tracestate`; empty without one.
    pub(super) state: String,
}

#[derive(Debug)]
pub(super) struct SpanPlace {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    /// None for the root of a trace.
    pub(super) parent: Option<Parent>,
}

/// Invalid headers count as absent.
pub(super) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let get = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let b3 = get("b3").and_then(b3_single);
    let b3 = b3.or_else(|| {
        let (trace_id, span_id) = (get("x-b3-traceid")?, get("x-b3-spanid")?);
        let sampled = get("x-b3-flags") == Some("1") || matches!(get("x-b3-sampled"), Some("1" | "true"));
        Some(Parent {
            trace_id: b3_trace_id(trace_id)?,
            span_id: span_id_of(span_id)?,
            sampled,
            state: String::new(),
        })
    });
    b3.or_else(|| {
        let parent = trace_parent(get("traceparent")?)?;
        Some(Parent { state: trace_state(headers), ..parent })
    })
}

/// Parses `{trace id}-{span id}`, and `-{sampled}` and `-{parent span id}` after it.
fn b3_single(text: &str) -> Option<Parent> {
    let mut parts = text.split('-');
    let (trace_id, span_id) = (b3_trace_id(parts.next()?)?, span_id_of(parts.next()?)?);
    let sampled = match parts.next() {
        // `d` is debug: sampled in any case
        Some("1" | "true" | "d") => true,
        None | Some("0" | "false") => false,
        Some(_) => return None,
    };
    match (parts.next(), parts.next()) {
        (Some(parent), None) if hex(parent, 16).is_none() => None,
        (_, Some(_)) => None,
        _ => Some(Parent { trace_id, span_id, sampled, state: String::new() }),
    }
}

fn b3_trace_id(text: &str) -> Option<u128> {
    hex(text, 32).or_else(|| hex(text, 16)).filter(|id| *id != 0)
}

fn span_id_of(text: &str) -> Option<u64> {
    let id = u64::try_from(hex(text, 16)?).ok()?;
    (id != 0).then_some(id)
}

/// Parses `{version}-{trace id}-{span id}-{flags}`. Later versions may have more after it.
fn trace_parent(text: &str) -> Option<Parent> {
    let mut parts = text.split('-');
    let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let version = hex(version, 2).filter(|version| *version != 0xff && is_lower)?;
    if version == 0 && parts.next().is_some() {
        return None;
    }
    Some(Parent {
        trace_id: hex(trace_id, 32).filter(|id| *id != 0)?,
        span_id: span_id_of(span_id)?,
        sampled: hex(flags, 2)? & 1 == 1,
        state: String::new(),
    })
}

fn trace_state(headers: &HeaderMap) -> String {
    let mut state = String::new();
    for header in headers.get_all("tracestate") {
        let Ok(text) = header.to_str() else { return String::new() };
        for member in text.split(',').map(str::trim).filter(|member| !member.is_empty()) {
            let is_valid =
                member.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
            if !is_valid || state.len() + member.len() >= MAX_STATE {
                return String::new();
            }
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(member);
        }
    }
    state
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_valid = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_valid { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
    const IDS: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    fn of(headers: &[(&'static str, &str)]) -> Option<Parent> {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers.iter().map(header) {
            map.append(name, value);
        }
        parent(&map)
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with an option")]
    fn sampled(sampled: bool) -> Option<Parent> {
        Some(Parent { trace_id: TRACE, span_id: SPAN, sampled, state: String::new() })
    }

    #[test]
    fn a_traceparent_has_ids_and_a_flag() {
        assert_eq!(of(&[("traceparent", &format!("00-{IDS}-01"))]), sampled(true));
        assert_eq!(of(&[("traceparent", &format!("00-{IDS}-00"))]), sampled(false));
        // the other flags, and what later versions may add
        assert_eq!(of(&[("traceparent", &format!("00-{IDS}-fe"))]), sampled(false));
        assert_eq!(of(&[("traceparent", &format!("cc-{IDS}-03-what-follows"))]), sampled(true));
    }

    #[test]
    fn an_invalid_traceparent_counts_as_absent() {
        for text in [
            String::new(),
            "00".into(),
            format!("00-{IDS}"),
            format!("00-{IDS}-01-more"),
            format!("ff-{IDS}-01"),
            format!("00-{}-01", IDS.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
            format!("00-+{}-01", &IDS[1..]),
            format!("0-{IDS}-01"),
        ] {
            assert_eq!(of(&[("traceparent", &text)]), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_passed_on_if_it_is_valid() {
        let parent = ("traceparent", &*format!("00-{IDS}-01"));
        let state = |states: &[&str]| {
            let states = states.iter().map(|state| ("tracestate", *state));
            of(&states.chain([parent]).collect::<Vec<_>>()).expect("a parent").state
        };
        assert_eq!(state(&["a=1,b=2", " c=3 "]), "a=1,b=2,c=3");
        assert_eq!(state(&["a"]), "");
        assert_eq!(state(&[&format!("a={}", "x".repeat(600))]), "");
    }

    #[test]
    fn b3_has_one_header_or_several() {
        assert_eq!(of(&[("b3", &format!("{IDS}-1"))]), sampled(true));
        assert_eq!(of(&[("b3", &format!("{IDS}-d"))]), sampled(true));
        assert_eq!(of(&[("b3", &format!("{IDS}-1-05e3ac9a4f6e3b90"))]), sampled(true));
        assert_eq!(of(&[("b3", &format!("{IDS}-0"))]), sampled(false));
        // undecided
        assert_eq!(of(&[("b3", IDS)]), sampled(false));
        let (trace, span) = IDS.split_once('-').expect("two ids");
        let several = |more: &[(&'static str, &str)]| {
            of(&[&[("x-b3-traceid", trace), ("x-b3-spanid", span)], more].concat())
        };
        assert_eq!(several(&[("x-b3-sampled", "1")]), sampled(true));
        assert_eq!(several(&[("x-b3-sampled", "0")]), sampled(false));
        assert_eq!(several(&[("x-b3-flags", "1")]), sampled(true));
        assert_eq!(several(&[]), sampled(false));
        let short = of(&[("b3", "a3ce929d0e0e4736-00f067aa0ba902b7-1")]).expect("64 bits");
        assert_eq!(short.trace_id, 0xa3ce_929d_0e0e_4736);
    }

    #[test]
    fn b3_takes_precedence_unless_it_has_no_ids() {
        let other = format!("00-{}-{}-00", "1".repeat(32), "2".repeat(16));
        assert_eq!(of(&[("traceparent", &other), ("b3", &format!("{IDS}-1"))]), sampled(true));
        let w3c = format!("00-{IDS}-01");
        for ids in
            ["0", "1", "d", "x", "-", &format!("{IDS}-x"), &format!("{IDS}-1-x"), &format!("{IDS}-1-1-1")]
        {
            assert_eq!(of(&[("b3", ids), ("traceparent", &w3c)]), sampled(true), "{ids}");
            assert_eq!(of(&[("b3", ids)]), None, "{ids}");
        }
    }
}
