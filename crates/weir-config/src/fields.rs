//! Typed access to the entries of one mapping, with an error for each value of another type.

use std::{borrow::Cow, ops::RangeInclusive, rc::Rc};

use super::{
    error::ConfigReport,
    keys::KeyLevel,
    scalar::{Meaning, Scalar, brief},
    yaml::{Value, YamlNode, YamlPosition},
};
use weir_observe::spelling;

pub(super) struct Fields<'n> {
    entries: &'n [(Rc<YamlNode>, Rc<YamlNode>)],
    pub(super) at: YamlPosition,
    pub(super) has_unknown: bool,
}

/// A value that is present and not null.
#[derive(Clone, Copy)]
pub(super) struct Field<T> {
    pub(super) key_at: YamlPosition,
    pub(super) at: YamlPosition,
    pub(super) value: T,
}

/// The keys of texts that may be empty, or whose readers say what is right.
const MAY_BE_EMPTY: [&str; 9] = ["domain", "key", "value", "unit", "name", "help", "match", "ttl", "max_age"];

// === impl Fields ===

impl<'n> Fields<'n> {
    /// `name` is for messages. Reports a node that is not a mapping, and every invalid key.
    pub(super) fn new(
        node: &'n YamlNode,
        level: KeyLevel,
        name: &str,
        report: &mut ConfigReport,
    ) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            let (right, kind) = (level.list(), node.kind());
            report.error(
                node.at,
                format!("error loading config file: {name} must be a mapping of {right}, not {kind}"),
            );
            return None;
        };
        let mut has_unknown = false;
        for (key, value) in entries {
            match key.scalar().filter(|scalar| scalar.meaning() == Meaning::Text).map(Scalar::text) {
                None => report.error_with(key.at, || {
                    format!("config error, key is not of type string: {}", shown(key))
                }),
                Some(name) if level.keys().any(|key| key == name) => {}
                // Envoy Gateway writes a `name` beside `domain`
                Some(name) if level.ignores(name) => {
                    if !value.is_null() && (level, name) != (KeyLevel::Root, "name") {
                        report.warn_with(key.at, || level.misplaced(name));
                    }
                }
                Some(name) => {
                    has_unknown = true;
                    report.error_with(key.at, || level.unknown(name));
                }
            }
        }
        Some(Self { entries, at: node.at, has_unknown })
    }

    pub(super) fn get(&self, key: &str) -> Option<Field<&'n YamlNode>> {
        self.entry(key).filter(|field| !field.value.is_null())
    }

    /// The place of `key` if nothing is written after it, not even a null.
    pub(super) fn bare(&self, key: &str) -> Option<YamlPosition> {
        let is_bare = |node: &YamlNode| node.scalar().is_some_and(|s| s.is_null() && s.written().is_empty());
        self.entry(key).filter(|field| is_bare(field.value)).map(|field| field.key_at)
    }

    fn entry(&self, key: &str) -> Option<Field<&'n YamlNode>> {
        let is_key = |node: &YamlNode| {
            node.scalar().is_some_and(|scalar| scalar.meaning() == Meaning::Text && scalar.text() == key)
        };
        let (key, value) = self.entries.iter().find(|(node, _)| is_key(node))?;
        Some(Field { key_at: key.at, at: value.at, value })
    }

    /// None if it is empty. A number or boolean is text as spelled.
    pub(super) fn text(&self, key: &str, report: &mut ConfigReport) -> Option<Field<&'n str>> {
        let field = self.get(key)?;
        let Some(scalar) = field.value.scalar() else {
            report.error(field.at, wrong(key, "text", field.value));
            return None;
        };
        let is_empty = scalar.text().is_empty();
        if is_empty && !MAY_BE_EMPTY.contains(&key) {
            report.error(field.at, format!("'{key}' must not be empty; write a value, or remove it"));
        }
        (!is_empty).then(|| field.with(scalar.text()))
    }

    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        report: &mut ConfigReport,
    ) -> Option<T> {
        let text = self.text(key, report)?;
        let found = choices.iter().find(|(name, _)| *name == text.value).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let hint = spelling::nearest(text.value, names.iter().copied());
            let hint = hint.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
            let written = brief(text.value);
            let (last, others) = names.split_last().unwrap_or((&"", &[]));
            let right = format!("{} or {last}", others.join(", "));
            report.error(text.at, format!("unknown {key} '{written}'; write {right}{hint}"));
        }
        found
    }

    pub(super) fn flag(&self, key: &str, report: &mut ConfigReport) -> bool {
        self.flag_or(key, false, report)
    }

    pub(super) fn flag_or(&self, key: &str, absent: bool, report: &mut ConfigReport) -> bool {
        let Some(field) = self.get(key) else {
            return absent;
        };
        if let Some(Meaning::Bool(flag)) = field.value.scalar().map(Scalar::meaning) {
            return flag;
        }
        report.error(field.at, wrong(key, "true or false", field.value));
        absent
    }

    pub(super) fn count(
        &self,
        key: &str,
        range: RangeInclusive<u32>,
        report: &mut ConfigReport,
    ) -> Option<Field<u32>> {
        let field = self.get(key)?;
        let scalar = field.value.scalar();
        let count = match scalar.map(Scalar::meaning) {
            Some(Meaning::Int(number)) => u32::try_from(number).ok().filter(|count| range.contains(count)),
            _ => None,
        };
        let Some(count) = count else {
            let right = format!("a whole number from {} to {}", range.start(), range.end());
            report.error(field.at, wrong(key, &right, field.value));
            return None;
        };
        if let Some(scalar) = scalar
            && scalar.written().len() > 1
            && scalar.written().starts_with('0')
            && scalar.written().bytes().all(|b| b.is_ascii_digit())
        {
            let written = scalar.brief();
            report.warn(field.at, format!("'{written}' starts with 0, so YAML reads it as octal: {count}"));
        }
        Some(field.with(count))
    }

    pub(super) fn list(&self, key: &str, report: &mut ConfigReport) -> &'n [Rc<YamlNode>] {
        let Some(field) = self.get(key) else {
            return &[];
        };
        let Value::List(items) = &field.value.value else {
            report.error(field.at, wrong(key, "a list", field.value));
            return &[];
        };
        items
    }

    pub(super) fn maps(
        &self,
        key: &str,
        report: &mut ConfigReport,
    ) -> impl Iterator<Item = &'n YamlNode> + use<'n> {
        let items = self.list(key, report);
        for item in items.iter().filter(|item| !matches!(item.value, Value::Map(_))) {
            report.error_with(item.at, || {
                format!("config error, yaml file contains list of type other than map: {}", shown(item))
            });
        }
        items.iter().map(|item| &**item).filter(|item| matches!(item.value, Value::Map(_)))
    }
}

// === impl Field ===

impl<T> Field<T> {
    fn with<U>(&self, value: U) -> Field<U> {
        Field { key_at: self.key_at, at: self.at, value }
    }
}

/// A scalar as it is written, or what else it is.
fn shown(node: &YamlNode) -> Cow<'_, str> {
    match node.scalar().filter(|scalar| !scalar.is_null()) {
        Some(scalar) => scalar.brief(),
        None => node.kind().into(),
    }
}

pub(super) fn number(node: &YamlNode, what: &str, report: &mut ConfigReport) -> Option<Field<f64>> {
    let found = match node.scalar().map(Scalar::meaning) {
        #[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are floats")]
        Some(Meaning::Int(number)) => Some(number as f64),
        Some(Meaning::Float(number)) => Some(number),
        _ => None,
    };
    let value = found.filter(|number| *number > 0.0 && number.is_finite());
    if value.is_none() {
        report.error(node.at, wrong(what, "a number above 0", node));
    }
    value.map(|value| Field { key_at: node.at, at: node.at, value })
}

pub(super) fn wrong(key: &str, right: &str, found: &YamlNode) -> String {
    let found = match &found.value {
        Value::Scalar(scalar) if scalar.meaning() == Meaning::Text => {
            format!("the text '{}'", scalar.brief())
        }
        Value::Scalar(scalar) => format!("'{}'", scalar.brief()),
        Value::List(_) | Value::Map(_) => found.kind().to_owned(),
    };
    format!("error loading config file: '{key}' must be {right}, not {found}")
}
