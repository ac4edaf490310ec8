//! The debug port: plain text pages, for people and scripts.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};

use super::{
    admin::{Needs, Permission},
    context::ServiceContext,
    hot,
    pages::{PageSource, Pages},
};
use weir_config::RuleDescription;
use weir_export::snapshot::{StatValue, snapshot};
use weir_limit::{AlgorithmKind, Bucket, CompiledRule, GiveBack, Refill, RuleSet, Tier};
use weir_limiter::Limiter;
use weir_observe::{
    Stats,
    text::{escaped, escaped_json},
};
use weir_store::Store;

const NO_PPROF: &str = "\
weir has no pprof endpoint. Profile the process with perf or heaptrack instead:
docs/operations.md, section \"Profiles\".
";

/// Returns all pages but `/metrics`.
pub(super) fn router<S: Store>(
    context: &ServiceContext<S>,
    pages: &Pages,
    permission: &Arc<Permission>,
) -> Router {
    let (stats, limiter) = (Arc::clone(&context.stats), Arc::clone(&context.limiter));
    let stats = pages.source(move || stats_page(&stats).into_bytes());
    let rules = {
        let limiter = Arc::clone(&limiter);
        pages.source(move || rules_page(&limiter).into_bytes())
    };
    let described = {
        let limiter = Arc::clone(&limiter);
        pages.source(move || described_page(&limiter).into_bytes())
    };
    let described_json = pages.source(move || described_json_page(&limiter).into_bytes());
    let hot = {
        let (limiter, clock) = (Arc::clone(&context.limiter), Arc::clone(&context.clock));
        pages.source(move || hot::page(limiter.hot_keys(), clock.now()).into_bytes())
    };
    let hot_json = {
        let (limiter, clock) = (Arc::clone(&context.limiter), Arc::clone(&context.clock));
        pages.source(move || hot::json_page(limiter.hot_keys(), clock.now()).into_bytes())
    };
    let own = Router::new()
        .route("/hot", get(text_or_json).with_state((hot, hot_json)))
        .route("/rules", get(text_or_json).with_state((described, described_json)));
    let of_reference = Router::new()
        .route("/stats", get(text).with_state(stats))
        .route("/rlconfig", get(text).with_state(rules));
    let of_reference =
        if permission.is_declared() { permission.guard(of_reference, Needs::Read) } else { of_reference };
    Router::new()
        .route("/debug/pprof", get(no_pprof))
        .route("/debug/pprof/{*page}", get(no_pprof))
        .route("/debug/pprof/", get(no_pprof))
        .merge(permission.guard(own, Needs::Read))
        .merge(of_reference)
}

/// Responds to the paths of Go's profiles, which envoyproxy/ratelimit has, with a pointer to the documentation.
async fn no_pprof() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, NO_PPROF)
}

async fn text(State(page): State<Arc<PageSource>>) -> Response {
    match page.get().await {
        Some(page) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn text_or_json(
    State((in_words, as_json)): State<(Arc<PageSource>, Arc<PageSource>)>,
    headers: HeaderMap,
) -> Response {
    let accepts_json = headers.get_all(ACCEPT).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|value| value.split(',').any(|kind| kind.trim().starts_with("application/json")))
    });
    let (page, kind) =
        if accepts_json { (as_json, "application/json") } else { (in_words, "text/plain; charset=utf-8") };
    match page.get().await {
        Some(page) => ([(CONTENT_TYPE, kind)], page).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn describe<S: Store, T>(limiter: &Limiter<S>, describe: impl Fn(RuleDescription<'_>) -> T) -> Vec<T> {
    let shared = limiter.store().shared_counts();
    let all = |rules: &RuleSet| {
        let description = |compiled: &CompiledRule| {
            let scope = rules.scope_of(&compiled.domain).unwrap_or_default().max(limiter.scope());
            describe(RuleDescription { compiled, scope, shared })
        };
        rules.rules().iter().map(description).collect()
    };
    limiter.rules(all).unwrap_or_default()
}

fn described_page<S: Store>(limiter: &Limiter<S>) -> String {
    let rules = describe(limiter, |description| description.lines().join("\n") + "\n");
    rules.join("\n")
}

fn described_json_page<S: Store>(limiter: &Limiter<S>) -> String {
    let json = serde_json::Value::from(describe(limiter, |description| description.json())).to_string();
    escaped_json(&json).into_owned() + "\n"
}

fn stats_page(stats: &Stats) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in snapshot(stats) {
        let name = escaped(&name);
        match value {
            StatValue::Counter(value) | StatValue::Gauge(value) => lines.push(format!("{name}: {value}\n")),
            StatValue::Timing(times) => {
                lines.push(format!("{name}.count: {}\n", times.count()));
                lines.push(format!("{name}.sum_ms: {:.3}\n", times.sum().as_secs_f64() * 1e3));
            }
        }
    }
    lines.sort_unstable();
    lines.concat()
}

/// Without rules the page is empty, like envoyproxy/ratelimit's.
fn rules_page<S: Store>(limiter: &Limiter<S>) -> String {
    limiter.rules(|rules| rules.rules().iter().map(rule_line).collect()).unwrap_or_default()
}

/// The reference's line, with additions: `per=90s` for a period that is no unit, `in_flight=4`, and ` and ` between tiers.
fn rule_line(compiled: &CompiledRule) -> String {
    let rule = &compiled.rule;
    let in_flight = rule.in_flight.map(|limit| format!("in_flight={}", limit.most));
    let tiers: Vec<String> = in_flight.into_iter().chain(rule.tiers().iter().map(tier)).collect();
    let limit = match &*tiers {
        [] => "unit=UNKNOWN requests_per_unit=0".to_owned(),
        tiers => tiers.join(" and "),
    };
    let line = format!(
        "{}: {limit}, shadow_mode: {}, quota_mode: {}{}",
        compiled.path,
        rule.shadow_mode,
        rule.quota_mode,
        if compiled.give_back == GiveBack::Deny { ", give_back: deny" } else { "" }
    );
    // a value may contain a line break; the rule stays on one line
    escaped(&line).into_owned() + "\n"
}

fn tier(tier: &Tier) -> String {
    let limit = match tier.unit().filter(|_| tier.calendar.is_none()) {
        Some(unit) => format!("unit={unit} requests_per_unit={}", tier.requests),
        None => format!("unit=UNKNOWN requests_per_unit={} per={}", tier.requests, tier.per()),
    };
    let mut line = limit;
    let kind = tier.algorithm.kind();
    if kind != AlgorithmKind::default() {
        line.extend([" algorithm=", kind.name()]);
    }
    if tier.refills() {
        let Bucket { burst, refill, strict } = tier.bucket();
        // writing to a String cannot fail
        let _ = write!(line, " burst={burst}");
        line += if refill == Refill::Step { " refill=step" } else { "" };
        line += if strict { " strict=true" } else { "" };
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleNode, RuleSet, Values};

    fn line(limit: Limit) -> String {
        let rule = Rule { shadow_mode: true, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k\ney", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        rule_line(&rules.rules()[0])
    }

    #[test]
    fn a_rule_is_one_line() {
        let tier = |requests, seconds| Tier::fixed_window(requests, Period::from_secs(seconds));
        let bucket = Bucket { burst: 9, refill: Refill::Step, strict: true };
        let bucket = Tier::token_bucket(3, Period::from_secs(60), bucket);
        assert_eq!(
            line(Limit::Tiers { tiers: [bucket].into(), over_limit_policy: OverLimitPolicy::Ignore }),
            "d.k\\ney: unit=MINUTE requests_per_unit=3 algorithm=token_bucket burst=9 refill=step strict=true, \
             shadow_mode: true, quota_mode: false\n"
        );
        let tiers = vec![tier(3, 90), tier(100, 3600)];
        assert_eq!(
            line(Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore }),
            "d.k\\ney: unit=UNKNOWN requests_per_unit=3 per=90s and unit=HOUR requests_per_unit=100, \
             shadow_mode: true, quota_mode: false\n"
        );
        assert_eq!(
            line(Limit::Unlimited),
            "d.k\\ney: unit=UNKNOWN requests_per_unit=0, shadow_mode: true, quota_mode: false\n"
        );
    }
}
