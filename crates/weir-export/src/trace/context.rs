//! The parent of a request, from its headers: b3 in one header or in several, or W3C trace context.
//!
//! b3 takes precedence, as in envoyproxy/ratelimit. (<https://github.com/openzipkin/b3-propagation>,
//! <https://www.w3.org/TR/trace-context/>)

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Invalid headers count as absent. A caller that leaves the sampling open does not sample, as in envoyproxy/ratelimit.
pub(super) fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let get = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let b3 = get("b3").and_then(b3_single);
    let b3 = b3.or_else(|| {
        let sampled = get("x-b3-flags") == Some("1") || matches!(get("x-b3-sampled"), Some("1" | "true"));
        b3_context(get("x-b3-traceid")?, get("x-b3-spanid")?, sampled)
    });
    b3.or_else(|| {
        let propagator = TraceContextPropagator::new();
        let context = propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let parent = Some(context.span().span_context().clone()).filter(SpanContext::is_valid)?;
        // the propagator reads the first header only
        let states = headers.get_all("tracestate").iter().filter_map(|state| state.to_str().ok());
        let state = states.collect::<Vec<_>>().join(",").parse().unwrap_or_default();
        Some(SpanContext::new(parent.trace_id(), parent.span_id(), parent.trace_flags(), true, state))
    })
}

/// Parses `{trace id}-{span id}`, and `-{sampled}` and `-{parent span id}` after it.
fn b3_single(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (trace_id, span_id) = (parts.next()?, parts.next()?);
    let sampled = match parts.next() {
        // `d` is debug: sampled in any case
        Some("1" | "true" | "d") => true,
        None | Some("0" | "false") => false,
        Some(_) => return None,
    };
    if parts.next().is_some_and(|parent| !is_hex(parent, 16)) || parts.next().is_some() {
        return None;
    }
    b3_context(trace_id, span_id, sampled)
}

fn b3_context(trace_id: &str, span_id: &str, sampled: bool) -> Option<SpanContext> {
    if !(is_hex(trace_id, 32) || is_hex(trace_id, 16)) || !is_hex(span_id, 16) {
        return None;
    }
    let ids = (TraceId::from_hex(trace_id).ok()?, SpanId::from_hex(span_id).ok()?);
    let flags = TraceFlags::default().with_sampled(sampled);
    Some(SpanContext::new(ids.0, ids.1, flags, true, TraceState::NONE)).filter(SpanContext::is_valid)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
    const IDS: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    fn of(headers: &[(&'static str, &str)]) -> Option<SpanContext> {
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
    fn sampled(sampled: bool) -> Option<SpanContext> {
        let flags = TraceFlags::default().with_sampled(sampled);
        Some(SpanContext::new(TRACE.into(), SPAN.into(), flags, true, TraceState::NONE))
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
        ] {
            assert_eq!(of(&[("traceparent", &text)]), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_passed_on_if_it_is_valid() {
        let parent = ("traceparent", &*format!("00-{IDS}-01"));
        let state = |states: &[&str]| {
            let states = states.iter().map(|state| ("tracestate", *state));
            of(&states.chain([parent]).collect::<Vec<_>>()).expect("a parent").trace_state().header()
        };
        assert_eq!(state(&["a=1,b=2", " c=3 "]), "a=1,b=2,c=3");
        assert_eq!(state(&["a"]), "");
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
        assert_eq!(short.trace_id(), 0xa3ce_929d_0e0e_4736_u128.into());
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
