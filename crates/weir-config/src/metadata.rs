//! Reads a rule's metadata, which is free-form but must fit into protobuf's `Struct`.

use serde_json::{Number, Value as Json};

use super::{
    error::FileReport,
    go_format::{as_go_prints, float_as_go_prints},
    scalar::{Meaning, Scalar},
    yaml::{Value, YamlNode, YamlPosition},
};
use weir_limit::Metadata;

struct Misfit {
    at: YamlPosition,
    why: &'static str,
}

pub(super) fn read(node: &YamlNode, report: &mut FileReport) -> Option<Metadata> {
    let Value::Map(entries) = &node.value else {
        let kind = node.kind();
        report.error(node.at, format!("error loading config file: 'metadata' must be a mapping, not {kind}"));
        return None;
    };
    let mut metadata = Metadata::new();
    for (key, value) in entries {
        let read = match key.scalar() {
            // envoyproxy/ratelimit decodes keys of the first level as text, and prints those below
            Some(scalar) => json(value).map(|value| (scalar.text().to_owned(), value)),
            None => Err(misfit_key(key)),
        };
        match read {
            Ok((key, value)) => {
                metadata.insert(key, value);
            }
            Err(Misfit { at, why }) => report.error(at, format!("error parsing metadata: {why}")),
        }
    }
    (!metadata.is_empty()).then_some(metadata)
}

fn misfit_key(key: &YamlNode) -> Misfit {
    Misfit { at: key.at, why: "a key must be text, a number, true or false" }
}

fn json(node: &YamlNode) -> Result<Json, Misfit> {
    match &node.value {
        Value::Scalar(scalar) => scalar_json(scalar, node.at),
        Value::List(items) => items.iter().map(|item| json(item)).collect::<Result<_, _>>().map(Json::Array),
        Value::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| match key.value {
                Value::Scalar(_) => Ok((whole_key(key), json(value)?)),
                Value::List(_) | Value::Map(_) => Err(misfit_key(key)),
            });
            entries.collect::<Result<_, _>>().map(Json::Object)
        }
    }
}

/// As Go's `%v` prints it.
fn whole_key(key: &YamlNode) -> String {
    match key.scalar() {
        Some(scalar) if scalar.meaning() == Meaning::Text => scalar.text().to_owned(),
        Some(scalar) => match scalar.meaning() {
            Meaning::Float(number) => float_as_go_prints(number),
            _ => as_go_prints(key),
        },
        None => String::new(),
    }
}

fn scalar_json(scalar: &Scalar, at: YamlPosition) -> Result<Json, Misfit> {
    Ok(match scalar.meaning() {
        Meaning::Null => Json::Null,
        Meaning::Bool(flag) => flag.into(),
        Meaning::Text => scalar.text().into(),
        Meaning::Int(number) => match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            #[expect(clippy::cast_precision_loss, reason = "protobuf's numbers are doubles")]
            _ => finite(number as f64, at)?,
        },
        Meaning::Float(number) => finite(number, at)?,
    })
}

fn finite(number: f64, at: YamlPosition) -> Result<Json, Misfit> {
    let why = "a number must be finite, since JSON has no other";
    Number::from_f64(number).map(Json::Number).ok_or(Misfit { at, why })
}
