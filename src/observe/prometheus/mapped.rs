//! The stats of envoyproxy/ratelimit under the names that a mapper gives them.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    mapper::{Mapper, Series, StatKind},
    page::{Page, labels, units},
};
use crate::observe::{
    histogram::{BOUNDS, Bucket, Distribution},
    snapshot::{StatValue, reference},
    stats::Stats,
};

/// The beginnings of names that other metrics of the page have.
pub const RESERVED: [&str; 2] = ["weir_", "process_"];

/// The nanoseconds of a millisecond, the unit of durations before they are scaled.
const MILLISECOND: f64 = 1e6;

/// All series of one name.
struct Family<'m> {
    kind: StatKind,
    help: Option<&'m str>,
    /// By their labels, as text.
    series: BTreeMap<String, Value<'m>>,
}

enum Value<'m> {
    Number(f64),
    Times { times: Box<Distribution>, scale: f64, buckets: Option<&'m [usize]> },
}

/// Writes the stats. Like `statsd_exporter`, adds up counters of one name and labels, and leaves out a stat whose name
/// another kind of metric has.
pub(super) fn write(page: &mut Page, stats: &Stats, mapper: &Mapper) {
    let mut families: BTreeMap<String, Family<'_>> = BTreeMap::new();
    for (stat, value) in reference(stats) {
        let kind = match &value {
            StatValue::Counter(_) => StatKind::Counter,
            StatValue::Gauge(_) => StatKind::Gauge,
            StatValue::Timing(_) => StatKind::Observer,
        };
        let Some(series) = mapper.series(&stat, kind) else { continue };
        let value = Value::new(value, &series);
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
        let suffixes: &[&str] =
            if family.kind == StatKind::Observer { &["", "_bucket", "_sum", "_count"] } else { &[""] };
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
                (Value::Number(sum), Value::Number(more)) if self.kind == StatKind::Counter => *sum += more,
                (Value::Number(last), Value::Number(new)) => *last = new,
                (Value::Times { times, .. }, Value::Times { times: more, .. }) => add(times, &more),
                (Value::Number(_) | Value::Times { .. }, _) => {}
            },
        }
    }

    fn write(&self, name: &str, page: &mut Page) {
        let kind = match self.kind {
            StatKind::Counter => "counter",
            StatKind::Gauge => "gauge",
            StatKind::Observer => "histogram",
        };
        page.family(name, self.help.unwrap_or("A stat of envoyproxy/ratelimit."), kind);
        for (labels, value) in &self.series {
            match value {
                Value::Number(number) => page.sample(name, labels, number),
                Value::Times { times, scale, buckets } => {
                    page.histogram(name, labels, times, *buckets, MILLISECOND / scale);
                }
            }
        }
    }
}

/// Adds `more` to `times`.
fn add(times: &mut Distribution, more: &Distribution) {
    for (bucket, more) in times.buckets.iter_mut().zip(&more.buckets) {
        let Bucket { count, nanos } = bucket;
        *bucket = Bucket { count: count.saturating_add(more.count), nanos: nanos.saturating_add(more.nanos) };
    }
}

// === impl Value ===

impl<'m> Value<'m> {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are floats")]
    fn new(value: StatValue, series: &Series<'m>) -> Self {
        match value {
            StatValue::Counter(number) | StatValue::Gauge(number) => {
                Self::Number(number as f64 * series.scale)
            }
            StatValue::Timing(times) => Self::Times { times, scale: series.scale, buckets: series.buckets },
        }
    }
}

/// Returns the index of the bucket whose bound is `bound` after scaling, if there is one.
#[must_use]
pub fn bucket(bound: f64, scale: f64) -> Option<usize> {
    // written in decimal, so that a scaled bound may differ from it in its last digits
    bounds(scale).iter().position(|own| (own - bound).abs() <= own * 1e-9)
}

/// Returns the bounds of all buckets after scaling.
#[must_use]
pub fn bounds(scale: f64) -> Vec<f64> {
    BOUNDS.iter().map(|bound| units(*bound, MILLISECOND / scale)).collect()
}
