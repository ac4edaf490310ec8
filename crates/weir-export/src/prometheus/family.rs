//! What the outputs of metrics show: series, by the name of their metric.

use std::{borrow::Cow, sync::Arc, time::Duration};

use weir_observe::{
    histogram::{BOUNDS, Distribution, nanos},
    text::is_active,
};

/// The unit of `ratelimit_service_response_time_seconds`, despite its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    #[default]
    Seconds,
    /// Milliseconds: the reference's `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`.
    Milliseconds,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: Kind,
    /// The unit in UCUM; empty if there is none.
    pub unit: &'static str,
    pub series: Vec<Series>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The labels, which other metrics may share.
    pub labels: Arc<Labels>,
    pub value: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    text: String,
    pairs: Vec<(Cow<'static, str>, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Int(u64),
    Double(f64),
    Histogram(Box<Buckets>),
    Summary(Box<Quantiles>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// The upper bounds, ascending, and how many values are no higher.
    pub at_most: Vec<(f64, u64)>,
    pub sum: f64,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Quantiles {
    /// Quantiles from 0 to 1, and the values at them; not a number if there are no values.
    pub values: Vec<(f64, f64)>,
    pub sum: f64,
    pub count: u64,
}

// === impl TimeUnit ===

impl TimeUnit {
    pub(super) const fn nanos(self) -> f64 {
        match self {
            Self::Seconds => 1e9,
            Self::Milliseconds => 1e6,
        }
    }
}

/// `unit` is in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "exact for 104 days of nanoseconds")]
pub(super) fn units(duration: Duration, unit: f64) -> f64 {
    duration.as_nanos() as f64 / unit
}

// === impl Family ===

impl Family {
    /// Returns a family whose unit is the one that its name ends in.
    pub fn new(
        kind: Kind,
        name: impl Into<String>,
        help: impl Into<String>,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let name = name.into();
        let (unit, help, series) = (unit(&name), help.into(), series.into_iter().collect());
        Self { name, help, kind, unit, series }
    }
}

fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let units = [("_milliseconds", "ms"), ("_seconds", "s"), ("_bytes", "By")];
    units.into_iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit)
}

// === impl Series ===

impl Series {
    pub fn int(labels: &Arc<Labels>, value: u64) -> Self {
        Self { labels: Arc::clone(labels), value: Value::Int(value) }
    }

    pub fn double(labels: &Arc<Labels>, value: f64) -> Self {
        Self { labels: Arc::clone(labels), value: Value::Double(value) }
    }

    /// `unit` is in nanoseconds.
    pub(super) fn times(labels: &Arc<Labels>, times: &Distribution, unit: f64) -> Self {
        let at_most = BOUNDS.map(|bound| (units(bound, unit), times.at_most(nanos(bound)))).into();
        let buckets = Buckets { at_most, sum: units(times.sum(), unit), count: times.count() };
        Self { labels: Arc::clone(labels), value: Value::Histogram(Box::new(buckets)) }
    }
}

// === impl Labels ===

impl Labels {
    /// Returns the labels `pairs`. Characters that could act on a terminal are spelled out.
    pub fn new<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> Arc<Self>
    where
        N: Into<Cow<'static, str>>,
        V: Into<String>,
    {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), spelled_out(value.into())));
        let mut labels = Self { text: String::new(), pairs: pairs.collect() };
        for (name, value) in &labels.pairs {
            let text = &mut labels.text;
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
        Arc::new(labels)
    }

    pub fn pairs(&self) -> &[(Cow<'static, str>, String)] {
        &self.pairs
    }

    /// Returns `name="value",…`, escaped.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn spelled_out(value: String) -> String {
    let is_plain = |c: char| c == '\n' || !is_active(c);
    if value.chars().all(is_plain) {
        return value;
    }
    value.chars().fold(String::new(), |mut text, c| {
        if is_plain(c) {
            text.push(c);
        } else {
            text.extend(c.escape_unicode());
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let labels = Labels::new([("a", "x\"y\\z\n\u{1b}")]);
        assert_eq!(labels.text(), r#"a="x\"y\\z\n\\u{1b}""#);
        assert_eq!(labels.pairs(), [("a".into(), "x\"y\\z\n\\u{1b}".to_owned())]);
    }

    #[test]
    fn names_end_in_units() {
        for (name, expected) in [
            ("a_seconds", "s"),
            ("a_seconds_total", "s"),
            ("a_bytes", "By"),
            ("a_total", ""),
            ("seconds", ""),
        ] {
            assert_eq!(unit(name), expected, "{name}");
        }
    }
}
