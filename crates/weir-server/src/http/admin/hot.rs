//! `GET /v1/hot`: the counters with the most hits or rejected hits.

use std::sync::Arc;

use axum::{extract::State, http::Uri, response::Response};
use serde_json::{Value, json};
use weir_limiter::counter_number;
use weir_observe::hot_keys::{By, HotKey, HotKeyValues, HotName};
use weir_store::Store;

use super::{
    answer::count,
    api::AdminApi,
    fleet::KnownFleet,
    instance::values_name,
    problem::Problem,
    query::{ListPart, Query},
    traffic::{as_float, rounded},
};

pub(super) const MINUTE: u64 = 60_000_000_000;

/// The counters of an event.
const IN_EVENT: ListPart = ListPart { from: 0, limit: 20 };

/// Which counters are asked for.
#[derive(Clone, Copy)]
pub(super) struct HotQuery {
    minutes: u64,
    by: By,
    part: ListPart,
}

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["window", "by", "scope"])?;
    let minutes = if query.choice("window", &["1m", "10m"])? == "1m" { 1 } else { 10 };
    let by = if query.choice("by", &["hits", "rejected"])? == "hits" { By::Hits } else { By::Rejections };
    let (scope, part) = (query.choice("scope", &["instance", "fleet"])?, query.part()?);
    if scope == "fleet" && minutes == 10 {
        return Err(Problem::malformed("scope=fleet has window=1m only; scope=instance has both."));
    }
    let asked = HotQuery { minutes, by, part };
    let fleet = if scope == "fleet" { KnownFleet::read(&api).await? } else { None };
    if let Some(fleet) = fleet {
        return api.aside(move |api| of_fleet(api, &fleet, asked)).await;
    }
    let note = (scope == "fleet").then_some("These are the counters of this instance alone.");
    api.aside(move |api| hot(api, asked, note)).await
}

/// For the stream.
pub(super) fn event<S: Store>(api: &AdminApi<S>, by: By, fleet: Option<&KnownFleet>) -> Value {
    let asked = HotQuery { minutes: 1, by, part: IN_EVENT };
    fleet.map_or_else(|| hot(api, asked, None), |fleet| of_fleet(api, fleet, asked))
}

fn hot<S: Store>(api: &AdminApi<S>, HotQuery { minutes, by, part }: HotQuery, note: Option<&str>) -> Value {
    let limiter = &api.context.limiter;
    let keys = limiter.hot_keys().map(|hot| hot.top(by, minutes * MINUTE, api.now().as_nanos(), usize::MAX));
    let (keys, next) = part.of(keys.unwrap_or_default().into_iter());
    let off = limiter.hot_keys().is_none().then_some("WEIR_HOT_KEYS=off: no counters are found.");
    json!({
        "window": if minutes == 1 { "1m" } else { "10m" },
        "by": if by == By::Hits { "hits" } else { "rejected" },
        "scope": "instance",
        "values": values_name(limiter.shown_values()),
        "one_in": limiter.hot_keys().map_or(0, weir_observe::hot_keys::HotKeys::gap),
        "items": keys.iter().map(|key| counter(key, minutes)).collect::<Vec<_>>(),
        "next": next,
        "note": note.or(off),
    })
}

fn of_fleet<S: Store>(api: &AdminApi<S>, fleet: &KnownFleet, HotQuery { by, part, .. }: HotQuery) -> Value {
    let limiter = &api.context.limiter;
    let (items, next) = fleet.hot(by, part);
    let masked = limiter.shown_values() != HotKeyValues::Shown;
    json!({
        "window": "1m",
        "by": if by == By::Hits { "hits" } else { "rejected" },
        "scope": "fleet",
        "values": values_name(limiter.shown_values()),
        "one_in": limiter.hot_keys().map_or(0, weir_observe::hot_keys::HotKeys::gap),
        "items": items,
        "next": next,
        "note": masked.then_some("Instances that do not show values tell the others of no counters."),
    })
}

fn counter(key: &HotKey, minutes: u64) -> Value {
    json!({
        "rule": key.name.rule,
        "domain": &*key.name.domain,
        "entries": entries(&key.name),
        "text": entries_text(&key.name),
        "number": format!("{:08x}", counter_number(key.key[0])),
        "hits": count(key.hits),
        "per_second": rounded(as_float(key.hits) / as_float(minutes * 60)),
        "at_least": count(key.hits.saturating_sub(key.error())),
        "at_most": count(key.hits.saturating_add(key.error())),
        "used": used(key),
    })
}

pub(super) fn used(key: &HotKey) -> f64 {
    rounded(f64::from(key.used.clamp(0.0, 1.0)))
}

pub(super) fn entries(name: &HotName) -> Option<Vec<Value>> {
    let entry = |(key, value): &(Box<str>, Box<str>)| json!({ "key": &**key, "value": &**value });
    Some(name.entries.as_ref()?.iter().map(entry).collect())
}

/// Without the rule, which the text begins with.
pub(super) fn entries_text(name: &HotName) -> &str {
    &name.entries_text
}
