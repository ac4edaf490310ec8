//! The series of a page in Prometheus' text format, as `observe::prometheus` writes it.

use std::str::Lines;

/// The metric that series belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Family<'p> {
    pub(super) name: &'p str,
    pub(super) help: &'p str,
    pub(super) kind: Kind,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    #[default]
    Gauge,
    Histogram,
    Summary,
}

/// The current value of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point<'p> {
    pub(super) family: Family<'p>,
    pub(super) labels: Vec<(&'p str, String)>,
    pub(super) value: Value,
    /// The text that names the series.
    pub(super) key: &'p str,
    /// The bytes of its lines.
    pub(super) size: usize,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Number(Number),
    Histogram(Buckets),
    Summary(Quantiles),
}

/// A number, which is whole if it is written so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Double(f64),
}

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Buckets {
    /// The inclusive upper bounds, ascending; one more bucket is above them.
    pub(super) bounds: Vec<f64>,
    /// The number of values in each bucket.
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}

/// A summary.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Quantiles {
    /// Quantiles from 0 to 1, and the values at them.
    pub(super) values: Vec<(f64, f64)>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

/// Reads the points of a page, in their order.
pub(super) struct Points<'p> {
    lines: Lines<'p>,
    family: Family<'p>,
    /// Of the histogram or summary that is being read.
    buckets: Buckets,
    quantiles: Quantiles,
    size: usize,
}

/// A line with a value.
struct Sample<'p> {
    name: &'p str,
    labels: Vec<(&'p str, String)>,
    key: &'p str,
    value: &'p str,
}

// === impl Points ===

impl<'p> Points<'p> {
    pub(super) fn of(page: &'p str) -> Self {
        Self {
            lines: page.lines(),
            family: Family::default(),
            buckets: Buckets::default(),
            quantiles: Quantiles::default(),
            size: 0,
        }
    }

    /// Reads `# HELP` and `# TYPE`, which precede the samples of a family.
    fn comment(&mut self, comment: &'p str) {
        if let Some((name, help)) = comment.strip_prefix("HELP ").and_then(|rest| rest.split_once(' ')) {
            self.family = Family { name, help, kind: Kind::default() };
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let help = if self.family.name == name { self.family.help } else { "" };
            let kind = match kind {
                "counter" => Kind::Counter,
                "histogram" => Kind::Histogram,
                "summary" => Kind::Summary,
                _ => Kind::Gauge,
            };
            self.family = Family { name, help, kind };
        }
    }

    /// Adds a sample, and returns the point if it is complete: a histogram and a summary end with their count.
    fn sample(&mut self, mut sample: Sample<'p>) -> Option<Point<'p>> {
        let suffix = sample.name.strip_prefix(self.family.name)?;
        let value = match (self.family.kind, suffix) {
            (Kind::Histogram, "_bucket") => {
                let (_, bound) = sample.take("le")?;
                let below: u64 = sample.value.parse().ok()?;
                let so_far: u64 = self.buckets.counts.iter().sum();
                self.buckets.counts.push(below.saturating_sub(so_far));
                let bound: f64 = bound.parse().ok()?;
                if bound.is_finite() {
                    self.buckets.bounds.push(bound);
                }
                return None;
            }
            (Kind::Summary, "") => {
                let (_, quantile) = sample.take("quantile")?;
                self.quantiles.values.push((quantile.parse().ok()?, sample.value.parse().ok()?));
                return None;
            }
            (Kind::Histogram, "_sum") => {
                self.buckets.sum = sample.value.parse().ok()?;
                return None;
            }
            (Kind::Summary, "_sum") => {
                self.quantiles.sum = sample.value.parse().ok()?;
                return None;
            }
            (Kind::Histogram, "_count") => Value::Histogram(std::mem::take(&mut self.buckets)),
            (Kind::Summary, "_count") => {
                self.quantiles.count = sample.value.parse().ok()?;
                Value::Summary(std::mem::take(&mut self.quantiles))
            }
            _ => Value::Number(Number::parse(sample.value, unit(self.family.name) == "s")?),
        };
        let Sample { labels, key, .. } = sample;
        Some(Point { family: self.family, labels, value, key, size: std::mem::take(&mut self.size) })
    }
}

impl<'p> Iterator for Points<'p> {
    type Item = Point<'p>;

    fn next(&mut self) -> Option<Point<'p>> {
        loop {
            let line = self.lines.next()?;
            if let Some(comment) = line.strip_prefix("# ") {
                self.comment(comment);
            } else if let Some(sample) = Sample::parse(line) {
                self.size += line.len();
                if let Some(point) = self.sample(sample) {
                    return Some(point);
                }
            }
        }
    }
}

// === impl Sample ===

impl<'p> Sample<'p> {
    /// Parses `name{label="value",…} number`, or `name number`.
    fn parse(line: &'p str) -> Option<Self> {
        let (key, value) = line.rsplit_once(' ')?;
        let (name, labels) = match key.split_once('{') {
            Some((name, rest)) => (name, labels(rest.strip_suffix('}')?)?),
            None => (key, Vec::new()),
        };
        Some(Self { name, labels, key, value })
    }

    /// Removes the label called `name`.
    fn take(&mut self, name: &str) -> Option<(&'p str, String)> {
        let i = self.labels.iter().position(|(label, _)| *label == name)?;
        Some(self.labels.remove(i))
    }
}

/// Parses `label="value",…`.
fn labels(mut text: &str) -> Option<Vec<(&str, String)>> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut end) = (String::new(), None);
        let mut chars = rest.char_indices();
        while let Some((i, char)) = chars.next() {
            match char {
                '"' => {
                    end = Some(i);
                    break;
                }
                '\\' => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                char => value.push(char),
            }
        }
        labels.push((name, value));
        text = &rest[end? + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
    Some(labels)
}

/// Returns the unit of a metric in UCUM, from the end of its name; empty if the name has none.
pub(super) fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let units = [("_milliseconds", "ms"), ("_seconds", "s"), ("_bytes", "By")];
    units.into_iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit)
}

// === impl Number ===

impl Number {
    /// Parses a number; as a whole one if it is one, unless metrics of its kind have fractions.
    fn parse(text: &str, has_fractions: bool) -> Option<Self> {
        match text.parse() {
            Ok(int) if !has_fractions => Some(Self::Int(int)),
            _ => text.parse().ok().map(Self::Double),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "only numbers with fractions are subtracted as such")]
    pub(super) const fn as_f64(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Double(double) => double,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_back() {
        let page = "# HELP a_total Some help.\n# TYPE a_total counter\na_total{x=\"b\\\"c\\\\d\\n}e f\",y=\"\"} 7\na_total 8\n\
            # HELP up_seconds Help.\n# TYPE up_seconds gauge\nup_seconds 3\n\
            # HELP t T.\n# TYPE t histogram\nt_bucket{m=\"n\",le=\"0.5\"} 2\nt_bucket{m=\"n\",le=\"+Inf\"} 5\n\
            t_sum{m=\"n\"} 1.5\nt_count{m=\"n\"} 5\nt_bucket{le=\"+Inf\"} 1\nt_sum 9\nt_count 1\n\
            # HELP s S.\n# TYPE s summary\ns{quantile=\"0.5\"} 0.25\ns_sum 3\ns_count 4\n";
        let points: Vec<Point<'_>> = Points::of(page).collect();
        let label = |name, value: &str| (name, value.to_owned());
        assert_eq!(points[0].family, Family { name: "a_total", help: "Some help.", kind: Kind::Counter });
        assert_eq!(points[0].labels, [label("x", "b\"c\\d\n}e f"), label("y", "")]);
        assert_eq!(points[0].value, Value::Number(Number::Int(7)));
        assert_eq!((&points[1].labels[..], points[1].key), (&[][..], "a_total"));
        assert_eq!(points[2].value, Value::Number(Number::Double(3.0)));
        assert_eq!(points[3].labels, [label("m", "n")]);
        let buckets = Buckets { bounds: vec![0.5], counts: vec![2, 3], sum: 1.5 };
        assert_eq!(points[3].value, Value::Histogram(buckets));
        let buckets = Buckets { bounds: vec![], counts: vec![1], sum: 9.0 };
        assert_eq!(points[4].value, Value::Histogram(buckets));
        let quantiles = Quantiles { values: vec![(0.5, 0.25)], sum: 3.0, count: 4 };
        assert_eq!(points[5].value, Value::Summary(quantiles));
        assert_eq!(points.len(), 6);
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(points.iter().map(|point| point.size).sum::<usize>(), lines.map(str::len).sum::<usize>());
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        let page = "# TYPE a counter\na{x=\"1} 1\na{x} 1\na{x=\"1\" 1\na x\n\nb 1\na 2\n";
        let values: Vec<_> = Points::of(page).map(|point| point.value).collect();
        assert_eq!(values, [Value::Number(Number::Int(2))]);
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
