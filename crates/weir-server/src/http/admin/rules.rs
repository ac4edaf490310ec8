//! `GET /v1/rules`: the rules in force, with what they have seen here.

use std::{collections::HashMap, sync::Arc};

use axum::{extract::State, http::Uri, response::Response};
use serde_json::{Value, json};
use weir_config::RuleDescription;
use weir_limit::{CompiledRule, Level, Limit, Values};
use weir_observe::hot_keys::{By, HotKey};
use weir_store::Store;

use super::{
    answer::{count, tier},
    api::AdminApi,
    hot,
    problem::Problem,
    query::Query,
    time,
    traffic::{RuleTraffic, outcome},
};

/// The rules of an event.
const MOST_IN_EVENT: usize = 1_000;

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["domain"])?;
    let (part, domain) = (query.part()?, query.get("domain").map(str::to_owned));
    api.aside(move |api| {
        let fullest = fullest(api);
        let (shared, scope) = (api.context.limiter.store().shared_counts(), api.context.limiter.scope());
        let listed = api.context.limiter.rules(|rules| {
            let is_wanted =
                |rule: &&CompiledRule| domain.as_ref().is_none_or(|domain| *rule.domain == **domain);
            let (rules_of_part, next) = part.of(rules.rules().iter().filter(is_wanted));
            let rule = |compiled: &CompiledRule| {
                let scope = rules.scope_of(&compiled.domain).unwrap_or_default().max(scope);
                rule(api, RuleDescription { compiled, scope, shared }, &fullest)
            };
            (rules_of_part.into_iter().map(rule).collect::<Vec<_>>(), next)
        });
        let (items, next) = listed.unwrap_or_default();
        json!({ "items": items, "next": next, "generation": api.context.limiter.generation() })
    })
    .await
}

/// The rates of the busiest rules, for the stream.
pub(super) fn rates<S: Store>(api: &AdminApi<S>) -> Value {
    let mut rules = api.traffic.rules();
    let total = rules.len();
    rules.sort_by(|(a, of_a), (b, of_b)| {
        of_b.series.last_minute().cmp(&of_a.series.last_minute()).then_with(|| a.cmp(b))
    });
    let items = rules.iter().take(MOST_IN_EVENT).map(|(name, rule)| {
        json!({
            "rule": name.join("."),
            "rates": rule.series.rates_json(api.uptime()),
            "last_matched": rule.last_matched.map(time::text),
        })
    });
    let note = (total > MOST_IN_EVENT).then(|| format!("{MOST_IN_EVENT} of {total} rules, the busiest."));
    json!({ "items": items.collect::<Vec<_>>(), "note": note })
}

/// The fullest hot key of each rule.
fn fullest<S: Store>(api: &AdminApi<S>) -> HashMap<String, HotKey> {
    let mut fullest: HashMap<String, HotKey> = HashMap::new();
    let Some(hot_keys) = api.context.limiter.hot_keys() else { return fullest };
    for key in hot_keys.top(By::Hits, hot::MINUTE * 10, api.now().as_nanos(), usize::MAX) {
        let Some(rule) = key.name.rule.as_deref() else { continue };
        match fullest.get_mut(rule) {
            Some(known) if known.used >= key.used => {}
            Some(known) => *known = key,
            None => {
                fullest.insert(rule.to_owned(), key);
            }
        }
    }
    fullest
}

fn rule<S: Store>(
    api: &AdminApi<S>,
    description: RuleDescription<'_>,
    fullest: &HashMap<String, HotKey>,
) -> Value {
    let compiled = description.compiled;
    let (rule, path) = (&compiled.rule, compiled.path.to_string());
    let traffic = api.traffic.rule(compiled.path.parts());
    let counts = traffic.as_ref().map(|traffic| traffic.counts).unwrap_or_default();
    let [admitted, rejected] = outcome(&counts);
    let places =
        api.context.stats.rule(compiled.path.parts()).known_places().map(|places| places.totals().counts[0]);
    let in_flight = rule
        .in_flight
        .map(|limit| json!({ "most": count(limit.most.into()), "now": count(places.unwrap_or_default()) }));
    let full = fullest.get(&path);
    let series = traffic.as_ref().map(|traffic: &RuleTraffic| &traffic.series);
    json!({
        "rule": path,
        "domain": &*compiled.domain,
        "levels": compiled.levels.iter().map(level).collect::<Vec<_>>(),
        "name": rule.name,
        "file": &*rule.origin.file,
        "line": rule.origin.line,
        "limit": words(compiled),
        "description": description.lines(),
        "tiers": rule.tiers().iter().map(tier).collect::<Vec<_>>(),
        "is_unlimited": rule.is_unlimited(),
        "is_shadow": rule.shadow_mode,
        "next_change": rule.until.map(time::text),
        "in_flight": in_flight,
        "totals": {
            "admitted": count(admitted),
            "rejected": count(rejected),
            "shadowed": count(counts.shadow_mode),
        },
        "rates": series.map_or_else(no_rates, |series| series.rates_json(api.uptime())),
        "recent": series.map_or_else(
            || super::traffic::history(&[], 20, api.now()),
            |series| series.history(api.uptime(), api.now()),
        ),
        "fullest": full.map(|key| json!({
            "entries": hot::entries(&key.name),
            "text": hot::entries_text(&key.name),
            "used": hot::used(key),
        })),
        "last_matched": traffic.and_then(|traffic| traffic.last_matched).map(time::text),
    })
}

fn no_rates() -> Value {
    json!({ "admitted_1m": 0, "rejected_1m": 0, "admitted_10m": 0, "rejected_10m": 0 })
}

fn level(level: &Level) -> Value {
    let values: Option<Vec<String>> = match &level.values {
        Values::Any => None,
        Values::Table(values) => Some(vec![values.table.name().to_owned()]),
        Values::Networks(list) => {
            Some(list.networks().iter().map(|listed| listed.network.to_string()).collect())
        }
        values => Some(values.patterns().map(|pattern| pattern.text().to_owned()).collect()),
    };
    json!({ "key": &*level.key, "values": values })
}

/// The limit on one line.
pub(super) fn words(compiled: &CompiledRule) -> String {
    let rule = &compiled.rule;
    let mut words: Vec<String> = rule.in_flight.iter().map(ToString::to_string).collect();
    match &rule.limit {
        Limit::Unlimited if words.is_empty() => words.push("unlimited".to_owned()),
        Limit::Unlimited => {}
        Limit::Tiers { tiers, .. } => words.extend(tiers.iter().map(ToString::to_string)),
    }
    words.join(" and ")
}
