//! The stats of envoyproxy/ratelimit under the names that a mapper gives them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::Instant,
};

use super::family::{Buckets, Family, Kind, Labels, Quantiles, Series, Value, units};
use crate::snapshot::{RuleTotals, StatValue, reference, response_time};
use weir_observe::{
    histogram::{BOUNDS, Distribution, nanos},
    mapper::{self, BucketBound, Mapper, Observer, RESERVED, StatKind, Summary},
    method_stats::MethodStats,
    stats::Stats,
};

/// The unit of durations before they are scaled, in nanoseconds.
const MILLISECOND: f64 = 1e6;

struct Mapped<'m> {
    kind: Kind,
    help: Option<&'m str>,
    series: BTreeMap<Arc<Labels>, Sum<'m>>,
}

enum Sum<'m> {
    Number(f64),
    Histogram {
        times: Distribution,
        scale: f64,
        /// None for weir's own.
        bounds: Option<&'m [BucketBound]>,
    },
    Summary {
        times: Distribution,
        recent: Distribution,
        scale: f64,
        quantiles: &'m [f64],
    },
}

/// Like `statsd_exporter`, adds up counters of one name and labels, and omits a stat whose name has another kind.
pub(super) fn families(
    stats: &Stats,
    totals: &BTreeMap<Vec<String>, RuleTotals>,
    mapper: &Mapper,
) -> Vec<Family> {
    let mut by_name: BTreeMap<String, Mapped<'_>> = BTreeMap::new();
    let methods: BTreeMap<String, Arc<MethodStats>> =
        stats.methods().into_iter().map(|(method, stats)| (response_time(method), stats)).collect();
    for (stat, value) in reference(stats, totals) {
        let kind = match &value {
            StatValue::Counter(_) => StatKind::Counter,
            StatValue::Gauge(_) => StatKind::Gauge,
            StatValue::Timing(_) => StatKind::Observer,
        };
        let Some(series) = mapper.series(&stat, kind) else { continue };
        let value = match value {
            StatValue::Counter(number) | StatValue::Gauge(number) => Sum::number(number, &series),
            StatValue::Timing(times) => Sum::times(*times, methods.get(&stat), &series),
        };
        let kind = match (&value, kind) {
            (Sum::Histogram { .. }, _) => Kind::Histogram,
            (Sum::Summary { .. }, _) => Kind::Summary,
            (Sum::Number(_), StatKind::Gauge) => Kind::Gauge,
            (Sum::Number(_), _) => Kind::Counter,
        };
        let family = by_name.entry(series.name);
        let family = family.or_insert_with(|| Mapped { kind, help: series.help, series: BTreeMap::new() });
        if family.kind == kind {
            let labels = series.labels.into_iter().map(|(name, value)| (name.to_owned(), value));
            family.add(Labels::new(labels), value);
        }
    }
    let (mut taken, mut families) = (BTreeSet::new(), Vec::new());
    for (name, family) in by_name {
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
            let help = family.help.unwrap_or("A stat of envoyproxy/ratelimit.");
            let series = family.series.into_iter();
            let series = series.map(|(labels, sum)| Series { labels, value: sum.value() });
            families.push(Family::new(family.kind, name, help, series));
            taken.extend(names);
        }
    }
    families
}

// === impl Mapped ===

impl<'m> Mapped<'m> {
    fn add(&mut self, labels: Arc<Labels>, value: Sum<'m>) {
        match self.series.entry(labels) {
            Entry::Vacant(vacant) => {
                vacant.insert(value);
            }
            Entry::Occupied(mut occupied) => match (occupied.get_mut(), value) {
                (Sum::Number(sum), Sum::Number(more)) if self.kind == Kind::Counter => *sum += more,
                (Sum::Number(last), Sum::Number(new)) => *last = new,
                (Sum::Histogram { times, .. }, Sum::Histogram { times: more, .. }) => times.add(&more),
                (
                    Sum::Summary { times, recent, .. },
                    Sum::Summary { times: more, recent: more_recent, .. },
                ) => {
                    times.add(&more);
                    recent.add(&more_recent);
                }
                _ => {}
            },
        }
    }
}

// === impl Sum ===

impl<'m> Sum<'m> {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are floats")]
    fn number(number: u64, series: &mapper::Series<'m>) -> Self {
        Self::Number(number as f64 * series.scale)
    }

    fn times(times: Distribution, method: Option<&Arc<MethodStats>>, series: &mapper::Series<'m>) -> Self {
        let scale = series.scale;
        match series.observer {
            Observer::Histogram(bounds) => Self::Histogram { times, scale, bounds: bounds.as_deref() },
            Observer::Summary(Summary { quantiles, max_age, .. }) => {
                let recent = method.map(|method| method.response_time.recent(*max_age, Instant::now()));
                Self::Summary { recent: recent.unwrap_or_else(|| times.clone()), times, scale, quantiles }
            }
        }
    }

    fn value(self) -> Value {
        match self {
            Self::Number(number) => Value::Double(number),
            Self::Histogram { times, scale, bounds } => {
                let at_most = match bounds {
                    Some(bounds) => {
                        bounds.iter().map(|bound| (bound.written, times.at_most(bound.nanos))).collect()
                    }
                    None => BOUNDS
                        .map(|bound| (units(bound, MILLISECOND / scale), times.at_most(nanos(bound))))
                        .into(),
                };
                let (sum, count) = (units(times.sum(), MILLISECOND / scale), times.count());
                Value::Histogram(Box::new(Buckets { at_most, sum, count }))
            }
            Self::Summary { times, recent, scale, quantiles } => {
                let values = quantiles.iter().map(|quantile| {
                    let nanos = recent.quantile(*quantile);
                    (*quantile, nanos.map_or(f64::NAN, |nanos| nanos / MILLISECOND * scale))
                });
                let (sum, count) = (units(times.sum(), MILLISECOND / scale), times.count());
                Value::Summary(Box::new(Quantiles { values: values.collect(), sum, count }))
            }
        }
    }
}
