//! The messages of a page's series.

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

use super::{
    changes::{Changes, Reading},
    points::{Buckets, Family, Kind, Number, Point, Points, Quantiles, Value, unit},
    settings::Temporality,
};

/// The most bytes of a page that become one message, which has about as many. Collectors accept 4 MiB.
const MAX_TEXT: usize = 1 << 20;

/// Makes messages of pages.
pub(super) struct Messages {
    resource: Resource,
    temporality: Temporality,
    /// The metric whose name says seconds, although its unit is a millisecond.
    in_milliseconds: Option<&'static str>,
    /// When the counters began, in nanoseconds since the epoch.
    start: u64,
    changes: Changes,
}

/// A message, and what it says about its series.
pub(super) struct Message {
    pub(super) request: ExportMetricsServiceRequest,
    /// To be given to [`Messages::sent`] when the collector has the message.
    pub(super) readings: Vec<Reading>,
}

// === impl Messages ===

impl Messages {
    /// Returns the messages of an instance with the attributes `resource`, whose counters began at `start`, in
    /// nanoseconds since the epoch.
    pub(super) fn new(
        resource: &[(String, String)],
        temporality: Temporality,
        in_milliseconds: Option<&'static str>,
        start: u64,
    ) -> Self {
        let attributes = resource.iter().map(|(key, value)| attribute(key, value.clone())).collect();
        Self {
            resource: Resource { attributes, ..Resource::default() },
            temporality,
            in_milliseconds,
            start,
            changes: Changes::default(),
        }
    }

    /// Returns the next message of `points`, which were read at `now`; none at their end.
    pub(super) fn next(&mut self, points: &mut Points<'_>, now: u64) -> Option<Message> {
        let (mut metrics, mut readings, mut size): (Vec<Metric>, Vec<Reading>, usize) = Default::default();
        for point in points {
            size += point.size;
            let is_delta = self.is_delta(point.family.kind);
            let (value, since) = if is_delta {
                readings.push(Reading { key: point.key.to_owned(), value: point.value.clone() });
                self.changes.since(point.key, &point.value)
            } else {
                (point.value, None)
            };
            let times = Times { start: since.unwrap_or(self.start), now };
            let point = Point { value, ..point };
            if metrics.last().is_none_or(|metric| metric.name != point.family.name) {
                metrics.push(self.metric(point.family));
            }
            if let Some(Metric { data: Some(data), .. }) = metrics.last_mut() {
                push(data, point, times);
            }
            if size >= MAX_TEXT {
                break;
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

    /// Records that the collector has a message, whose points were read at `now`.
    pub(super) fn sent(&mut self, readings: Vec<Reading>, now: u64) {
        self.changes.exported(readings, now);
    }

    /// Records that all messages of a page, which was read at `now`, were made.
    pub(super) fn end_page(&mut self, now: u64) {
        self.changes.end_export(now);
    }

    /// Returns a metric without points.
    fn metric(&self, family: Family<'_>) -> Metric {
        let temporality = if self.is_delta(family.kind) {
            AggregationTemporality::Delta
        } else {
            AggregationTemporality::Cumulative
        };
        let aggregation_temporality = temporality.into();
        let data = match family.kind {
            Kind::Counter => {
                Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality, is_monotonic: true })
            }
            Kind::Gauge => Data::Gauge(Gauge::default()),
            Kind::Histogram => {
                Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality })
            }
            Kind::Summary => Data::Summary(Summary::default()),
        };
        let is_in_milliseconds = self.in_milliseconds == Some(family.name);
        Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: if is_in_milliseconds { "ms" } else { unit(family.name) }.to_owned(),
            metadata: Vec::new(),
            data: Some(data),
        }
    }

    /// Returns whether the values of such a metric are what was counted since the last export.
    fn is_delta(&self, kind: Kind) -> bool {
        match self.temporality {
            Temporality::Cumulative => false,
            Temporality::Delta => matches!(kind, Kind::Counter | Kind::Histogram),
            Temporality::LowMemory => kind == Kind::Histogram,
        }
    }
}

/// The time in which a point was counted, in nanoseconds since the epoch.
#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

/// Adds a point of the same kind to the points of a metric.
fn push(data: &mut Data, point: Point<'_>, Times { start, now }: Times) {
    let attributes = point.labels.into_iter().map(|(name, value)| attribute(name, value)).collect();
    match (data, point.value) {
        (Data::Sum(sum), Value::Number(value)) => sum.data_points.push(NumberDataPoint {
            attributes,
            start_time_unix_nano: start,
            time_unix_nano: now,
            value: Some(number(value)),
            ..NumberDataPoint::default()
        }),
        (Data::Gauge(gauge), Value::Number(value)) => gauge.data_points.push(NumberDataPoint {
            attributes,
            time_unix_nano: now,
            value: Some(number(value)),
            ..NumberDataPoint::default()
        }),
        (Data::Histogram(histogram), Value::Histogram(Buckets { bounds, counts, sum })) => {
            histogram.data_points.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: counts.iter().sum(),
                sum: Some(sum),
                bucket_counts: counts,
                explicit_bounds: bounds,
                ..HistogramDataPoint::default()
            });
        }
        (Data::Summary(summary), Value::Summary(Quantiles { values, sum, count })) => {
            let at = |(quantile, value)| ValueAtQuantile { quantile, value };
            summary.data_points.push(SummaryDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                count,
                sum,
                quantile_values: values.into_iter().map(at).collect(),
                ..SummaryDataPoint::default()
            });
        }
        // a page has no such lines
        _ => {}
    }
}

fn number(number: Number) -> number_data_point::Value {
    match number {
        Number::Int(int) => number_data_point::Value::AsInt(int),
        Number::Double(double) => number_data_point::Value::AsDouble(double),
    }
}

fn attribute(key: &str, value: String) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value)) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all messages of a page.
    fn all(messages: &mut Messages, page: &str, now: u64) -> Vec<Message> {
        let mut points = Points::of(page);
        let all = std::iter::from_fn(|| messages.next(&mut points, now)).collect();
        messages.end_page(now);
        all
    }

    fn metrics(message: &Message) -> &[Metric] {
        &message.request.resource_metrics[0].scope_metrics[0].metrics
    }

    #[test]
    fn a_page_with_many_series_becomes_several_messages() {
        let mut page = String::from("# HELP a_total A.\n# TYPE a_total counter\n");
        for i in 0..3_000 {
            let _ = std::fmt::Write::write_fmt(
                &mut page,
                format_args!("a_total{{x=\"{i}{}\"}} {i}\n", "y".repeat(990)),
            );
        }
        page.push_str("# HELP b B.\n# TYPE b gauge\nb 1\n");
        let mut messages = Messages::new(&[], Temporality::Cumulative, None, 1);
        let all = all(&mut messages, &page, 2);
        assert_eq!(all.len(), 3);
        let mut points = 0;
        for message in &all {
            use prost::Message as _;
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
        let page = "# TYPE c counter\nc 5\n# TYPE g gauge\ng 5\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 5\nh_sum 5\nh_count 5\n\
            # TYPE s summary\ns_sum 5\ns_count 5\n";
        for (temporality, expected) in [
            (Temporality::Cumulative, [5, 5, 5, 5]),
            (Temporality::Delta, [0, 5, 0, 5]),
            (Temporality::LowMemory, [5, 5, 0, 5]),
        ] {
            let mut messages = Messages::new(&[], temporality, None, 1);
            for message in all(&mut messages, page, 10) {
                messages.sent(message.readings, 10);
            }
            let second = all(&mut messages, page, 20);
            let value = |metric: &Metric| match metric.data.as_ref().expect("data") {
                Data::Sum(Sum { data_points, .. }) | Data::Gauge(Gauge { data_points }) => {
                    let Some(number_data_point::Value::AsInt(value)) = data_points[0].value else {
                        panic!("an int")
                    };
                    (value, data_points[0].start_time_unix_nano)
                }
                Data::Histogram(histogram) => {
                    let point = &histogram.data_points[0];
                    assert_eq!(point.bucket_counts, [point.count]);
                    (i64::try_from(point.count).expect("few"), point.start_time_unix_nano)
                }
                Data::Summary(summary) => (i64::try_from(summary.data_points[0].count).expect("few"), 1),
                Data::ExponentialHistogram(_) => panic!("weir has none"),
            };
            let values: Vec<_> = metrics(&second[0]).iter().map(value).collect();
            for ((value, start), expected) in values.into_iter().zip(expected) {
                assert_eq!(value, expected, "{temporality:?}");
                // of a gauge there is none
                assert!([0, if expected == 0 { 10 } else { 1 }].contains(&start), "{temporality:?}: {start}");
            }
        }
    }

    #[test]
    fn units_come_from_names() {
        let page = "# TYPE a_seconds gauge\na_seconds 1\n# TYPE b_seconds gauge\nb_seconds 1\n";
        let mut messages = Messages::new(&[], Temporality::Cumulative, Some("b_seconds"), 1);
        let message = &all(&mut messages, page, 2)[0];
        assert_eq!([&*metrics(message)[0].unit, &*metrics(message)[1].unit], ["s", "ms"]);
    }
}
