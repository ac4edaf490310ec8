//! A page in Prometheus' text format, written line by line.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use crate::observe::histogram::{BOUNDS, Distribution};

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

    /// Writes the cumulative buckets of `times`, their sum and their count, in units of `unit` nanoseconds. `shown` are the
    /// indices of the buckets, all if none are given; +Inf is always shown.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        times: &Distribution,
        shown: Option<&[usize]>,
        unit: f64,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        for (i, (bound, bucket)) in BOUNDS.into_iter().zip(&times.buckets).enumerate() {
            below += bucket.count;
            if shown.is_none_or(|shown| shown.contains(&i)) {
                let bound = units(bound, unit);
                self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}"));
            }
        }
        let count = times.count();
        self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"));
        self.sample(&format!("{name}_sum"), labels, units(times.sum(), unit));
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
    fn a_histogram_shows_the_chosen_buckets() {
        let mut page = Page::default();
        let mut times = Distribution::default();
        times.buckets[2].count = 3;
        times.buckets[20].count = 1;
        page.histogram("t", "", &times, Some(&[1, 4]), TimeUnit::Milliseconds.nanos());
        page.histogram("u", "a=\"b\"", &times, Some(&[]), TimeUnit::Seconds.nanos());
        let lines: Vec<&str> = page.text.lines().collect();
        assert_eq!(
            lines,
            [
                "t_bucket{le=\"0.01\"} 0",
                "t_bucket{le=\"0.1\"} 3",
                "t_bucket{le=\"+Inf\"} 4",
                "t_sum 0",
                "t_count 4",
                "u_bucket{a=\"b\",le=\"+Inf\"} 4",
                "u_sum{a=\"b\"} 0",
                "u_count{a=\"b\"} 4",
            ]
        );
    }
}
