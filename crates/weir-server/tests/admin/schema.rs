//! Compares values with the schemas of the document. A field that the document does not have is an error, too.

use serde_json::Value;

/// What is wrong with `value`; nothing if it is as `schema` says.
pub(crate) fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolved(document, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let all: Vec<_> = choices.iter().map(|choice| faults(document, choice, value, at)).collect();
        return if all.iter().any(Vec::is_empty) { Vec::new() } else { all.concat() };
    }
    if let Some(kinds) = kinds(&schema["type"])
        && !kinds.iter().any(|kind| is_of(kind, value))
    {
        return vec![format!("{at} is {value}, and must be {kinds:?}")];
    }
    let mut found = Vec::new();
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        found.push(format!("{at} is {value}, and must be one of {choices:?}"));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && pattern.contains("T\\d\\d")
        && !is_time(text)
    {
        found.push(format!("{at} is {text:?}, and must be a time"));
    }
    for (bound, is_beyond) in [("minimum", true), ("maximum", false)] {
        if let (Some(bound), Some(number)) = (schema[bound].as_f64(), value.as_f64())
            && if is_beyond { number < bound } else { number > bound }
        {
            found.push(format!("{at} is {number}, beyond {bound}"));
        }
    }
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for required in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(required.as_str().expect("a name")) {
                found.push(format!("{at} has no {required}"));
            }
        }
        for (name, field) in object {
            match properties.get(name) {
                Some(schema) => found.extend(faults(document, schema, field, &format!("{at}.{name}"))),
                None => found.push(format!("{at}.{name} is not in the document")),
            }
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(faults(document, &schema["items"], item, &format!("{at}[{i}]")));
    }
    found
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => {
            let found = document.pointer(path.strip_prefix('#').expect("a place of this document"));
            resolved(document, found.unwrap_or_else(|| panic!("there is no {path}")))
        }
        None => schema,
    }
}

fn kinds(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => Some(kinds.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        kind => panic!("an unknown type {kind}"),
    }
}

/// Such as `2026-11-30T09:00:00.000Z`.
fn is_time(text: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:dd.dddZ";
    text.len() == form.len()
        && text.chars().zip(form.chars()).all(|(char, form)| match form {
            'd' => char.is_ascii_digit(),
            form => char == form,
        })
}

#[test]
fn faults_are_found() {
    let document =
        serde_json::json!({"components": {"schemas": {"Time": {"type": "string", "pattern": "T\\d\\d"}}}});
    let schema = serde_json::json!({
        "type": "object", "required": ["a"],
        "properties": {"a": {"type": ["integer", "null"]}, "at": {"$ref": "#/components/schemas/Time"},
                       "share": {"type": "number", "maximum": 1}, "kind": {"enum": ["x"]}},
    });
    let count =
        |text: &str| faults(&document, &schema, &serde_json::from_str(text).expect("JSON"), "answer").len();
    assert_eq!(count(r#"{"a": null, "at": "2026-11-30T09:00:00.000Z", "share": 1, "kind": "x"}"#), 0);
    for wrong in [
        "{}",
        "[]",
        r#"{"a": 1.5}"#,
        r#"{"a": 1, "b": 1}"#,
        r#"{"a": 1, "at": "2026-11-30 09:00:00.000"}"#,
        r#"{"a": 1, "share": 1.1}"#,
        r#"{"a": 1, "kind": "y"}"#,
    ] {
        assert_eq!(count(wrong), 1, "{wrong}");
    }
}
