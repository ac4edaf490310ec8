//! Checks known keys at levels where they have no effect. envoyproxy/ratelimit checks keys against one list for all
//! levels and ignores such a key; so does weir, with a warning.

use std::rc::Rc;

use super::super::{
    error::FileReport,
    go_format::{not_a_map, not_text},
    keys::{self, KeyLevel},
    scalar::{Meaning, Scalar},
    yaml::{Value, YamlNode},
};

/// Null has no effect anywhere, and Envoy Gateway writes a `name` beside `domain`: neither gives a warning.
pub(crate) fn check(level: KeyLevel, key: &YamlNode, name: &str, value: &YamlNode, report: &mut FileReport) {
    check_value(name, value, report);
    if !value.is_null() && (level, name) != (KeyLevel::Root, "name") {
        report.warn_with(key.at, || level.misplaced(name));
    }
}

/// Checks what envoyproxy/ratelimit checks: the keys, and the elements of lists.
fn check_value(key: &str, value: &YamlNode, report: &mut FileReport) {
    match &value.value {
        // metadata may have any contents
        _ if key == "metadata" => {}
        Value::Scalar(_) => {}
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(entries) => check_entries(entries, report),
                    _ => report.error_with(item.at, || not_a_map(item)),
                }
            }
        }
        Value::Map(entries) => check_entries(entries, report),
    }
}

fn check_entries(entries: &[(Rc<YamlNode>, Rc<YamlNode>)], report: &mut FileReport) {
    for (key, value) in entries {
        match key.scalar().filter(|scalar| scalar.meaning() == Meaning::Text).map(Scalar::text) {
            None => report.error_with(key.at, || not_text(key)),
            Some(name) if keys::is_reference(name) => check_value(name, value, report),
            Some(name) => report.error_with(key.at, || keys::unknown_without_effect(name)),
        }
    }
}
