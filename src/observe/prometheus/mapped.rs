//! The stats of envoyproxy/ratelimit under the names that a mapper gives them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    mapper::{Bound, Mapper, Observer, Series, StatKind},
    page::{Page, labels, units},
};
use crate::observe::{
    histogram::{BOUNDS, Histogram},
    method_stats::MethodStats,
    refined::{Times, nanos},
    snapshot::{StatValue, reference, response_time},
    stats::Stats,
};

/// The beginnings of names that other metrics of the page have.
pub const RESERVED: [&str; 2] = ["weir_", "process_"];

/// The nanoseconds of a millisecond, the unit of durations before they are scaled.
const MILLISECOND: f64 = 1e6;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

/// All series of one name.
struct Family<'m> {
    kind: Kind,
    help: Option<&'m str>,
    /// By their labels, as text.
    series: BTreeMap<String, Value<'m>>,
}

enum Value<'m> {
    Number(f64),
    Histogram {
        times: Times,
        scale: f64,
        /// None for weir's own.
        bounds: Option<&'m [Bound]>,
    },
    Summary {
        times: Times,
        recent: Times,
        scale: f64,
        quantiles: &'m [f64],
    },
}

/// Writes the stats. Like `statsd_exporter`, adds up counters of one name and labels, and leaves out a stat whose name
/// another kind of metric has.
pub(super) fn write(page: &mut Page, stats: &Stats, mapper: &Mapper) {
    let mut families: BTreeMap<String, Family<'_>> = BTreeMap::new();
    let methods: BTreeMap<String, Arc<MethodStats>> =
        stats.methods().into_iter().map(|(method, stats)| (response_time(method), stats)).collect();
    for (stat, value) in reference(stats) {
        let kind = match &value {
            StatValue::Counter(_) => StatKind::Counter,
            StatValue::Gauge(_) => StatKind::Gauge,
            StatValue::Timing(_) => StatKind::Observer,
        };
        let Some(series) = mapper.series(&stat, kind) else { continue };
        let value = match value {
            StatValue::Counter(number) | StatValue::Gauge(number) => Value::number(number, &series),
            StatValue::Timing(times) => match methods.get(&stat) {
                Some(method) => Value::times(&method.response_time, &series),
                None => Value::Histogram { times: Times::from(&*times), scale: series.scale, bounds: None },
            },
        };
        let kind = match (&value, kind) {
            (Value::Histogram { .. }, _) => Kind::Histogram,
            (Value::Summary { .. }, _) => Kind::Summary,
            (Value::Number(_), StatKind::Gauge) => Kind::Gauge,
            (Value::Number(_), _) => Kind::Counter,
        };
        let family = families.entry(series.name);
        let family = family.or_insert_with(|| Family { kind, help: series.help, series: BTreeMap::new() });
        if family.kind == kind {
            let labels = labels(series.labels.iter().map(|(name, value)| (*name, value.as_str())));
            family.add(labels, value);
        }
    }
    let mut taken = BTreeSet::new();
    for (name, family) in &families {
        // a histogram has three further names; a name that comes twice would make Prometheus reject the page
        let suffixes: &[&str] = match family.kind {
            Kind::Histogram => &["", "_bucket", "_sum", "_count"],
            Kind::Summary => &["", "_sum", "_count"],
            Kind::Counter | Kind::Gauge => &[""],
        };
        let names: Vec<String> = suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect();
        let is_free =
            |name: &String| !taken.contains(name) && !RESERVED.iter().any(|start| name.starts_with(start));
        if names.iter().all(is_free) {
            family.write(name, page);
            taken.extend(names);
        }
    }
}

// === impl Family ===

impl<'m> Family<'m> {
    fn add(&mut self, labels: String, value: Value<'m>) {
        match self.series.entry(labels) {
            Entry::Vacant(vacant) => {
                vacant.insert(value);
            }
            Entry::Occupied(mut occupied) => match (occupied.get_mut(), value) {
                (Value::Number(sum), Value::Number(more)) if self.kind == Kind::Counter => *sum += more,
                (Value::Number(last), Value::Number(new)) => *last = new,
                (Value::Histogram { times, .. }, Value::Histogram { times: more, .. }) => times.add(&more),
                (
                    Value::Summary { times, recent, .. },
                    Value::Summary { times: more, recent: more_recent, .. },
                ) => {
                    times.add(&more);
                    recent.add(&more_recent);
                }
                _ => {}
            },
        }
    }

    fn write(&self, name: &str, page: &mut Page) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        page.family(name, self.help.unwrap_or("A stat of envoyproxy/ratelimit."), kind);
        for (labels, value) in &self.series {
            match value {
                Value::Number(number) => page.sample(name, labels, number),
                Value::Histogram { times, scale, bounds } => {
                    let buckets: Vec<(f64, u64)> = match bounds {
                        Some(bounds) => {
                            bounds.iter().map(|bound| (bound.written, times.at_most(bound.nanos))).collect()
                        }
                        None => BOUNDS
                            .map(|bound| (units(bound, MILLISECOND / scale), times.at_most(nanos(bound))))
                            .into(),
                    };
                    page.buckets(name, labels, buckets, times.count());
                    page.total(name, labels, scaled(times.sum(), *scale), times.count());
                }
                Value::Summary { times, recent, scale, quantiles } => {
                    for quantile in *quantiles {
                        let label = format!("quantile=\"{quantile}\"");
                        let labels = if labels.is_empty() { label } else { format!("{labels},{label}") };
                        let value =
                            recent.quantile(*quantile).map_or(f64::NAN, |nanos| nanos / MILLISECOND * scale);
                        page.sample(name, &labels, value);
                    }
                    page.total(name, labels, scaled(times.sum(), *scale), times.count());
                }
            }
        }
    }
}

// === impl Value ===

impl<'m> Value<'m> {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are floats")]
    fn number(number: u64, series: &Series<'m>) -> Self {
        Self::Number(number as f64 * series.scale)
    }

    fn times(histogram: &Histogram, series: &Series<'m>) -> Self {
        let (times, scale) = (histogram.times(), series.scale);
        match series.observer {
            Observer::Histogram(bounds) => Self::Histogram { times, scale, bounds: bounds.as_deref() },
            Observer::Summary(summary) => Self::Summary {
                times,
                recent: histogram.recent(summary.max_age, Instant::now()),
                scale,
                quantiles: &summary.quantiles,
            },
        }
    }
}

fn scaled(nanos: u64, scale: f64) -> f64 {
    units(Duration::from_nanos(nanos), MILLISECOND / scale)
}
