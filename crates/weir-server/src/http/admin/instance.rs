//! `GET /v1/instance`: this instance, its store and its traffic.

use std::sync::Arc;

use axum::{Extension, extract::State, http::Uri, response::Response};
use serde_json::{Value, json};
use weir_limit::SharedStore;
use weir_observe::{Metric, hot_keys::HotKeyValues};
use weir_store::Store;

use super::{
    answer::count,
    api::AdminApi,
    permission::{AdminCaller, CallerProof},
    problem::Problem,
    query::Query,
    recording, time,
    traffic::{Recent, as_float, rounded},
};
use weir_export::process::resident_memory;

/// What the metrics say of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreFacts {
    pub(super) kind: &'static str,
    /// The name in messages to people.
    pub(super) name: &'static str,
    pub(super) is_connected: bool,
    pub(super) is_available: bool,
    pub(super) is_shared: bool,
    pub(super) held: u64,
    pub(super) most: u64,
    /// Counters that were evicted with hits that nothing has.
    pub(super) lost: u64,
}

pub(super) async fn get<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::parse(&uri, &[])?;
    api.aside(move |api| {
        let mut instance = instance(api);
        let history = api.traffic.recent(api.uptime()).all;
        instance["history"] = history.map_or(Value::Null, |series| series.history(api.uptime(), api.now()));
        instance["access"] = access(&caller, api.context.limiter.shown_values());
        instance
    })
    .await
}

fn access(caller: &AdminCaller, values: HotKeyValues) -> Value {
    let by = match caller.proof {
        CallerProof::Loopback => "loopback",
        CallerProof::Address => "address",
        CallerProof::Token => "token",
        CallerProof::Cookie => "cookie",
        CallerProof::Certificate => "certificate",
    };
    json!({
        "level": caller.level.name(),
        "by": by,
        "name": &*caller.name,
        "can_try": caller.may_try,
        "values": values_name(values),
    })
}

pub(super) const fn values_name(values: HotKeyValues) -> &'static str {
    match values {
        HotKeyValues::Off => "off",
        HotKeyValues::Masked => "masked",
        HotKeyValues::Shown => "shown",
    }
}

/// Without what depends on the caller, and without the history.
pub(super) fn instance<S: Store>(api: &AdminApi<S>) -> Value {
    let context = &api.context;
    let (facts, recent) = (api.traffic.store(), api.traffic.recent(api.uptime()));
    let Recent { requests_per_second, store_calls_per_second, round_trip, latency, all } = recent;
    json!({
        "name": api.facts.instance,
        "version": env!("CARGO_PKG_VERSION"),
        "since": time::text(api.since),
        "now": time::text(api.now()),
        "mode": context.limiter.store().shared_counts().mode.name(),
        "store": {
            "kind": facts.kind,
            "state": facts.state(),
            "is_shared": facts.is_shared,
            "calls_per_second": store_calls_per_second,
            "round_trip": round_trip,
        },
        "clock_distance": clock_distance(api),
        "counters": { "held": count(facts.held), "most": count(facts.most) },
        "memory_bytes": count(resident_memory().unwrap_or_default()),
        "rules": api.rules_json(),
        "requests_per_second": requests_per_second,
        "rates": all.map(|series| series.rates_json(api.uptime())),
        "latency": latency.map(|[p50, p99]| json!({ "p50": p50, "p99": p99 })),
        "recording": recording::state(api),
    })
}

/// The seconds by which this clock is ahead of the store's; none without a shared store.
pub(super) fn clock_distance<S: Store>(api: &AdminApi<S>) -> Option<f64> {
    let store = api.context.limiter.store();
    store.shared_counts().store.map(|_| {
        let offset = store.clock_offset();
        let distance = rounded(as_float(offset.unsigned_abs()) / 1e6) / 1e3;
        if offset > 0 { -distance } else { distance }
    })
}

/// In short, for lists of instances.
pub(super) fn in_short<S: Store>(api: &AdminApi<S>, is_this: bool) -> Value {
    let instance = instance(api);
    json!({
        "name": instance["name"],
        "version": instance["version"],
        "since": instance["since"],
        "seen": instance["now"],
        "is_this": is_this,
        "store_state": instance["store"]["state"],
        "clock_distance": instance["clock_distance"],
        "rules": instance["rules"],
        "rates": instance["rates"],
        "requests_per_second": instance["requests_per_second"],
        "counters_held": instance["counters"]["held"],
        "memory_bytes": instance["memory_bytes"],
    })
}

// === impl StoreFacts ===

impl StoreFacts {
    pub(super) fn of(metrics: &[Metric], shared: Option<SharedStore>) -> Self {
        let sum = |is_it: &dyn Fn(&Metric) -> bool| {
            metrics
                .iter()
                .filter(|metric| is_it(metric))
                .fold(0_u64, |sum, metric| sum.saturating_add(metric.value))
        };
        let value = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
        let disk = value("weir.disk.available");
        let (kind, name) = match shared {
            Some(store) => (store.system, store.name),
            None if disk.is_some() => ("disk", "The disk"),
            None => ("memory", "Memory"),
        };
        let connected = shared.and_then(|store| value(&format!("weir.{}.connected", store.system)));
        let is_lost = |metric: &Metric| {
            metric.name == "weir.counters.evicted" && metric.labels.iter().any(|(_, value)| value == "lost")
        };
        Self {
            kind,
            name,
            is_connected: shared.is_none() || connected.is_none_or(|connected| connected > 0),
            is_available: value("weir.store.unavailable") != Some(1) && disk != Some(0),
            is_shared: shared.is_some(),
            held: sum(&|metric| metric.name == "weir.counters.live"),
            most: sum(&|metric| metric.name == "weir.counters.max"),
            lost: sum(&is_lost),
        }
    }

    pub(super) const fn state(&self) -> &'static str {
        match (self.is_connected, self.is_available) {
            (true, true) => "ok",
            (false, true) => "connecting",
            (_, false) => "unreachable",
        }
    }
}
