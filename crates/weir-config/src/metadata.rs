//! Reads a rule's metadata, which is free-form but must fit into protobuf's `Struct`.

use serde_json::{Number, Value as Json};

use super::{
    error::ConfigReport,
    scalar::{Meaning, Scalar},
    yaml::{Value, YamlNode},
};
use weir_limit::Metadata;

pub(super) fn read(node: &YamlNode, report: &mut ConfigReport) -> Option<Metadata> {
    if !matches!(node.value, Value::Map(_)) {
        let kind = node.kind();
        report.error(node.at, format!("error loading config file: 'metadata' must be a mapping, not {kind}"));
    }
    match json(node, report) {
        Json::Object(metadata) if !metadata.is_empty() => Some(metadata),
        _ => None,
    }
}

/// What does not fit is reported and left out.
fn json(node: &YamlNode, report: &mut ConfigReport) -> Json {
    match &node.value {
        Value::Scalar(scalar) => scalar_json(scalar).unwrap_or_else(|| {
            report.error(node.at, "error parsing metadata: a number must be finite, since JSON has no other");
            Json::Null
        }),
        Value::List(items) => items.iter().map(|item| json(item, report)).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().filter_map(|(key, value)| {
                let Some(name) = key.scalar() else {
                    let message = "error parsing metadata: a key must be text, a number, true or false";
                    report.error(key.at, message);
                    return None;
                };
                Some((name.text().to_owned(), json(value, report)))
            });
            Json::Object(entries.collect())
        }
    }
}

fn scalar_json(scalar: &Scalar) -> Option<Json> {
    match scalar.meaning() {
        Meaning::Null => Some(Json::Null),
        Meaning::Bool(flag) => Some(flag.into()),
        Meaning::Text => Some(scalar.text().into()),
        #[expect(clippy::cast_precision_loss, reason = "protobuf's numbers are doubles")]
        Meaning::Int(number) => {
            Number::from_i128(number).or_else(|| Number::from_f64(number as f64)).map(Json::Number)
        }
        Meaning::Float(number) => Number::from_f64(number).map(Json::Number),
    }
}
