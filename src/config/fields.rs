//! The entries of one mapping, by key and as the type that is wanted, with a good error where they are not.

use std::rc::Rc;

use super::{
    error::FileReport,
    keys::Level,
    scalar::{Meaning, Scalar, brief},
    yaml::{Position, Value, YamlNode},
};

/// A mapping whose keys are those of its level.
pub(super) struct Fields<'n> {
    entries: &'n [(Rc<YamlNode>, Rc<YamlNode>)],
    /// Where the mapping begins.
    pub(super) at: Position,
}

/// A value that is there and is not null.
#[derive(Clone, Copy)]
pub(super) struct Field<T> {
    /// Where its key is.
    pub(super) key_at: Position,
    /// Where it is.
    pub(super) at: Position,
    pub(super) value: T,
}

// === impl Fields ===

impl<'n> Fields<'n> {
    /// The entries of `node`, which is called `name`. Reports what is no mapping, and every key that is not right.
    pub(super) fn new(node: &'n YamlNode, level: Level, name: &str, report: &mut FileReport) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            let (right, kind) = (level.keys().join(", "), node.kind());
            report.error(
                node.at,
                format!("error loading config file: {name} must be a mapping of {right}, not {kind}"),
            );
            return None;
        };
        for (key, _) in entries {
            match key.scalar() {
                Some(scalar) if scalar.meaning() == Meaning::Text => {
                    if !level.keys().contains(&scalar.text()) {
                        report.error_with(key.at, || level.unknown(scalar.text()));
                    }
                }
                _ => report.error_with(key.at, || {
                    format!("config error, key is not of type string: {}", as_go_prints(key))
                }),
            }
        }
        Some(Self { entries, at: node.at })
    }

    /// The value of `key`; none if it is null.
    pub(super) fn get(&self, key: &str) -> Option<Field<&'n YamlNode>> {
        let is_it = |node: &YamlNode| {
            node.scalar().is_some_and(|scalar| scalar.meaning() == Meaning::Text && scalar.text() == key)
        };
        let (key, value) = self.entries.iter().find(|(node, _)| is_it(node))?;
        (!value.is_null()).then_some(Field { key_at: key.at, at: value.at, value })
    }

    /// The text of `key`, in which a number or a truth value is kept as it is spelled. None if it is empty.
    pub(super) fn text(&self, key: &str, report: &mut FileReport) -> Option<Field<&'n str>> {
        let field = self.get(key)?;
        let Some(scalar) = field.value.scalar() else {
            report.error(field.at, wrong(key, "text", field.value));
            return None;
        };
        (!scalar.text().is_empty()).then(|| field.with(scalar.text()))
    }

    /// Whether `key` is true; not if it is not there.
    pub(super) fn flag(&self, key: &str, report: &mut FileReport) -> bool {
        self.flag_or(key, false, report)
    }

    /// Whether `key` is true; `absent` if it is not there.
    pub(super) fn flag_or(&self, key: &str, absent: bool, report: &mut FileReport) -> bool {
        let Some(field) = self.get(key) else {
            return absent;
        };
        if let Some(Meaning::Bool(flag)) = field.value.scalar().map(Scalar::meaning) {
            return flag;
        }
        report.error(field.at, wrong(key, "true or false", field.value));
        absent
    }

    /// The number of `key`, which must be at least `least`.
    pub(super) fn count(&self, key: &str, least: u32, report: &mut FileReport) -> Option<Field<u32>> {
        let field = self.get(key)?;
        let scalar = field.value.scalar();
        let count = match scalar.map(Scalar::meaning) {
            Some(Meaning::Int(number)) => u32::try_from(number).ok().filter(|count| *count >= least),
            _ => None,
        };
        let Some(count) = count else {
            let right = format!("a whole number from {least} to {}", u32::MAX);
            report.error(field.at, wrong(key, &right, field.value));
            return None;
        };
        if let Some(scalar) = scalar
            && scalar.written().len() > 1
            && scalar.written().starts_with('0')
            && scalar.written().bytes().all(|b| b.is_ascii_digit())
        {
            let written = scalar.brief();
            report.warn(field.at, format!("'{written}' begins with 0, so YAML reads it as octal: {count}"));
        }
        Some(field.with(count))
    }

    /// The elements of the list `key`.
    pub(super) fn list(&self, key: &str, report: &mut FileReport) -> &'n [Rc<YamlNode>] {
        let Some(field) = self.get(key) else {
            return &[];
        };
        let Value::List(items) = &field.value.value else {
            report.error(field.at, wrong(key, "a list", field.value));
            return &[];
        };
        items
    }

    /// The elements of the list `key` that are mappings, as they must all be. Reports the others.
    pub(super) fn maps(
        &self,
        key: &str,
        report: &mut FileReport,
    ) -> impl Iterator<Item = &'n YamlNode> + use<'n> {
        let items = self.list(key, report);
        for item in items.iter().filter(|item| !matches!(item.value, Value::Map(_))) {
            report.error_with(item.at, || {
                let printed = as_go_prints(item);
                format!("config error, yaml file contains list of type other than map: {printed}")
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

fn wrong(key: &str, right: &str, found: &YamlNode) -> String {
    let found = match &found.value {
        Value::Scalar(scalar) if scalar.meaning() == Meaning::Text => {
            format!("the text '{}'", scalar.brief())
        }
        Value::Scalar(scalar) => format!("'{}'", scalar.brief()),
        Value::List(_) | Value::Map(_) => found.kind().to_owned(),
    };
    format!("error loading config file: '{key}' must be {right}, not {found}")
}

/// A value as the reference's messages show it, cut short.
pub(super) fn as_go_prints(node: &YamlNode) -> String {
    brief(&printed(node, 0)).into_owned()
}

/// As Go's `%v` prints `node`, which is `depth` levels within what is asked for. What would be cut off is left out: an
/// alias may stand for millions of values.
fn printed(node: &YamlNode, depth: usize) -> String {
    const DEEPEST: usize = 3;
    const MOST_PARTS: usize = 10;
    match &node.value {
        Value::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => "<nil>".to_owned(),
            Meaning::Bool(flag) => flag.to_string(),
            Meaning::Int(number) => number.to_string(),
            Meaning::Float(number) => float_as_go_prints(number),
            Meaning::Text => scalar.brief().into_owned(),
        },
        Value::List(_) | Value::Map(_) if depth == DEEPEST => "…".to_owned(),
        Value::List(items) => {
            let items = items.iter().take(MOST_PARTS).map(|item| printed(item, depth + 1));
            format!("[{}]", items.collect::<Vec<_>>().join(" "))
        }
        Value::Map(entries) => {
            let print = |node| printed(node, depth + 1);
            let entries = entries.iter().take(MOST_PARTS);
            let entries = entries.map(|(key, value)| format!("{}:{}", print(key), print(value)));
            format!("map[{}]", entries.collect::<Vec<_>>().join(" "))
        }
    }
}

/// A float as Go's `%v` prints it: the shortest text that reads back, with an exponent where it is far from 1.
pub(super) fn float_as_go_prints(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        if let Some((digits, exponent)) = text.split_once('e') {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            return format!("{digits}e{sign}{exponent:0>2}");
        }
    }
    number.to_string()
}
