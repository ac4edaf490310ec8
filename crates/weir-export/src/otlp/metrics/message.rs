use std::collections::VecDeque;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint, metric::Data, number_data_point,
        summary_data_point::ValueAtQuantile,
    },
    resource::v1::Resource,
};
use prost::Message as _;

use super::{
    changes::{Changes, SeriesReading},
    settings::Temporality,
};
use crate::prometheus::{Family, Kind, Series, Value};

/// The bytes after which a message takes no more points. Collectors accept 4 MiB.
const MAX_BYTES: usize = 1 << 20;

pub(super) struct Messages {
    resource: Resource,
    temporality: Temporality,
    /// When the counters began, in nanoseconds since the epoch.
    start: u64,
    changes: Changes,
}

pub(super) struct Message {
    pub(super) request: ExportMetricsServiceRequest,
    /// To be given to [`Messages::sent`] when the collector has the message.
    pub(super) readings: Vec<SeriesReading>,
}

// === impl Messages ===

impl Messages {
    pub(super) fn new(resource: &[(String, String)], temporality: Temporality, start: u64) -> Self {
        let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
        let resource = Resource { attributes, ..Resource::default() };
        Self { resource, temporality, start, changes: Changes::default() }
    }

    /// Takes the series of the next message from `families`, which were read at `now`; none if none are left.
    pub(super) fn next(&mut self, families: &mut VecDeque<Family>, now: u64) -> Option<Message> {
        let (mut metrics, mut readings, mut size): (Vec<Metric>, Vec<SeriesReading>, usize) =
            Default::default();
        while size < MAX_BYTES
            && let Some(mut family) = families.pop_front()
        {
            let is_delta = self.is_delta(family.kind);
            let (mut data, mut rest) = (self.data(family.kind), family.series.into_iter());
            let is_shown = rest.len() > 0;
            while size < MAX_BYTES
                && let Some(Series { labels, value }) = rest.next()
            {
                let attributes = labels.pairs().iter().map(|(name, value)| attribute(name, value)).collect();
                let (value, since) = if is_delta {
                    let key = (family.name.clone(), labels);
                    let change = self.changes.since(&key, &value);
                    readings.push(SeriesReading { key, value });
                    change
                } else {
                    (value, None)
                };
                size += push(
                    &mut data,
                    attributes,
                    value,
                    TimesOfPoint { start: since.unwrap_or(self.start), now },
                );
            }
            if is_shown {
                metrics.push(Metric {
                    name: family.name.clone(),
                    description: family.help.clone(),
                    unit: family.unit.to_owned(),
                    metadata: Vec::new(),
                    data: Some(data),
                });
            }
            family.series = rest.collect();
            if !family.series.is_empty() {
                families.push_front(family);
            }
        }
        if metrics.is_empty() {
            return None;
        }
        let scope = InstrumentationScope {
            name: "weir".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, schema_url: String::new() }];
        Some(Message { request: ExportMetricsServiceRequest { resource_metrics }, readings })
    }

    pub(super) fn sent(&mut self, readings: Vec<SeriesReading>, now: u64) {
        self.changes.exported(readings, now);
    }

    /// To be called when the collector has all messages of an export, which was read at `now`.
    pub(super) fn end_export(&mut self, now: u64) {
        self.changes.end_export(now);
    }

    fn data(&self, kind: Kind) -> Data {
        let temporality = if self.is_delta(kind) {
            AggregationTemporality::Delta
        } else {
            AggregationTemporality::Cumulative
        };
        let aggregation_temporality = temporality.into();
        let data_points = Vec::new();
        match kind {
            Kind::Counter => Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }),
            Kind::Gauge => Data::Gauge(Gauge::default()),
            Kind::Histogram => {
                Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality })
            }
            Kind::Summary => Data::Summary(Summary::default()),
        }
    }

    fn is_delta(&self, kind: Kind) -> bool {
        match self.temporality {
            Temporality::Cumulative => false,
            Temporality::Delta => matches!(kind, Kind::Counter | Kind::Histogram),
            Temporality::LowMemory => kind == Kind::Histogram,
        }
    }
}

#[derive(Clone, Copy)]
struct TimesOfPoint {
    start: u64,
    now: u64,
}

/// Returns the bytes of the point.
fn push(
    data: &mut Data,
    attributes: Vec<KeyValue>,
    value: Value,
    TimesOfPoint { start, now }: TimesOfPoint,
) -> usize {
    match (data, value) {
        (Data::Histogram(histogram), Value::Histogram(buckets)) => {
            let mut point = HistogramDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: buckets.count,
                sum: Some(buckets.sum),
                ..HistogramDataPoint::default()
            };
            let mut so_far = 0;
            for (bound, at_most) in buckets.at_most {
                if bound.is_finite() {
                    point.explicit_bounds.push(bound);
                    point.bucket_counts.push(at_most.saturating_sub(so_far));
                    so_far = at_most;
                }
            }
            point.bucket_counts.push(buckets.count.saturating_sub(so_far));
            let size = point.encoded_len();
            histogram.data_points.push(point);
            size
        }
        (Data::Summary(summary), Value::Summary(quantiles)) => {
            let at = |(quantile, value)| ValueAtQuantile { quantile, value };
            let point = SummaryDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: quantiles.count,
                sum: quantiles.sum,
                quantile_values: quantiles.values.into_iter().map(at).collect(),
                ..SummaryDataPoint::default()
            };
            let size = point.encoded_len();
            summary.data_points.push(point);
            size
        }
        (data, value) => {
            let value = match value {
                Value::Int(value) => {
                    number_data_point::Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))
                }
                Value::Double(value) => number_data_point::Value::AsDouble(value),
                Value::Histogram(_) | Value::Summary(_) => return 0,
            };
            let (points, start_time_unix_nano) = match data {
                Data::Sum(sum) => (&mut sum.data_points, start),
                Data::Gauge(gauge) => (&mut gauge.data_points, 0),
                _ => return 0,
            };
            let point = NumberDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano: now,
                value: Some(value),
                ..NumberDataPoint::default()
            };
            let size = point.encoded_len();
            points.push(point);
            size
        }
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::{Buckets, Labels, Quantiles};

    fn all(messages: &mut Messages, families: Vec<Family>, now: u64) -> Vec<Message> {
        let mut families = families.into();
        let all = std::iter::from_fn(|| messages.next(&mut families, now)).collect();
        messages.end_export(now);
        all
    }

    fn metrics(message: &Message) -> &[Metric] {
        &message.request.resource_metrics[0].scope_metrics[0].metrics
    }

    #[test]
    fn many_series_become_several_messages() {
        let series = (0..3_000).map(|i| {
            let labels = Labels::new([("x", format!("{i}{}", "y".repeat(990)))]);
            Series::int(&labels, i)
        });
        let many = Family::new(Kind::Counter, "a_total", "A.", series);
        let one = Family::new(Kind::Gauge, "b", "B.", [Series::int(&Labels::new([("x", "y")]), 1)]);
        let mut messages = Messages::new(&[], Temporality::Cumulative, 1);
        let all = all(&mut messages, vec![many, Family::new(Kind::Gauge, "none", "None.", []), one], 2);
        assert_eq!(all.len(), 3);
        let mut points = 0;
        for message in &all {
            assert!(message.request.encoded_len() < 4 << 20);
            let Some(Data::Sum(sum)) = &metrics(message)[0].data else { panic!("a counter") };
            assert_eq!(metrics(message)[0].name, "a_total");
            points += sum.data_points.len();
        }
        assert_eq!(points, 3_000);
        assert_eq!(metrics(&all[2])[1].name, "b");
    }

    #[test]
    fn only_counters_and_histograms_have_a_temporality() {
        let histogram = Buckets { at_most: vec![(1.0, 2), (f64::INFINITY, 5)], sum: 5.0, count: 5 };
        let summary = Quantiles { values: vec![(0.5, 1.0)], sum: 5.0, count: 5 };
        let values = [
            (Kind::Counter, Value::Int(5)),
            (Kind::Gauge, Value::Int(5)),
            (Kind::Histogram, Value::Histogram(Box::new(histogram))),
            (Kind::Summary, Value::Summary(Box::new(summary))),
        ];
        let families: Vec<Family> = values
            .into_iter()
            .map(|(kind, value)| {
                let series = Series { labels: Labels::new([("a", "b")]), value };
                Family::new(kind, format!("{kind:?}"), "Help.", [series])
            })
            .collect();
        for (temporality, expected) in [
            (Temporality::Cumulative, [5, 5, 5, 5]),
            (Temporality::Delta, [0, 5, 0, 5]),
            (Temporality::LowMemory, [5, 5, 0, 5]),
        ] {
            let mut messages = Messages::new(&[], temporality, 1);
            for message in all(&mut messages, families.clone(), 10) {
                messages.sent(message.readings, 10);
            }
            let second = all(&mut messages, families.clone(), 20);
            let value = |metric: &Metric| match metric.data.as_ref().expect("data") {
                Data::Sum(Sum { data_points, .. }) | Data::Gauge(Gauge { data_points }) => {
                    let Some(number_data_point::Value::AsInt(value)) = data_points[0].value else {
                        panic!("an int")
                    };
                    (value, data_points[0].start_time_unix_nano)
                }
                Data::Histogram(histogram) => {
                    let point = &histogram.data_points[0];
                    assert_eq!(point.bucket_counts, if point.count == 0 { [0, 0] } else { [2, 3] });
                    (i64::try_from(point.count).expect("few"), point.start_time_unix_nano)
                }
                Data::Summary(summary) => (i64::try_from(summary.data_points[0].count).expect("few"), 1),
                Data::ExponentialHistogram(_) => panic!("weir has none"),
            };
            let values: Vec<_> = metrics(&second[0]).iter().map(value).collect();
            assert_eq!(values.len(), expected.len());
            for ((value, start), expected) in values.into_iter().zip(expected) {
                assert_eq!(value, expected, "{temporality:?}");
                // of a gauge there is none
                assert!([0, if expected == 0 { 10 } else { 1 }].contains(&start), "{temporality:?}: {start}");
            }
        }
    }
}
