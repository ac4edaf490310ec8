//! Differences between a recording and what was observed.

use std::{collections::BTreeMap, fmt::Debug};

use serde_json::Value;

use crate::{recording::Recording, replay::Observed};

/// Differences that a report lists; it counts the others.
const LISTED: usize = 30;

/// The differences of one replay, in words.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<String>);

impl Differences {
    /// Compares the answers, field by field.
    pub(crate) fn answers(&mut self, recording: &Recording, observed: &Observed) {
        assert_eq!(recording.answers.len(), observed.answers.len());
        let answers = recording.answers.iter().zip(&observed.answers);
        for (i, (request, (expected, got))) in recording.requests.iter().zip(answers).enumerate() {
            let mut fields = Vec::new();
            value("", expected, got, &mut fields);
            for field in fields {
                self.0.push(format!("request {i}{field}\n    {request}"));
            }
        }
    }

    /// Compares the lines of `/rlconfig`.
    pub(crate) fn rules(&mut self, recording: &Recording, observed: &Observed) {
        let lines = |lines: &[String]| -> BTreeMap<String, bool> {
            lines.iter().map(|line| (line.clone(), true)).collect()
        };
        self.tables("/rlconfig", &lines(&recording.rlconfig), &lines(&observed.rlconfig));
    }

    /// Compares the sums of the StatsD counters.
    pub(crate) fn stats(&mut self, recording: &Recording, observed: &Observed) {
        self.tables("stat", &recording.stats, &observed.stats);
    }

    /// Compares the keys in Redis that have counted at least one hit, and their counts: a check of no hits leaves no
    /// key.
    pub(crate) fn keys(&mut self, recording: &Recording, observed: &Observed) {
        // a path has a key for each unit
        let by_path = |keys: &[(String, u64)]| {
            let mut paths: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            for (path, count) in keys.iter().filter(|(_, count)| *count > 0) {
                paths.entry(path.clone()).or_default().push(*count);
            }
            paths
        };
        self.tables("key", &by_path(&recording.keys), &by_path(&observed.keys));
    }

    fn tables<V: Debug + PartialEq>(
        &mut self,
        what: &str,
        expected: &BTreeMap<String, V>,
        got: &BTreeMap<String, V>,
    ) {
        for (name, expected) in expected {
            match got.get(name) {
                Some(got) if got == expected => {}
                Some(got) => self.0.push(format!("{what} {name}: expected {expected:?}, got {got:?}")),
                None => self.0.push(format!("{what} {name}: expected {expected:?}, got nothing")),
            }
        }
        for (name, got) in got.iter().filter(|(name, _)| !expected.contains_key(*name)) {
            self.0.push(format!("{what} {name}: expected nothing, got {got:?}"));
        }
    }

    /// Describes the differences under a title; empty if there are none.
    pub(crate) fn report(&self, title: &str) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let listed: Vec<&str> = self.0.iter().take(LISTED).map(String::as_str).collect();
        format!("{title}: {} differences\n  {}\n", self.0.len(), listed.join("\n  "))
    }
}

/// Notes where two JSON values differ, with the path to each place.
fn value(path: &str, expected: &Value, got: &Value, differences: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            let names: std::collections::BTreeSet<&String> = expected.keys().chain(got.keys()).collect();
            for name in names {
                let path = format!("{path}.{name}");
                let of = |object: &serde_json::Map<String, Value>| object.get(name).cloned();
                match (of(expected), of(got)) {
                    (Some(expected), Some(got)) => value(&path, &expected, &got, differences),
                    (expected, got) => {
                        differences.push(format!("{path}: expected {expected:?}, got {got:?}"));
                    }
                }
            }
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
                value(&format!("{path}[{i}]"), expected, got, differences);
            }
        }
        // numbers of dynamic metadata are doubles
        (Value::Number(expected), Value::Number(got)) if expected.as_f64() == got.as_f64() => {}
        _ if expected == got => {}
        _ => differences.push(format!("{path}: expected {expected}, got {got}")),
    }
}
