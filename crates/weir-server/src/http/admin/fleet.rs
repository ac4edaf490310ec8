//! The fleet: what each instance tells of itself through the shared store, and what they know together.
//!
//! A summary has the instance in short and its hottest counters of the last minute. Merging adds the counts of a counter
//! and their errors. An instance with a full list may have had as many hits of a counter that it does not list as of the
//! last one that it does.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_observe::hot_keys::{By, HotKey, HotKeyValues};
use weir_store::{Store, board::BoardPost};

use super::{
    answer::{count, hex},
    api::AdminApi,
    calendars::ReportedCalendar,
    hot::{self, MINUTE},
    instance,
    problem::Problem,
    query::ListPart,
    traffic::{as_float, rounded},
};

/// The counters in each list of a summary.
const LISTED: usize = 32;

/// The longest name of a counter, in bytes. Longer ones are cut.
const MAX_NAME: usize = 64;

/// What an instance tells of itself.
#[derive(Debug, Default, Serialize, Deserialize)]
struct InstanceReport {
    /// As in `GET /v1/instances`.
    instance: Value,
    hits: Vec<ReportedCounter>,
    rejected: Vec<ReportedCounter>,
    #[serde(default)]
    calendars: Vec<ReportedCalendar>,
}

/// A hot counter of one instance.
#[derive(Debug, Serialize, Deserialize)]
struct ReportedCounter {
    /// Of its domain and entries, the same at all instances.
    hash: String,
    rule: Option<String>,
    domain: String,
    /// None if they are too long.
    entries: Option<Vec<(String, String)>>,
    text: String,
    hits: u64,
    error: u64,
    used: f64,
}

/// What the instances have told, by their names.
pub(super) struct KnownFleet(Vec<(String, InstanceReport)>);

struct MergedCounter<'a> {
    of: &'a ReportedCounter,
    hits: u64,
    at_least: u64,
    at_most: u64,
    used: f64,
}

/// Tells the others of this instance.
pub(super) fn report<S: Store>(api: &AdminApi<S>) {
    let store = api.context.limiter.store();
    let list = |by| listed(api, by);
    let mut report = InstanceReport {
        instance: instance::in_short(api, false),
        hits: list(By::Hits),
        rejected: list(By::Rejections),
        calendars: calendars(api),
    };
    while let Ok(text) = serde_json::to_vec(&report) {
        if text.len() <= BoardPost::MAX_SUMMARY {
            return store.summarize(text);
        }
        // what does not fit is left out
        if report.hits.pop().is_none() & report.rejected.pop().is_none() {
            return;
        }
    }
}

fn calendars<S: Store>(api: &AdminApi<S>) -> Vec<ReportedCalendar> {
    api.context.limiter.rules(ReportedCalendar::of_rules).unwrap_or_default()
}

/// Logs calendars for which another instance has other edges.
pub(super) async fn compare_calendars<S: Store>(api: &AdminApi<S>) {
    let own = calendars(api);
    if own.is_empty() {
        return;
    }
    let Ok(Some(fleet)) = KnownFleet::read(api).await else { return };
    for (instance, report) in fleet.0.iter().filter(|(name, _)| *name != api.facts.instance) {
        let pairs = report.calendars.iter().flat_map(|other| own.iter().map(move |own| (own, other)));
        for (own, other) in pairs.filter(|(own, other)| own.differs_from(other)) {
            tracing::warn!(
                %instance,
                this = %api.facts.instance,
                calendar = %own.calendar,
                rule = %own.rule,
                next = own.edges[0],
                next_there = other.edges[0],
                later = own.edges[1],
                later_there = other.edges[1],
                "another instance ends windows of a calendar at another time, so they do not share its counts: their \
                 databases of time zones differ"
            );
        }
    }
}

fn listed<S: Store>(api: &AdminApi<S>, by: By) -> Vec<ReportedCounter> {
    let limiter = &api.context.limiter;
    // masked ones are of this process
    let hot_keys = limiter.hot_keys().filter(|_| limiter.shown_values() == HotKeyValues::Shown);
    let top = hot_keys.map(|hot_keys| hot_keys.top(by, MINUTE, api.now().as_nanos(), LISTED));
    top.unwrap_or_default().iter().map(reported).collect()
}

fn reported(key: &HotKey) -> ReportedCounter {
    let text = hot::entries_text(&key.name);
    let hash = digest(&SHA256, format!("{}\0{}", key.name.domain, text).as_bytes());
    let entries = key.name.entries.as_deref().filter(|_| text.len() <= MAX_NAME);
    let owned = |(key, value): &(Box<str>, Box<str>)| (key.to_string(), value.to_string());
    ReportedCounter {
        hash: hex(&hash.as_ref()[..8]),
        rule: key.name.rule.as_deref().map(str::to_owned),
        domain: cut(&key.name.domain),
        entries: entries.map(|entries| entries.iter().map(owned).collect()),
        text: cut(text),
        hits: key.hits,
        error: key.error(),
        used: hot::used(key),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NAME)].to_owned()
}

// === impl KnownFleet ===

impl KnownFleet {
    /// None if instances tell nothing of themselves.
    pub(super) async fn read<S: Store>(api: &AdminApi<S>) -> Result<Option<Self>, Problem> {
        let summaries = api.context.limiter.store().summaries().await;
        let summaries =
            summaries.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}.")))?;
        let Some(summaries) = summaries else { return Ok(None) };
        let readable = summaries.iter().filter(|(_, text)| text.len() <= BoardPost::MAX_SUMMARY);
        let reports = readable
            .filter_map(|(name, text)| Some((name.clone(), serde_json::from_slice(text).ok()?)))
            .filter(|(_, report): &(String, InstanceReport)| {
                report.instance["rules"]["digest"].is_string() && report.instance["rates"].is_object()
            });
        Ok(Some(Self(reports.collect())))
    }

    /// Each in short, this one as it is now.
    pub(super) fn instances(&self, this: Value) -> Vec<Value> {
        let others = self.0.iter().filter(|(name, _)| this["name"] != **name);
        let mut all: Vec<Value> = others
            .map(|(name, report)| {
                let mut other = report.instance.clone();
                (other["is_this"], other["name"]) = (false.into(), name.as_str().into());
                other
            })
            .collect();
        all.push(this);
        all.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        all
    }

    /// The counters of the last minute, and the cursor of the rest.
    pub(super) fn hot(&self, by: By, part: ListPart) -> (Vec<Value>, Value) {
        let mut merged = self.merged(by);
        merged.sort_by(|a, b| b.hits.cmp(&a.hits).then_with(|| a.of.hash.cmp(&b.of.hash)));
        let (part, next) = part.of(merged.into_iter());
        (part.iter().map(MergedCounter::json).collect(), next)
    }

    fn merged(&self, by: By) -> Vec<MergedCounter<'_>> {
        let lists =
            self.0.iter().map(|(_, report)| if by == By::Hits { &report.hits } else { &report.rejected });
        let mut merged: BTreeMap<&str, (MergedCounter<'_>, u64)> = BTreeMap::new();
        let mut unlisted_in_all = 0_u64;
        for list in lists {
            let unlisted = if list.len() < LISTED {
                0
            } else {
                list.last().map_or(0, |last| last.hits.saturating_add(last.error))
            };
            unlisted_in_all = unlisted_in_all.saturating_add(unlisted);
            for of in list {
                let none = MergedCounter { of, hits: 0, at_least: 0, at_most: 0, used: 0.0 };
                let (counter, known) = merged.entry(&of.hash).or_insert((none, 0));
                counter.hits = counter.hits.saturating_add(of.hits);
                counter.at_least = counter.at_least.saturating_add(of.hits.saturating_sub(of.error));
                counter.at_most = counter.at_most.saturating_add(of.hits.saturating_add(of.error));
                counter.used = counter.used.max(of.used);
                *known = known.saturating_add(unlisted);
            }
        }
        let all = merged.into_values().map(|(counter, known)| {
            let at_most = counter.at_most.saturating_add(unlisted_in_all.saturating_sub(known));
            MergedCounter { at_most, ..counter }
        });
        all.collect()
    }
}

// === impl MergedCounter ===

impl MergedCounter<'_> {
    fn json(&self) -> Value {
        let Self { of, hits, at_least, at_most, used } = self;
        let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        json!({
            "rule": of.rule,
            "domain": of.domain,
            "entries": of.entries.as_ref().map(|entries| entries.iter().map(entry).collect::<Vec<_>>()),
            "text": of.text,
            "number": of.hash.get(..8),
            "hits": count(*hits),
            "per_second": rounded(as_float(*hits) / 60.0),
            "at_least": count(*at_least),
            "at_most": count(*at_most),
            "used": used,
        })
    }
}
