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
    if let Some(choices) = schema["oneOf"].as_array() {
        let null = serde_json::json!({"type": "null"});
        return choices
            .iter()
            .map(|of| if *of == null { "null".to_owned() } else { kind(of) })
            .collect::<Vec<_>>()
            .join(" or ");
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

fn page(document: &Value) -> String {
    let mut page = HEAD.to_owned();
    // writing to a string cannot fail
    let _ = writeln!(page, "\n## Operations\n\n| operation | level | answers |\n| --- | --- | --- |");
    let mut details = String::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in
            item.as_object().expect("operations").iter().filter(|(name, _)| *name != "servers")
        {
            let method = method.to_uppercase();
            let text = |name: &str| operation[name].as_str().unwrap_or_default();
            let anchor = format!("{method} {path}");
            let _ = writeln!(page, "| `{anchor}` | {} | {} |", text("x-weir-level"), text("summary"));
            let parameters = operation["parameters"].as_array();
            let parameters: Vec<&Value> =
                parameters.into_iter().flatten().filter(|of| of["name"].is_string()).collect();
            let answer = ["200", "204"]
                .iter()
                .find_map(|status| operation["responses"][status]["content"].as_object());
            let answer =
                answer.and_then(|content| content.values().next()).map(|content| kind(&content["schema"]));
            let _ = write!(details, "\n### {anchor}\n\n{}", text("summary"));
            if !text("description").is_empty() {
                let _ = write!(details, " {}", text("description"));
            }
            let body = &operation["requestBody"]["content"]["application/json"];
            if body.is_object() {
                let _ = write!(details, "\nThe body is {}.", kind(&body["schema"]));
            }
            if let Some(answer) = answer.filter(|answer| answer.contains('[')) {
                let _ = write!(details, "\nThe answer is {answer}.");
            }
            details.push('\n');
            if !parameters.is_empty() {
                details.push_str("\n| parameter | is | meaning |\n| --- | --- | --- |\n");
                for parameter in parameters {
                    let of = |name: &str| parameter[name].as_str().unwrap_or_default();
                    let _ = writeln!(
                        details,
                        "| `{}` | {} | {} |",
                        of("name"),
                        kind(&parameter["schema"]),
                        of("description")
                    );
                }
            }
            if !body["example"].is_null() {
                let _ = writeln!(details, "\n```json\n{}\n```", body["example"]);
            }
        }
    }
    page += &details;
    page += "\n## Objects\n";
    let plain = ["Time", "Seconds", "Count", "Share", "Next", "Note"];
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        if plain.contains(&name.as_str()) {
            continue;
        }
        let _ = write!(page, "\n### {name}\n");
        if let Some(description) = schema["description"].as_str() {
            let _ = write!(page, "\n{description}\n");
        }
        let Some(fields) = schema["properties"].as_object() else {
            let _ = write!(page, "\nIs {}.\n", kind(schema));
            continue;
        };
        page += "\n| field | is | meaning |\n| --- | --- | --- |\n";
        for (field, of) in fields {
            let _ = writeln!(
                page,
                "| `{field}` | {} | {} |",
                kind(of),
                of["description"].as_str().unwrap_or_default()
            );
        }
    }
    page
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
