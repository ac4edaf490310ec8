//! `GET /v1/attention`: what needs a person, the worst first.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::{extract::State, http::Uri, response::Response};
use serde_json::{Map, Value, json};
use weir_limit::{Origin, Period};
use weir_observe::hot_keys::{By, HotKey};
use weir_store::Store;

use super::{
    api::AdminApi,
    hot,
    instance::clock_distance,
    problem::Problem,
    query::{ListPart, MAX_LIMIT, Query},
    rules::words,
    unmatched::unmatched,
};

/// The most findings.
const MOST: usize = 1_000;

/// Of one kind, so that one does not hide the others.
const MOST_OF_KIND: usize = 200;

/// A hot key is near its limit from this share on.
const NEAR: f32 = 0.9;

/// A clock this far away from the store's, in seconds, is told.
const FAR: f64 = 1.0;

/// Rules that nothing has matched are told after this time.
const NEVER_AFTER: Period = Period::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Error,
    Warning,
    Info,
}

struct AttentionFinding {
    severity: Severity,
    kind: &'static str,
    what: String,
    place: Map<String, Value>,
    advice: &'static str,
}

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let part = Query::parse(&uri, &[])?.part()?;
    api.aside(move |api| part_of(api, part)).await
}

/// For the stream.
pub(super) fn event<S: Store>(api: &AdminApi<S>) -> Value {
    part_of(api, ListPart { from: 0, limit: MAX_LIMIT.min(100) })
}

fn part_of<S: Store>(api: &AdminApi<S>, part: ListPart) -> Value {
    let (findings, next) = part.of(findings(api).into_iter());
    json!({ "items": findings.into_iter().map(AttentionFinding::json).collect::<Vec<_>>(), "next": next })
}

fn findings<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    let mut findings = of_rules(api);
    findings.extend(of_store(api));
    findings.extend(near_limits(api).into_iter().take(MOST_OF_KIND));
    findings.extend(of_unmatched(api).into_iter().take(MOST_OF_KIND));
    findings.extend(never_matched(api).into_iter().take(MOST_OF_KIND));
    // stable: those of one severity stay in their order
    findings.sort_by_key(|finding| finding.severity);
    findings.truncate(MOST);
    findings
}

fn of_rules<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    let stats = &api.context.stats;
    let mut findings = Vec::new();
    if stats.config_rejected.get() == 1 {
        const ADVICE: &str = "Correct the files, with `weir check`; the rules before them stay in force.";
        let finding = |what: String| AttentionFinding::new(Severity::Error, "rules_rejected", what, ADVICE);
        let errors = api.context.audit.rule_errors();
        findings.extend(errors.iter().take(MOST_OF_KIND).map(|error| {
            let what = format!("The newest rules are not in force: {}.", error.message);
            finding(what).at("file", json!(error.file)).at("line", json!(error.line))
        }));
        if errors.is_empty() {
            findings.push(finding("The newest rules are not in force: they have errors.".to_owned()));
        }
    }
    if api.context.limiter.rules(|rules| rules.rules().is_empty()).unwrap_or(true) {
        let what = "No rules are in force: every request is admitted, or fails.".to_owned();
        let advice = "Write a rule file, or point RUNTIME_ROOT or --config at them.";
        findings.push(AttentionFinding::new(Severity::Warning, "no_rules", what, advice));
    }
    if stats.names_rejected.get() > 0 {
        let what =
            format!("{} descriptors have no name of their own in the stats.", stats.names_rejected.get());
        let advice = "Take `detailed_metric` and `value_to_metric` off keys with many values.";
        findings.push(AttentionFinding::new(Severity::Info, "names_full", what, advice));
    }
    findings
}

fn of_store<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    let facts = api.traffic.store();
    let mut findings = Vec::new();
    if facts.state() != "ok" {
        let what = format!("{} does not answer: decisions are made by on_store_failure.", facts.name);
        let advice = "Look at the store, and at the log of this instance for the reason.";
        findings.push(AttentionFinding::new(Severity::Error, "store_unreachable", what, advice));
    }
    if let Some(distance) = clock_distance(api).filter(|distance| distance.abs() >= FAR) {
        let side = if distance > 0.0 { "ahead of" } else { "behind" };
        let what = format!("The clock is {:.1} s {side} the store's.", distance.abs());
        let advice = "Synchronize the clocks, with NTP.";
        findings.push(AttentionFinding::new(Severity::Warning, "clock", what, advice));
    }
    // of 500,000 counters, these are the last 25,000
    if facts.most > 0 && facts.held >= facts.most - facts.most / 20 {
        let what = format!("{} of {} counters are held.", facts.held, facts.most);
        let advice = "Raise WEIR_MAX_COUNTERS, or have fewer values in descriptors.";
        findings.push(AttentionFinding::new(Severity::Warning, "counters_full", what, advice));
    }
    if facts.lost > 0 {
        let what = format!("{} counters were dropped with their hits, since memory was full.", facts.lost);
        let advice = "Raise WEIR_MAX_COUNTERS, or have fewer values in descriptors.";
        findings.push(AttentionFinding::new(Severity::Warning, "counters_evicted", what, advice));
    }
    let name = &api.facts.instance;
    findings.into_iter().map(|finding| finding.at("instance", json!(name))).collect()
}

fn near_limits<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    let Some(hot_keys) = api.context.limiter.hot_keys() else { return Vec::new() };
    let mut keys = hot_keys.top(By::Hits, hot::MINUTE, api.now().as_nanos(), usize::MAX);
    keys.retain(|key| key.used >= NEAR);
    keys.sort_by(|a, b| b.used.total_cmp(&a.used));
    keys.truncate(MOST_OF_KIND);
    let named: HashSet<&str> = keys.iter().filter_map(|key| key.name.rule.as_deref()).collect();
    let limits = api.context.limiter.rules(|rules| {
        let of_keys = rules.rules().iter().map(|rule| (rule.path.to_string(), rule));
        let of_keys = of_keys.filter(|(path, _)| named.contains(path.as_str()));
        of_keys.map(|(path, rule)| (path, (words(rule), rule.rule.origin.clone()))).collect()
    });
    let limits: HashMap<String, (String, Origin)> = limits.unwrap_or_default();
    keys.iter()
        .map(|key| near_limit(key, key.name.rule.as_deref().and_then(|rule| limits.get(rule))))
        .collect()
}

fn near_limit(key: &HotKey, limit: Option<&(String, Origin)>) -> AttentionFinding {
    let (name, text) = (&key.name, hot::entries_text(&key.name));
    let limit_words = limit.map_or("its limit", |(words, _)| words);
    let severity = if key.used >= 1.0 { Severity::Warning } else { Severity::Info };
    let what = format!("{text} has used {:.0} % of {limit_words}.", key.used * 100.0);
    let advice = "Raise the limit, or ask the caller to slow down.";
    let finding = AttentionFinding::new(severity, "near_limit", what, advice);
    let finding = finding.at("domain", json!(&*name.domain)).at("key", json!(text));
    let finding = if let Some(rule) = &name.rule { finding.at("rule", json!(&**rule)) } else { finding };
    match limit {
        Some((_, origin)) => finding.at("file", json!(&*origin.file)).at("line", json!(origin.line)),
        None => finding,
    }
}

fn of_unmatched<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    let finding = |(domain, key, descriptors): (String, Option<String>, u64)| match key {
        None => {
            let what =
                format!("{descriptors} descriptors of the domain {domain} were admitted: no rule has it.");
            let advice = "Compare the domain of Envoy's filter with the rules.";
            AttentionFinding::new(Severity::Warning, "unmatched_domain", what, advice)
                .at("domain", json!(domain))
        }
        Some(key) => {
            let what =
                format!("{descriptors} descriptors with the key {key} were admitted: no rule has it there.");
            let advice = "Compare the keys of Envoy's actions with the rules, with `weir why`.";
            let finding = AttentionFinding::new(Severity::Warning, "unmatched_key", what, advice);
            finding.at("domain", json!(domain)).at("key", json!(key))
        }
    };
    unmatched(&api.context.stats).into_iter().map(finding).collect()
}

fn never_matched<S: Store>(api: &AdminApi<S>) -> Vec<AttentionFinding> {
    if api.now().since(api.since) < NEVER_AFTER {
        return Vec::new();
    }
    let all = api.traffic.rules();
    let matched: HashSet<_> =
        all.iter().filter(|(_, rule)| rule.counts.total_hits > 0).map(|(name, _)| Arc::clone(name)).collect();
    let never = api.context.limiter.rules(|rules| {
        let is_limit = |rule: &&weir_limit::CompiledRule| !rule.rule.tiers().is_empty();
        let never = rules.rules().iter().filter(is_limit).filter(|rule| !matched.contains(rule.path.parts()));
        let finding = |rule: &weir_limit::CompiledRule| {
            let what = format!("The rule {} has matched nothing since the start.", rule.path);
            let advice = "See with `weir why` what requests match; remove the rule if nobody needs it.";
            AttentionFinding::new(Severity::Info, "never_matched", what, advice)
                .at("rule", json!(rule.path.to_string()))
                .at("domain", json!(&*rule.domain))
                .at("file", json!(&*rule.rule.origin.file))
                .at("line", json!(rule.rule.origin.line))
        };
        never.take(MOST_OF_KIND).map(finding).collect()
    });
    never.unwrap_or_default()
}

// === impl AttentionFinding ===

impl AttentionFinding {
    fn new(severity: Severity, kind: &'static str, what: String, advice: &'static str) -> Self {
        Self { severity, kind, what, place: Map::new(), advice }
    }

    fn at(mut self, name: &str, value: Value) -> Self {
        self.place.insert(name.to_owned(), value);
        self
    }

    fn json(self) -> Value {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        json!({
            "severity": severity,
            "kind": self.kind,
            "what": self.what,
            "where": self.place,
            "do": self.advice,
        })
    }
}
