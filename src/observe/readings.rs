//! The stats under the reference's dotted names, as statsd and `/stats` tell them.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    histogram::Distribution,
    metric::{Kind, Metric},
    name::sanitize,
    stats::Stats,
};

/// What one name stands at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A number that only grows.
    Counter(u64),
    /// A number that goes up and down.
    Gauge(u64),
    /// How long things took.
    Timing(Box<Distribution>),
}

/// Everything that is counted, by its dotted name.
///
/// Where two names come out the same once they are sanitized, their counters are added up.
#[must_use]
pub fn readings(stats: &Stats) -> BTreeMap<String, Reading> {
    let mut readings = BTreeMap::new();
    let mut count = |name: String, value: u64| match readings.entry(name) {
        Entry::Vacant(vacant) => {
            vacant.insert(Reading::Counter(value));
        }
        Entry::Occupied(mut occupied) => {
            if let Reading::Counter(sum) = occupied.get_mut() {
                *sum = sum.saturating_add(value);
            }
        }
    };
    for rule in stats.rules() {
        let path = sanitize(&rule.path.to_string());
        for (name, value) in rule.get().named() {
            count(format!("ratelimit.service.rate_limit.{path}.{name}"), value);
        }
    }
    for (domain, descriptors) in stats.unknown_domains() {
        let domain = sanitize(&domain);
        count(format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), descriptors);
    }
    for (name, counter) in [
        ("config_load_success", &stats.config_load_success),
        ("config_load_error", &stats.config_load_error),
        ("global_shadow_mode", &stats.global_shadow_mode),
        ("call.should_rate_limit.redis_error", &stats.redis_error),
        ("call.should_rate_limit.service_error", &stats.service_error),
    ] {
        count(format!("ratelimit.service.{name}"), counter.get());
    }
    for (method, stats) in stats.methods() {
        let timing = Reading::Timing(Box::new(stats.response_time.get()));
        readings.insert(format!("ratelimit_server.{method}.response_time"), timing);
        let total = Reading::Counter(stats.total_requests.get());
        readings.insert(format!("ratelimit_server.{method}.total_requests"), total);
    }
    readings.extend(stats.metrics().iter().map(own));
    readings
}

fn own(metric: &Metric) -> (String, Reading) {
    let mut name = metric.name.to_owned();
    for (_, value) in &metric.labels {
        name.push('.');
        // one label is one step
        name.push_str(&sanitize(value).replace('.', "_"));
    }
    let reading = match &metric.kind {
        Kind::Counter => Reading::Counter(metric.value),
        Kind::Gauge => Reading::Gauge(metric.value),
        Kind::Timing(held) => Reading::Timing(held.clone()),
    };
    (name, reading)
}
