//! The lines of `/metrics`, and those that the same values of an export would be.

use std::{collections::BTreeMap, fmt::Write as _};

use opentelemetry_proto::tonic::{
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{AggregationTemporality, Metric, NumberDataPoint, metric::Data, number_data_point},
};

use crate::{
    in_process::{Weir, get},
    receiver::Received,
};

/// Values by series, such as `a_total{x="y"}`; and types and help texts by name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) types: BTreeMap<String, String>,
    pub(crate) help: BTreeMap<String, String>,
}

// === impl Page ===

impl Page {
    /// Returns what `/metrics` shows now.
    pub(crate) async fn of_weir(weir: &Weir) -> Self {
        let response = get(weir.addresses.http, "/metrics").await;
        let (_, text) = response.split_once("\r\n\r\n").expect("a body");
        let mut page = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                    page.help.insert(name.into(), help.into());
                }
                (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                    page.types.insert(name.into(), kind.into());
                }
                _ => {
                    let (series, value) = line.rsplit_once(' ').expect("a value");
                    page.values.insert(series.into(), value.parse().expect("a number"));
                }
            }
        }
        page
    }

    /// Returns the lines that an export would be.
    pub(crate) fn of_export(received: &Received) -> Self {
        let mut page = Self::default();
        for metric in received.metrics() {
            page.add(metric);
        }
        page
    }

    /// Removes the types and help texts of metrics without series, which an export does not have.
    pub(crate) fn with_values(mut self) -> Self {
        let values = self.values.keys().cloned().collect::<Vec<_>>();
        let has_series = |name: &str| values.iter().any(|series| series.starts_with(name));
        self.types.retain(|name, _| has_series(name));
        self.help.retain(|name, _| has_series(name));
        self
    }

    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        self.values.get(series).copied()
    }

    fn add(&mut self, metric: &Metric) {
        let name = &metric.name;
        let kind = match metric.data.as_ref().expect("data") {
            Data::Gauge(gauge) => {
                self.numbers(name, &gauge.data_points);
                "gauge"
            }
            Data::Sum(sum) => {
                assert!(sum.is_monotonic, "{name}");
                self.numbers(name, &sum.data_points);
                "counter"
            }
            Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    let labels = labels(&point.attributes);
                    let mut below = 0;
                    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1, "{name}");
                    let bounds = point.explicit_bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        below += count;
                        let le = format!("le=\"{bound}\"");
                        self.number(&format!("{name}_bucket"), &join(&labels, &le), float(below));
                    }
                    assert_eq!(below, point.count, "{name}");
                    self.number(&format!("{name}_sum"), &labels, point.sum.expect("a sum"));
                    self.number(&format!("{name}_count"), &labels, float(point.count));
                }
                "histogram"
            }
            Data::Summary(_) | Data::ExponentialHistogram(_) => panic!("no such metric is on these pages"),
        };
        self.types.insert(name.clone(), kind.to_owned());
        self.help.insert(name.clone(), metric.description.clone());
    }

    fn numbers(&mut self, name: &str, points: &[NumberDataPoint]) {
        for point in points {
            self.number(name, &labels(&point.attributes), number(point));
        }
    }

    fn number(&mut self, name: &str, labels: &str, value: f64) {
        let series = if labels.is_empty() { name.to_owned() } else { format!("{name}{{{labels}}}") };
        assert!(self.values.insert(series, value).is_none(), "twice: {name} {labels}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "tests count little")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "tests count little")]
fn number(point: &NumberDataPoint) -> f64 {
    match point.value.expect("a value") {
        number_data_point::Value::AsDouble(double) => double,
        number_data_point::Value::AsInt(int) => int as f64,
    }
}

fn labels(attributes: &[KeyValue]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
        let Some(Value::StringValue(value)) = value else { panic!("a text: {value:?}") };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}{}=\"{value}\"", attribute.key).expect("a string");
    }
    text
}

fn join(labels: &str, label: &str) -> String {
    if labels.is_empty() { label.to_owned() } else { format!("{labels},{label}") }
}

/// Returns the temporality of a metric; none of a gauge.
pub(crate) fn temporality(metric: &Metric) -> Option<AggregationTemporality> {
    match metric.data.as_ref().expect("data") {
        Data::Sum(sum) => Some(sum.aggregation_temporality()),
        Data::Histogram(histogram) => Some(histogram.aggregation_temporality()),
        _ => None,
    }
}
