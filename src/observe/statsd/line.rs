//! One stat in the statsd protocol: `name:value|kind`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::settings::Dialect;
use crate::observe::histogram::Bucket;

/// The extra tags, encoded.
#[derive(Debug)]
pub(super) struct Tags {
    /// Appended to the name.
    name: String,
    /// Appended to the value.
    value: String,
}

/// A line, and the change that it reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// With its line break.
    pub(super) text: String,
    /// None for a gauge, whose value is sent every time.
    pub(super) delta: Option<Delta>,
}

/// A change since the last line that was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delta {
    /// The growth of a counter.
    Counter { name: String, by: u64 },
    /// The growth of one bucket of a histogram.
    Bucket { name: String, index: usize, by: Bucket },
}

// === impl Tags ===

impl Tags {
    pub(super) fn new(dialect: Dialect, tags: &BTreeMap<String, String>) -> Self {
        let (mut name, mut value) = (String::new(), String::new());
        for (key, text) in tags.iter().filter(|(key, text)| !key.is_empty() && !text.is_empty()) {
            // replaces characters that would end the tag or the line
            let clean =
                |text: &str, ends: &[char]| text.replace(|c: char| ends.contains(&c) || c.is_control(), "_");
            let text = clean(text, &['.', ':', '|']);
            // writing to a String cannot fail
            let _ = match dialect {
                Dialect::Plain => write!(name, ".__{}={text}", clean(key, &[':', '|'])),
                Dialect::Dog => {
                    let before = if value.is_empty() { "|#" } else { "," };
                    write!(value, "{before}{}:{}", clean(key, &[':', '|', ',']), clean(&text, &[',']))
                }
            };
        }
        Self { name, value }
    }
}

// === impl Line ===

impl Line {
    pub(super) fn counter(name: String, by: u64, tags: &Tags) -> Self {
        let text = format!("{name}{}:{by}|c{}\n", tags.name, tags.value);
        Self { text, delta: Some(Delta::Counter { name, by }) }
    }

    pub(super) fn gauge(name: &str, value: u64, tags: &Tags) -> Self {
        Self { text: format!("{name}{}:{value}|g{}\n", tags.name, tags.value), delta: None }
    }

    /// Returns the line for the new durations of one bucket, at least one: their mean with a sample rate of one in their
    /// number. The receiver gets their exact number and sum in a single line.
    #[expect(clippy::cast_precision_loss, reason = "a mean of milliseconds needs no 53 bits")]
    pub(super) fn timing(name: &str, index: usize, by: Bucket, tags: &Tags) -> Self {
        let millis = by.nanos as f64 / by.count as f64 / 1e6;
        let rate = match by.count {
            1 => String::new(),
            count => format!("|@{}", sample_rate(count)),
        };
        let text = format!("{name}{}:{millis:.6}|ms{rate}{}\n", tags.name, tags.value);
        Self { text, delta: Some(Delta::Bucket { name: name.to_owned(), index, by }) }
    }
}

/// Returns the sample rate of one in `count`. Receivers invert it, and some round the result down: it must not end up
/// below `count`.
#[expect(clippy::cast_precision_loss, reason = "counts of one interval are far below 2^53")]
fn sample_rate(count: u64) -> f64 {
    let mut rate = 1.0 / count as f64;
    while 1.0 / rate < count as f64 {
        rate = rate.next_down();
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(dialect: Dialect) -> Tags {
        let tags = [("zone", "eu.1"), ("app", "a|b,c:d"), ("none", ""), ("", "none")];
        Tags::new(dialect, &tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    #[test]
    fn tags_are_written_in_the_receivers_dialect() {
        let line = Line::counter("a.b".to_owned(), 3, &tags(Dialect::Plain));
        assert_eq!(line.text, "a.b.__app=a_b,c_d.__zone=eu_1:3|c\n");
        let line = Line::gauge("a.b", 3, &tags(Dialect::Dog));
        assert_eq!(line.text, "a.b:3|g|#app:a_b_c_d,zone:eu_1\n");
    }

    #[test]
    fn timings_are_in_milliseconds_and_keep_their_count() {
        let none = Tags::new(Dialect::Plain, &BTreeMap::new());
        let bucket = |count, nanos| Bucket { count, nanos };
        assert_eq!(Line::timing("t", 0, bucket(1, 1_500_000), &none).text, "t:1.500000|ms\n");
        assert_eq!(Line::timing("t", 0, bucket(4, 10_000_000), &none).text, "t:2.500000|ms|@0.25\n");
        let dog = Line::timing("t", 0, bucket(2, 2_000_000), &tags(Dialect::Dog)).text;
        assert_eq!(dog, "t:1.000000|ms|@0.5|#app:a_b_c_d,zone:eu_1\n");
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as receivers do it")]
    fn a_receiver_that_rounds_down_gets_the_same_count() {
        for count in (1..100_000).chain([1_000_003, 123_456_789]) {
            let text = sample_rate(count).to_string();
            assert_eq!((1.0 / text.parse::<f64>().unwrap()) as u64, count);
        }
    }
}
