//! Messages of envoyproxy/ratelimit that show a value as Go's `%v` prints it.

use super::{
    scalar::{Meaning, brief},
    yaml::{Value, YamlNode},
};

pub(super) fn as_go_prints(node: &YamlNode) -> String {
    brief(&printed(node, 0)).into_owned()
}

pub(super) fn not_text(key: &YamlNode) -> String {
    format!("config error, key is not of type string: {}", as_go_prints(key))
}

pub(super) fn not_a_map(item: &YamlNode) -> String {
    format!("config error, yaml file contains list of type other than map: {}", as_go_prints(item))
}

/// `depth` is below the formatted value. Omits what would be cut off: an alias may stand for millions of values.
fn printed(node: &YamlNode, depth: usize) -> String {
    const MAX_DEPTH: usize = 3;
    const MAX_PARTS: usize = 10;
    match &node.value {
        Value::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => "<nil>".to_owned(),
            Meaning::Bool(flag) => flag.to_string(),
            Meaning::Int(number) => number.to_string(),
            Meaning::Float(number) => float_as_go_prints(number),
            Meaning::Text => scalar.brief().into_owned(),
        },
        Value::List(_) | Value::Map(_) if depth == MAX_DEPTH => "…".to_owned(),
        Value::List(items) => {
            let items = items.iter().take(MAX_PARTS).map(|item| printed(item, depth + 1));
            format!("[{}]", items.collect::<Vec<_>>().join(" "))
        }
        Value::Map(entries) => {
            let print = |node| printed(node, depth + 1);
            let entries = entries.iter().take(MAX_PARTS);
            let entries = entries.map(|(key, value)| format!("{}:{}", print(key), print(value)));
            format!("map[{}]", entries.collect::<Vec<_>>().join(" "))
        }
    }
}

/// The shortest text that parses back to it, with an exponent if it is far from 1.
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
