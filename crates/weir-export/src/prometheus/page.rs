//! A page in Prometheus' text format, written line by line.

use std::fmt::{Display, Write as _};

use super::family::{Family, Kind, Series, Value};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn write(page: &mut String, family: &Family) {
    let Family { name, help, kind, series, .. } = family;
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Summary => "summary",
    };
    // writing to a String cannot fail
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for Series { labels, value } in series {
        let mut sample = |suffix: &str, further: &str, value: &dyn Display| {
            let (labels, comma) = match (labels.text(), further) {
                ("", "") => {
                    let _ = writeln!(page, "{name}{suffix} {value}");
                    return;
                }
                (labels, further) if labels.is_empty() || further.is_empty() => (labels, ""),
                (labels, _) => (labels, ","),
            };
            let _ = writeln!(page, "{name}{suffix}{{{labels}{comma}{further}}} {value}");
        };
        match value {
            Value::Int(value) => sample("", "", value),
            Value::Double(value) => sample("", "", value),
            Value::Histogram(buckets) => {
                for (bound, below) in &buckets.at_most {
                    sample("_bucket", &format!("le=\"{bound}\""), below);
                }
                sample("_bucket", "le=\"+Inf\"", &buckets.count);
                sample("_sum", "", &buckets.sum);
                sample("_count", "", &buckets.count);
            }
            Value::Summary(quantiles) => {
                for (quantile, value) in &quantiles.values {
                    sample("", &format!("quantile=\"{quantile}\""), value);
                }
                sample("_sum", "", &quantiles.sum);
                sample("_count", "", &quantiles.count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::family::{Buckets, Labels},
        *,
    };

    #[test]
    fn a_histogram_has_buckets_a_sum_and_a_count() {
        let histogram = |labels, at_most: &[(f64, u64)]| {
            let value = Value::Histogram(Box::new(Buckets { at_most: at_most.into(), sum: 0.5, count: 4 }));
            Family::new(Kind::Histogram, "t", "T.", [Series { labels, value }])
        };
        let mut page = String::new();
        write(&mut page, &histogram(Labels::new([("a", "b")]), &[]));
        write(&mut page, &histogram(Labels::new([("", ""); 0]), &[(0.01, 0), (0.1, 3)]));
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "t_bucket{a=\"b\",le=\"+Inf\"} 4",
                "t_sum{a=\"b\"} 0.5",
                "t_count{a=\"b\"} 4",
                "t_bucket{le=\"0.01\"} 0",
                "t_bucket{le=\"0.1\"} 3",
                "t_bucket{le=\"+Inf\"} 4",
                "t_sum 0.5",
                "t_count 4",
            ]
        );
    }
}
