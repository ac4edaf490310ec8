//! `GET /v1/counters`: a descriptor's counter, tier by tier.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    extract::State,
    http::{StatusCode, Uri},
    response::Response,
};
use serde_json::{Value, json};
use weir_config::explained;
use weir_limit::{
    DescriptorMatch, Entry, Hits, LimitCheck, Request, Tier, Timestamp, algorithm::CounterState,
};
use weir_limiter::{LimitError, Limiter, Looked, counter_number};
use weir_observe::hot_keys::{By, HotEntries};
use weir_store::{CounterSight, SightSource, Store};

use super::{
    answer::{answer, count, entry, tier},
    api::AdminApi,
    hot,
    problem::Problem,
    query::Query,
    rules,
    time::seconds,
    traffic,
};

const MINUTES: u64 = 10;

/// The step of the history of hot keys, in seconds.
const STEP: u64 = 20;

const NOT_ANSWERED: &str = "The store did not answer: this is what this instance believes.";

const PART: &str = "Instances split this limit: this is the part of this one.";

const BELOW_NOTE: &str =
    "The counters below these entries that are among the hot keys of the last ten minutes.";

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["domain", "entry", "below"])?;
    let (entries, part) = (query.entries()?, query.part()?);
    let Some(domain) = query.get("domain").filter(|domain| !domain.is_empty()) else {
        return Err(Problem::malformed("domain is missing; name the domain of the counter."));
    };
    if query.choice("below", &["false", "true"])? == "true" {
        let (found, next) = part.of(below(&api.context.limiter, domain, &entries, api.now()).into_iter());
        let mut items = Vec::new();
        for name in found {
            let entries: Vec<Entry<'_>> = name.iter().map(|(key, value)| Entry { key, value }).collect();
            // a reload may have taken its rule away
            items.extend(views(&api, domain, &entries).await.unwrap_or_default());
        }
        return Ok(answer(&json!({ "items": items, "next": next, "note": BELOW_NOTE })));
    }
    if entries.is_empty() {
        return Err(Problem::malformed("entry is missing; write it as key=value, once for each entry."));
    }
    let (items, next) = part.of(views(&api, domain, &entries).await?.into_iter());
    Ok(answer(&json!({ "items": items, "next": next, "note": Value::Null })))
}

/// The entries of hot keys that begin with `entries`.
pub(in crate::http) fn below<S: Store>(
    limiter: &Limiter<S>,
    domain: &str,
    entries: &[Entry<'_>],
    now: Timestamp,
) -> Vec<HotEntries> {
    let Some(hot_keys) = limiter.hot_keys() else { return Vec::new() };
    let (mut seen, mut below) = (BTreeSet::new(), Vec::new());
    for by in [By::Hits, By::Rejections] {
        for key in hot_keys.top(by, MINUTES * hot::MINUTE, now.as_nanos(), usize::MAX) {
            let Some(names) = key.name.entries.clone().filter(|_| *key.name.domain == *domain) else {
                continue;
            };
            let mut pairs = names.iter().map(|(key, value)| (&**key, &**value));
            let begins = entries.iter().all(|entry| pairs.next() == Some((entry.key, entry.value)));
            if begins && seen.insert(key.key) {
                below.push(names);
            }
        }
    }
    below
}

pub(super) async fn views<S: Store>(
    api: &AdminApi<S>,
    domain: &str,
    entries: &[Entry<'_>],
) -> Result<Vec<Value>, Problem> {
    let (request, now) = (Request::of_hits(domain, entries, 0), api.now());
    let looked = api.context.limiter.inspect(&request, now, |looked| {
        let view = of_descriptor(api, looked, 0, now);
        let why = explained::no_rule(entries.len(), &looked.rules.explain(domain, entries));
        view.ok_or_else(|| {
            let why = why.unwrap_or_else(|| "the rule there has no limit".to_owned());
            Problem::new(StatusCode::NOT_FOUND, format!("There is no counter: {why}."))
        })
    });
    Ok(vec![looked.await.map_err(|error| problem(&error))??])
}

pub(in crate::http) fn problem(error: &LimitError) -> Problem {
    match error {
        LimitError::TooManyPatterns(_) => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("{error}.")),
        _ => Problem::malformed(format!("{error}.")),
    }
}

/// The counter of descriptor `i`. None if it has none.
pub(super) fn of_descriptor<S: Store>(
    api: &AdminApi<S>,
    looked: &Looked<'_, '_>,
    i: usize,
    now: Timestamp,
) -> Option<Value> {
    let place = looked.matched.places.iter().position(|(of, _)| *of == i);
    let in_flight = place.map(|place| {
        let (_, check) = &looked.matched.places[place];
        let held = looked.places.get(place).map_or(0, |decision| decision.before);
        json!({ "most": count(check.limit.most.into()), "now": count(held.into()) })
    });
    let limited = match looked.matched.matches.get(i)? {
        DescriptorMatch::Limited(check) => Some(*check),
        DescriptorMatch::NoLimit | DescriptorMatch::Unlimited(_) | DescriptorMatch::Running => None,
    };
    let mut view = match (limited, place) {
        (Some(check), _) => view(api, looked.matched.enforced().get(check)?, looked.sights.get(check)?, now),
        (None, Some(place)) => {
            let check = looked.matched.places[place].1.as_limit_check();
            let none = CounterSight::of([].into_iter().collect(), None, SightSource::Memory, now);
            view(api, &check, &none, now)
        }
        (None, None) => return None,
    };
    view["in_flight"] = in_flight.unwrap_or_default();
    Some(view)
}

fn view<S: Store>(api: &AdminApi<S>, check: &LimitCheck<'_>, sight: &CounterSight, now: Timestamp) -> Value {
    let limiter = &api.context.limiter;
    let (compiled, key) = (check.rule.compiled(), [check.key.hash(), check.key.shard()]);
    let shared = limiter.store().shared_counts();
    let mode = sight.local.as_ref().map(|local| local.mode);
    let mode = mode.or_else(|| compiled.and_then(|rule| shared.mode_now(&rule.rule)));
    let entries =
        check.entries.iter().enumerate().map(|(i, of)| entry(&Entry { key: of.key, value: &check.value(i) }));
    let history =
        limiter.hot_keys().and_then(|hot_keys| hot_keys.history(key, MINUTES * hot::MINUTE, now.as_nanos()));
    // what the sketch calls hits has the rejected ones
    let history = history
        .map(|steps| steps.into_iter().map(|[hits, over]| [hits.saturating_sub(over), over]).collect());
    let note = match (sight.source, &sight.part) {
        (SightSource::Copy, _) => Some(NOT_ANSWERED),
        (_, Some(_)) => Some(PART),
        _ => None,
    };
    json!({
        "domain": check.domain,
        "entries": entries.collect::<Vec<_>>(),
        "number": format!("{:08x}", counter_number(key[0])),
        "rule": compiled.map(|rule| rule.path.to_string()),
        "file": compiled.map(|rule| rule.rule.origin.file.to_string()),
        "line": compiled.map(|rule| rule.rule.origin.line),
        "mode": mode.filter(|_| shared.store.is_some()).map(weir_limit::Coordination::name),
        "source": match sight.source {
            SightSource::Memory | SightSource::Copy => "memory",
            SightSource::Disk => "disk",
            SightSource::Store => "store",
        },
        "tiers": tiers(check, sight),
        "is_shadow": check.rule.shadow_mode(),
        "local": sight.local.as_ref().map(|local| json!({
            "tiers": states(check.own_tiers(), &local.counters, sight.at),
            "leased": count(local.leased.0),
            "pending": count(local.pending.0),
        })),
        "in_flight": Value::Null,
        "history": history.map(|steps: Vec<[u64; 2]>| traffic::history(&steps, STEP, now)),
        "note": note,
    })
}

pub(in crate::http) fn tiers(check: &LimitCheck<'_>, sight: &CounterSight) -> Vec<Value> {
    let own = sight.part.as_deref().unwrap_or_else(|| check.own_tiers());
    let mut tiers = states(own, &sight.counters, sight.at);
    if let (Some(pool), Some(first)) = (&sight.pool, check.tiers().first().filter(|_| check.pool.is_some())) {
        let limit = pool.share.filter(|_| pool.tier == 0).unwrap_or_else(|| first.capacity());
        let mut shared = tier(first);
        shared["limit"] = count(limit.into());
        shared["used"] = count(limit.saturating_sub(pool.remaining).into());
        shared["remaining"] = count(pool.remaining.into());
        shared["reset"] = seconds(pool.reset);
        shared["is_over"] = pool.over.into();
        tiers.insert(0, shared);
    }
    tiers
}

fn states(tiers: &[Tier], counters: &[CounterState], at: Timestamp) -> Vec<Value> {
    tiers.iter().zip(counters).map(|(tier, counter)| state(tier, counter, at)).collect()
}

fn state(of: &Tier, counter: &CounterState, at: Timestamp) -> Value {
    let (available, probe) = (counter.availability(of, at), counter.probe(of, at, Hits(1)));
    let mut state = tier(of);
    let used = if of.refills() {
        u64::from(of.capacity()).saturating_sub(available.remaining.into())
    } else {
        probe.used.0
    };
    state["used"] = count(used);
    state["remaining"] = count(available.remaining.into());
    state["reset"] = seconds(if probe.fits { available.reset } else { counter.wait(of, at, Hits(1)) });
    state["is_over"] = (!probe.fits).into();
    state
}

/// The limit of a counter in words, for sentences.
pub(super) fn limit_words(check: &LimitCheck<'_>, decided: usize) -> String {
    let tier = check.tiers().get(decided).or_else(|| check.tiers().first());
    match (tier, check.rule.compiled()) {
        (Some(tier), _) => tier.to_string(),
        (None, Some(compiled)) => rules::words(compiled),
        (None, None) => String::new(),
    }
}
