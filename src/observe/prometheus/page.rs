//! A page in Prometheus' text format, written line by line.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use crate::observe::{
    histogram::{BOUNDS, Distribution},
    text::is_active,
};

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The unit of `ratelimit_service_response_time_seconds`, despite its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    Seconds,
    /// Milliseconds: the reference's `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`.
    Milliseconds,
}

/// Returns `name="value",…`, escaped.
pub(super) fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str(r"\\"),
                '"' => text.push_str(r#"\""#),
                '\n' => text.push_str(r"\n"),
                c if is_active(c) => {
                    text.push('\\');
                    text.extend(c.escape_unicode());
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

// === impl TimeUnit ===

impl TimeUnit {
    /// Returns its nanoseconds.
    pub(super) const fn nanos(self) -> f64 {
        match self {
            Self::Seconds => 1e9,
            Self::Milliseconds => 1e6,
        }
    }
}

/// The text of a scrape.
#[derive(Default)]
pub(super) struct Page {
    pub(super) text: String,
}

// === impl Page ===

impl Page {
    pub(super) fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(super) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value}"));
        }
    }

    /// Writes the cumulative buckets of `times`, their sum and their count, in units of `unit` nanoseconds.
    pub(super) fn histogram(&mut self, name: &str, labels: &str, times: &Distribution, unit: f64) {
        let mut below = 0;
        let buckets = BOUNDS.into_iter().zip(&times.buckets).map(|(bound, bucket)| {
            below += bucket.count;
            (units(bound, unit), below)
        });
        self.buckets(name, labels, buckets, times.count());
        self.total(name, labels, units(times.sum(), unit), times.count());
    }

    /// Writes cumulative buckets, each with its bound, and that of all `count`.
    pub(super) fn buckets(
        &mut self,
        name: &str,
        labels: &str,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, below) in buckets {
            self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}"));
        }
        self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"));
    }

    /// Writes the sum and the number of durations.
    pub(super) fn total(&mut self, name: &str, labels: &str, sum: f64, count: u64) {
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        // writing to a String cannot fail
        let _ = writeln!(self.text, "{line}");
    }
}

/// Returns `duration` in units of `unit` nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "exact for 104 days of nanoseconds")]
pub(super) fn units(duration: Duration, unit: f64) -> f64 {
    duration.as_nanos() as f64 / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(labels([("a", "x\"y\\z\n")]), r#"a="x\"y\\z\n""#);
    }

    #[test]
    fn a_histogram_has_buckets_a_sum_and_a_count() {
        let mut page = Page::default();
        page.buckets("t", "", [(0.01, 0), (0.1, 3)], 4);
        page.buckets("u", "a=\"b\"", [], 4);
        page.total("u", "a=\"b\"", 0.5, 4);
        let lines: Vec<&str> = page.text.lines().collect();
        assert_eq!(
            lines,
            [
                "t_bucket{le=\"0.01\"} 0",
                "t_bucket{le=\"0.1\"} 3",
                "t_bucket{le=\"+Inf\"} 4",
                "u_bucket{a=\"b\",le=\"+Inf\"} 4",
                "u_sum{a=\"b\"} 0.5",
                "u_count{a=\"b\"} 4",
            ]
        );
    }
}
