//! One stat as statsd reads it: `name:value|kind`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::Dialect;
use crate::observe::histogram::Bucket;

/// Extra tags, as they are written.
#[derive(Debug)]
pub(super) struct Tags {
    /// Behind the name.
    name: String,
    /// Behind the value.
    value: String,
}

/// A line, and what the receiver knows once it has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// With its line break.
    pub(super) text: String,
    pub(super) settles: Settles,
}

/// What a line that was sent is good for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settles {
    /// Nothing to remember: a gauge is sent again and again.
    Nothing,
    /// The growth of a counter.
    Counter { name: String, by: u64 },
    /// What came into one bucket of a histogram.
    Bucket { name: String, index: usize, by: Bucket },
}

// === impl Tags ===

impl Tags {
    pub(super) fn new(dialect: Dialect, tags: &BTreeMap<String, String>) -> Self {
        let (mut name, mut value) = (String::new(), String::new());
        for (key, text) in tags.iter().filter(|(key, text)| !key.is_empty() && !text.is_empty()) {
            // what would end the tag, or the line
            let clean =
                |text: &str, ends: &[char]| text.replace(|c: char| ends.contains(&c) || c.is_control(), "_");
            let text = clean(text, &['.', ':', '|']);
            // a String takes whatever is written to it
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
        Self { text, settles: Settles::Counter { name, by } }
    }

    pub(super) fn gauge(name: &str, value: u64, tags: &Tags) -> Self {
        Self { text: format!("{name}{}:{value}|g{}\n", tags.name, tags.value), settles: Settles::Nothing }
    }

    /// The durations that came into one bucket, at least one: their mean, as often as there were durations. Their number
    /// and sum arrive exact, in one line however many they are.
    #[expect(clippy::cast_precision_loss, reason = "a mean of milliseconds needs no 53 bits")]
    pub(super) fn timing(name: &str, index: usize, by: Bucket, tags: &Tags) -> Self {
        let millis = by.nanos as f64 / by.count as f64 / 1e6;
        let rate = match by.count {
            1 => String::new(),
            count => format!("|@{}", sample_rate(count)),
        };
        let text = format!("{name}{}:{millis:.6}|ms{rate}{}\n", tags.name, tags.value);
        Self { text, settles: Settles::Bucket { name: name.to_owned(), index, by } }
    }
}

/// The rate of which one in `count` was sampled. Receivers take its inverse, and some round that down: it must not come
/// out below `count`.
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
    fn tags_are_written_in_the_receivers_way() {
        let line = Line::counter("a.b".to_owned(), 3, &tags(Dialect::Plain));
        assert_eq!(line.text, "a.b.__app=a_b,c_d.__zone=eu_1:3|c\n");
        let line = Line::gauge("a.b", 3, &tags(Dialect::Dog));
        assert_eq!(line.text, "a.b:3|g|#app:a_b_c_d,zone:eu_1\n");
    }

    #[test]
    fn timings_are_in_milliseconds_and_keep_their_number() {
        let none = Tags::new(Dialect::Plain, &BTreeMap::new());
        let bucket = |count, nanos| Bucket { count, nanos };
        assert_eq!(Line::timing("t", 0, bucket(1, 1_500_000), &none).text, "t:1.500000|ms\n");
        assert_eq!(Line::timing("t", 0, bucket(4, 10_000_000), &none).text, "t:2.500000|ms|@0.25\n");
        let dog = Line::timing("t", 0, bucket(2, 2_000_000), &tags(Dialect::Dog)).text;
        assert_eq!(dog, "t:1.000000|ms|@0.5|#app:a_b_c_d,zone:eu_1\n");
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as receivers do it")]
    fn a_receiver_that_rounds_down_gets_the_same_number() {
        for count in (1..100_000).chain([1_000_003, 123_456_789]) {
            let text = sample_rate(count).to_string();
            assert_eq!((1.0 / text.parse::<f64>().unwrap()) as u64, count);
        }
    }
}
