//! `docs/api.md` is made of the document. `WEIR_WRITE_API=1` writes it.

use std::{env, fmt::Write as _, fs, path::Path};

use serde_json::Value;

use crate::client::document;

const HEAD: &str = "\
# Admin API

This page is for those who write scripts and dashboards. The admin API is on the debug port, 6070, and has all that a weir
knows in JSON; the console at `/` and the commands `weir top`, `weir why` and `weir hot` use nothing else.
[Security](security.md#the-admin-api) says who may use it. `make api` writes this page from
`crates/weir-server/src/http/admin/openapi.json`, which `GET /v1/openapi.json` answers.

```sh
curl 'localhost:6070/v1/hot?by=rejected&limit=3'
curl localhost:6070/v1/why -H 'content-type: application/json' \\
  -d '{\"domain\": \"shop\", \"descriptors\": [{\"entries\": [{\"key\": \"tenant\", \"value\": \"acme\"}]}]}'
```

- Times are RFC 3339 in UTC, durations seconds, numbers above 2^53 text. Fields are only ever added.
- A list has `next`: send it as `cursor` for the rest. `limit` is 100, at most 1,000.
- An error is a [problem](https://www.rfc-editor.org/rfc/rfc9457): `status`, and `detail`, a sentence that says what would be
  right.
- A level is what a caller needs: `read`, `full`, or `try`, which is `read` on the same host and `full` from others.
";

/// The most characters of a line.
const WIDTH: usize = 120;

fn schema_name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// A type in words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema_name(schema) {
        return match name {
            "Time" => "time".to_owned(),
            "Seconds" => "seconds".to_owned(),
            "Count" => "count".to_owned(),
            "Share" => "share".to_owned(),
            "Next" | "Note" => "text or null".to_owned(),
            name => format!("[{name}](#{})", name.to_lowercase()),
        };
    }
    for (parts, word) in [("oneOf", " or "), ("allOf", " and ")] {
        if let Some(parts) = schema[parts].as_array() {
            return parts.iter().map(kind).collect::<Vec<_>>().join(word);
        }
    }
    if let Some(choices) = schema["enum"].as_array() {
        let names =
            choices.iter().map(|of| of.as_str().map_or("null".to_owned(), |name| format!("`{name}`")));
        return names.collect::<Vec<_>>().join(", ");
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        of => of.as_str().into_iter().collect(),
    };
    let name = |name: &&str| match *name {
        "string" => "text".to_owned(),
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema["properties"].is_object() => {
            let fields = schema["properties"].as_object().expect("fields").keys();
            format!("object of {}", fields.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
        }
        name => name.to_owned(),
    };
    names.iter().map(name).collect::<Vec<_>>().join(" or ")
}

/// A list of `fields`: each with what it means, then those whose names say it.
fn list<'a>(fields: impl Iterator<Item = (&'a str, &'a Value, &'a Value)>) -> String {
    let (mut lines, mut others) = (Vec::new(), Vec::new());
    for (name, schema, description) in fields {
        let named = format!("`{name}` ({})", kind(schema));
        match description.as_str() {
            Some(description) => lines.push(format!("- {named}: {description}\n")),
            None => others.push(named),
        }
    }
    if !others.is_empty() {
        lines.push(format!("- {}\n", others.join(", ")));
    }
    lines.concat()
}

/// What an operation answers, if it is an object that has a name.
fn answer(operation: &Value) -> String {
    let answers = ["200", "204"].iter().filter_map(|of| operation["responses"][of]["content"].as_object());
    let schema = answers.flat_map(serde_json::Map::values).map(|content| &content["schema"]).next();
    schema.map(kind).filter(|answer| answer.starts_with('[')).unwrap_or_default()
}

/// What a caller of `operation` must know beside its line of the table.
fn details(operation: &Value) -> String {
    let mut details = operation["description"].as_str().map(|text| format!("\n{text}\n")).unwrap_or_default();
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameters =
        parameters.filter_map(|of| Some((of["name"].as_str()?, &of["schema"], &of["description"])));
    let parameters = list(parameters);
    if !parameters.is_empty() {
        let _ = write!(details, "\n{parameters}");
    }
    let body = &operation["requestBody"]["content"]["application/json"];
    if body.is_object() {
        let _ = writeln!(
            details,
            "\nThe body is {}:\n\n```json\n{}\n```",
            kind(&body["schema"]),
            body["example"]
        );
    }
    details
}

/// With lines of at most [`WIDTH`] characters, except in tables and code.
fn wrapped(page: &str) -> String {
    let (mut wrapped, mut is_code) = (String::new(), false);
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let is_text = !is_code && !line.starts_with('|');
        let next = if line.starts_with("- ") { "\n  " } else { "\n" };
        let mut width = 0;
        for (i, word) in line.split(' ').enumerate() {
            let length = word.chars().count();
            let gap = match i {
                0 => "",
                _ if is_text && width + 1 + length > WIDTH => next,
                _ => " ",
            };
            width = if gap == next { gap.len() - 1 } else { width + gap.len() } + length;
            wrapped += gap;
            wrapped += word;
        }
        wrapped.push('\n');
    }
    wrapped
}

// writing to a string cannot fail
fn page(document: &Value) -> String {
    let head = "## Operations\n\n| operation | level | does | answers |\n| --- | --- | --- | --- |";
    let (mut page, mut sections) = (format!("\n{head}\n"), String::new());
    for (path, item) in document["paths"].as_object().expect("paths") {
        let operations = item.as_object().expect("operations").iter().filter(|(name, _)| *name != "servers");
        for (method, operation) in operations {
            let name = format!("{} {path}", method.to_uppercase());
            let text = |name: &str| operation[name].as_str().expect("a text");
            let (level, summary) = (text("x-weir-level"), text("summary"));
            let _ = writeln!(page, "| `{name}` | {level} | {summary} | {} |", answer(operation));
            let details = details(operation);
            if !details.is_empty() {
                let _ = write!(sections, "\n### {name}\n{details}");
            }
        }
    }
    page += &sections;
    page += "\n## Objects\n";
    let plain = ["Time", "Seconds", "Count", "Share", "Next", "Note"];
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        if plain.contains(&name.as_str()) {
            continue;
        }
        let _ = writeln!(page, "\n### {name}\n");
        if let Some(description) = schema["description"].as_str() {
            let _ = writeln!(page, "{description}\n");
        }
        match schema["properties"].as_object() {
            Some(fields) => {
                page += &list(fields.iter().map(|(name, of)| (name.as_str(), of, &of["description"])));
            }
            None => {
                let _ = writeln!(page, "Is {}.", kind(schema));
            }
        }
    }
    HEAD.to_owned() + &wrapped(&page)
}

#[test]
fn the_page_is_made_of_the_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = page(&document());
    if env::var_os("WEIR_WRITE_API").is_some() {
        fs::write(&path, &page).expect("the page is written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/api.md is not up to date: run `make api`");
}
