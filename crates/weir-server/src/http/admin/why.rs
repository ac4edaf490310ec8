//! `POST /v1/why`: what a request would get now, and why. Nothing is counted.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request as HttpRequest, State},
    http::StatusCode,
    response::Response,
};
use serde_json::{Value, json};
use weir_config::{RuleDescription, explained};
use weir_limit::{
    Attempt, Code, CompiledRule, DescriptorMatch, Entry, Lookup, Origin, Outcome, Request, RuleSet, Step,
    Timestamp,
};
use weir_limiter::{Looked, counter_number, did_you_mean};
use weir_observe::hot_keys::By;
use weir_store::Store;

use super::{
    answer::{answer, entry},
    api::AdminApi,
    counters::{self, limit_words},
    hot,
    log_line::{LoggedRejection, borrowed},
    problem::Problem,
    read_body,
};
use crate::{http::client::HttpClient, request::decoded};

const MAX_BODY: usize = 1 << 20;

/// Each of them may ask the store.
const MOST_DESCRIPTORS: usize = 32;

/// What was tried for an entry, at most.
const MOST_TRIED: usize = 12;

const MASKED: &str = "the line is masked, and the number of its counter is not among the hot keys of the last ten minutes; \
                      WEIR_LOG_VALUES=true writes values into the log";

const MASKED_HERE: &str =
    "the line is masked, and so are hot keys; WEIR_HOT_KEYS=shown or WEIR_LOG_VALUES=true shows values";

pub(super) async fn ask<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: HttpRequest,
) -> Result<Response, Problem> {
    let (body, mut hold) = read_body(&client, request, MAX_BODY).await?;
    let wrong = |error: &dyn std::fmt::Display| Problem::malformed(format!("{error}."));
    if let Ok(line) = serde_json::from_slice::<Value>(&body)
        && let Some(line) = line.get("line").and_then(Value::as_str)
    {
        let logged = LoggedRejection::parse(line)?;
        let entries = entries_of(&api, &logged)?;
        let entries: Vec<Entry<'_>> = borrowed(&entries).collect();
        let request = Request::of_hits(&logged.domain, &entries, logged.hits);
        return why(&api, &request, Some(&logged)).await;
    }
    api.requests
        .check_size(&body, &mut hold)
        .map_err(|error| Problem::new(error.status(), format!("{error}.")))?;
    let message = api.requests.decode(&body).map_err(|error| wrong(&error))?;
    let request = decoded(&message, &api.facts.bounds).map_err(|error| wrong(&error))?;
    if request.descriptors.len() > MOST_DESCRIPTORS {
        return Err(Problem::malformed(format!(
            "Ask about at most {MOST_DESCRIPTORS} descriptors at a time."
        )));
    }
    why(&api, &request, None).await
}

/// The entries of a line, or of the counter whose number a masked line has.
fn entries_of<S: Store>(
    api: &AdminApi<S>,
    logged: &LoggedRejection,
) -> Result<Vec<(String, String)>, Problem> {
    let not_found =
        |why: &str| Problem::new(StatusCode::NOT_FOUND, format!("The counter cannot be found: {why}."));
    if let Some(number) = logged.number() {
        let Some(hot_keys) = api.context.limiter.hot_keys() else { return Err(not_found(MASKED)) };
        if api.context.limiter.shown_values() != weir_observe::hot_keys::HotKeyValues::Shown {
            return Err(not_found(MASKED_HERE));
        }
        let tables = [By::Rejections, By::Hits]
            .map(|by| hot_keys.top(by, 10 * hot::MINUTE, api.now().as_nanos(), usize::MAX));
        let key = tables.iter().flatten().find(|key| counter_number(key.key[0]) == number);
        let entries = key.and_then(|key| key.name.entries.as_ref());
        let owned = |(key, value): &(Box<str>, Box<str>)| (key.to_string(), value.to_string());
        return entries.map(|entries| entries.iter().map(owned).collect()).ok_or_else(|| not_found(MASKED));
    }
    let entries = api.context.limiter.rules(|rules| {
        let rule = rules.rules().iter().find(|rule| rule.path.to_string() == logged.rule);
        rule.map(|rule| logged.entries(rule))
    });
    match entries.flatten() {
        Some(Some(entries)) => Ok(entries),
        Some(None) => Err(not_found("the line was cut, or the keys of its rule have changed")),
        None => Err(not_found(&format!("there is no rule {} in force", logged.rule))),
    }
}

async fn why<S: Store>(
    api: &AdminApi<S>,
    request: &Request<'_>,
    logged: Option<&LoggedRejection>,
) -> Result<Response, Problem> {
    let now = api.now();
    let looked = api.context.limiter.inspect(request, now, |looked| {
        let descriptors: Vec<Value> =
            (0..request.descriptors.len()).map(|i| descriptor(api, request, looked, i, now)).collect();
        let is_admitted = looked.code == Code::Ok;
        let sentence = overall(&descriptors, is_admitted);
        json!({
            "domain": request.domain,
            "verdict": if is_admitted { "admitted" } else { "rejected" },
            "sentence": sentence,
            "descriptors": descriptors,
            "logged": logged.map(LoggedRejection::json),
            "note": Value::Null,
        })
    });
    Ok(answer(&looked.await.map_err(|error| counters::problem(&error))?))
}

fn overall(descriptors: &[Value], is_admitted: bool) -> String {
    let with = |verdict: &str| descriptors.iter().filter(|of| of["verdict"] == verdict).count();
    let first = |verdict: &str| {
        let of = descriptors.iter().find(|of| of["verdict"] == verdict);
        of.and_then(|of| of["sentence"].as_str()).unwrap_or_default()
    };
    match (is_admitted, with("rejected")) {
        (false, _) => format!("The request would be rejected. {}", first("rejected")),
        (true, 1..) => {
            "The request would be admitted, although a limit is used up: the service runs in shadow mode, or \
                        another quota has room."
                .to_owned()
        }
        (true, 0) if with("would_reject") > 0 => {
            "The request would be admitted: the limit that is used up is in shadow mode.".to_owned()
        }
        (true, 0) if with("no_limit") == descriptors.len() => {
            "The request would be admitted: no limit applies to it.".to_owned()
        }
        (true, 0) => "The request would be admitted: it is within its limits.".to_owned(),
    }
}

fn descriptor<S: Store>(
    api: &AdminApi<S>,
    request: &Request<'_>,
    looked: &Looked<'_, '_>,
    i: usize,
    now: Timestamp,
) -> Value {
    let (domain, entries) = (request.domain, &*request.descriptors[i].entries);
    let explanation = looked.rules.explain(domain, entries);
    let compiled = match (&explanation.outcome, looked.matched.matches[i]) {
        // a limit of the request replaces the rule
        (_, DescriptorMatch::Limited(check)) => looked.matched.checks[check].rule.compiled(),
        (Outcome::Rule(compiled), _) => Some(*compiled),
        _ => None,
    };
    let (verdict, sentence) = verdict(looked, request, i, compiled, || {
        explained::no_rule(entries.len(), &explanation).unwrap_or_default()
    });
    let passed_over = explanation.passed_over.as_ref();
    json!({
        "entries": entries.iter().map(entry).collect::<Vec<_>>(),
        "verdict": verdict,
        "sentence": sentence,
        "rule": compiled.map(|rule| rule.path.to_string()),
        "file": compiled.map(|rule| rule.rule.origin.file.to_string()),
        "line": compiled.map(|rule| rule.rule.origin.line),
        "description": compiled.map_or_else(Vec::new, |compiled| description(api, looked.rules, compiled)),
        "steps": explanation.steps.iter().map(step).collect::<Vec<_>>(),
        "passed_over": passed_over.map(|passed_over| json!({
            "rule": passed_over.rule.path.to_string(),
            "file": &*passed_over.rule.rule.origin.file,
            "line": passed_over.rule.rule.origin.line,
            "sentence": explained::passed_over(passed_over),
        })),
        "did_you_mean": compiled.is_none().then(|| did_you_mean(looked.rules, domain, entries)).flatten(),
        "counter": counters::of_descriptor(api, looked, i, now),
    })
}

fn description<S: Store>(api: &AdminApi<S>, rules: &RuleSet, compiled: &CompiledRule) -> Vec<String> {
    let scope = rules.scope_of(&compiled.domain).unwrap_or_default().max(api.context.limiter.scope());
    RuleDescription { compiled, scope, shared: api.context.limiter.store().shared_counts() }.lines()
}

/// The verdict on descriptor `i`, and a sentence.
fn verdict(
    looked: &Looked<'_, '_>,
    request: &Request<'_>,
    i: usize,
    compiled: Option<&CompiledRule>,
    no_rule: impl FnOnce() -> String,
) -> (&'static str, String) {
    let name =
        compiled.map_or_else(|| "The limit of the request".to_owned(), |rule| format!("Rule {}", rule.path));
    let place = looked.matched.places.iter().position(|(of, _)| *of == i);
    let full = place.filter(|place| looked.places.get(*place).is_some_and(|decision| decision.over));
    if let Some(place) = full {
        let most = looked.matched.places[place].1.limit.most;
        return ("rejected", format!("{name} rejects it: {most} requests are in flight, as many as may be."));
    }
    match looked.matched.matches[i] {
        DescriptorMatch::Running => {
            ("ends", "It ends a request in flight, and is always admitted.".to_owned())
        }
        DescriptorMatch::Unlimited(_) if place.is_some() => {
            ("admitted", format!("{name} admits it: fewer requests are in flight than may be."))
        }
        DescriptorMatch::Unlimited(_) => ("unlimited", format!("{name} admits all: it is unlimited.")),
        DescriptorMatch::NoLimit => match compiled {
            Some(replaced) => {
                let by = replacing(looked.rules, request, replaced).unwrap_or_default();
                ("replaced", format!("{name} does not apply: {by} replaces it."))
            }
            None => ("no_limit", format!("It is admitted: {}.", no_rule())),
        },
        DescriptorMatch::Limited(at) => {
            let (check, decision) = (&looked.matched.checks[at], &looked.decisions[at]);
            let limit = limit_words(check, decision.tier);
            if !decision.over {
                return (
                    "admitted",
                    format!("{name} admits it: {} are left of {limit}.", decision.remaining),
                );
            }
            let wait = std::time::Duration::from(decision.reset);
            let used = if check.rule.is_closed() {
                format!("its limit is {limit}")
            } else {
                format!("its limit of {limit} is used up, and it would fit in {wait:.1?}")
            };
            if check.rule.shadow_mode() {
                ("would_reject", format!("{name} is in shadow mode, and would reject it: {used}."))
            } else {
                ("rejected", format!("{name} rejects it: {used}."))
            }
        }
    }
}

fn replacing(rules: &RuleSet, request: &Request<'_>, replaced: &CompiledRule) -> Option<String> {
    let name = replaced.rule.name.as_ref()?;
    request.descriptors.iter().find_map(|descriptor| match rules.find(request.domain, &descriptor.entries) {
        Lookup::Rule(by) if by.rule.replaces.contains(name) => Some(format!("rule {}", by.path)),
        _ => None,
    })
}

fn step(step: &Step<'_>) -> Value {
    let last = step.attempts.len().saturating_sub(1);
    let shown = step.attempts.iter().enumerate().filter(|(i, _)| *i < MOST_TRIED - 1 || *i == last);
    json!({
        "entry": entry(&step.entry),
        "tried": shown.map(|(_, attempt)| tried(&step.entry, attempt)).collect::<Vec<_>>(),
        "alternatives": step.alternatives,
        "alternatives_total": step.alternatives_total,
    })
}

fn tried(of: &Entry<'_>, attempt: &Attempt<'_>) -> Value {
    let place = attempt.origin.map(|Origin { file, line, .. }| (file.to_string(), *line));
    let (file, line) = place.unzip();
    json!({
        "words": explained::candidate(of, attempt.candidate),
        "is_match": attempt.origin.is_some(),
        "file": file,
        "line": line,
    })
}
