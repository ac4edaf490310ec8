//! One stat in the statsd protocol: `name:value|kind`.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use super::{
    mogrifier::{Mogrified, Mogrifier, apply},
    settings::Dialect,
};
use weir_observe::histogram::Bucket;

/// What becomes of a stat's name: the mogrifiers that change it, and the extra tags, encoded.
#[derive(Debug)]
pub(super) struct StatNames {
    mogrifiers: Vec<Mogrifier>,
    /// Appended to the name.
    name: String,
    /// Appended to the value.
    value: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StatLine {
    /// With its line break.
    pub(super) text: String,
    /// None for a gauge, whose value is sent every time.
    pub(super) delta: Option<Delta>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delta {
    Counter { name: String, total: u64 },
    Bucket { name: String, index: usize, by: Bucket },
}

// === impl StatNames ===

impl StatNames {
    /// Mogrifiers are for [`Dialect::Dog`] only.
    pub(super) fn new(dialect: Dialect, tags: &BTreeMap<String, String>, mogrifiers: Vec<Mogrifier>) -> Self {
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
        let mogrifiers = if dialect == Dialect::Dog { mogrifiers } else { Vec::new() };
        Self { mogrifiers, name, value }
    }

    /// As in envoyproxy/ratelimit, the tags of a mogrifier follow the extra ones.
    fn line(&self, stat: &str, value: fmt::Arguments<'_>) -> String {
        let Mogrified { name, tags } = apply(&self.mogrifiers, stat);
        let mut text = format!("{name}{}:{value}{}", self.name, self.value);
        for (i, (key, value)) in tags.iter().enumerate() {
            let before = if i == 0 && self.value.is_empty() { "|#" } else { "," };
            // writing to a String cannot fail
            let _ = write!(text, "{before}{key}:{value}");
        }
        text.push('\n');
        text
    }
}

// === impl StatLine ===

impl StatLine {
    pub(super) fn counter(name: String, by: u64, total: u64, names: &StatNames) -> Self {
        let text = names.line(&name, format_args!("{by}|c"));
        Self { text, delta: Some(Delta::Counter { name, total }) }
    }

    pub(super) fn gauge(name: &str, value: u64, names: &StatNames) -> Self {
        Self { text: names.line(name, format_args!("{value}|g")), delta: None }
    }

    /// Sends the mean of the new durations, at least one, with their number as sample rate: the sum stays exact.
    #[expect(clippy::cast_precision_loss, reason = "a mean of milliseconds needs no 53 bits")]
    pub(super) fn timing(name: &str, index: usize, by: Bucket, names: &StatNames) -> Self {
        let millis = by.nanos as f64 / by.count as f64 / 1e6;
        let rate = match by.count {
            1 => String::new(),
            count => format!("|@{}", sample_rate(count)),
        };
        let text = names.line(name, format_args!("{millis:.6}|ms{rate}"));
        Self { text, delta: Some(Delta::Bucket { name: name.to_owned(), index, by }) }
    }
}

/// Receivers invert the rate, and some round down: the result must not end up below `count`.
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

    fn names(dialect: Dialect) -> StatNames {
        let tags = [("zone", "eu.1"), ("app", "a|b,c:d"), ("none", ""), ("", "none")];
        let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        StatNames::new(dialect, &tags, Vec::new())
    }

    #[test]
    fn tags_are_written_in_the_receivers_dialect() {
        let line = StatLine::counter("a.b".to_owned(), 3, 3, &names(Dialect::Plain));
        assert_eq!(line.text, "a.b.__app=a_b,c_d.__zone=eu_1:3|c\n");
        let line = StatLine::gauge("a.b", 3, &names(Dialect::Dog));
        assert_eq!(line.text, "a.b:3|g|#app:a_b_c_d,zone:eu_1\n");
    }

    #[test]
    fn a_mogrifier_changes_the_name_of_dogstatsd_only() {
        let hits = Mogrifier::new("^rate_limit\\.(.*)$", "hits", vec![("domain".into(), "$1".into())]);
        let hits = vec![hits.expect("it is valid")];
        let line = |dialect, tags: &[(&str, &str)]| {
            let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let names = StatNames::new(dialect, &tags, hits.clone());
            StatLine::counter("rate_limit.shop".to_owned(), 3, 3, &names).text
        };
        assert_eq!(line(Dialect::Dog, &[]), "hits:3|c|#domain:shop\n");
        assert_eq!(line(Dialect::Dog, &[("zone", "eu")]), "hits:3|c|#zone:eu,domain:shop\n");
        assert_eq!(line(Dialect::Plain, &[]), "rate_limit.shop:3|c\n");
    }

    #[test]
    fn timings_are_in_milliseconds_and_keep_their_count() {
        let none = StatNames::new(Dialect::Plain, &BTreeMap::new(), Vec::new());
        let bucket = |count, nanos| Bucket { count, nanos };
        assert_eq!(StatLine::timing("t", 0, bucket(1, 1_500_000), &none).text, "t:1.500000|ms\n");
        assert_eq!(StatLine::timing("t", 0, bucket(4, 10_000_000), &none).text, "t:2.500000|ms|@0.25\n");
        let dog = StatLine::timing("t", 0, bucket(2, 2_000_000), &names(Dialect::Dog)).text;
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
