//! The files around the templates: they belong together.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;
use weir_testing::repository;

use crate::helm::{CHART, program};

fn yaml(path: &str) -> Value {
    let text = fs::read_to_string(repository(path)).expect("the file");
    serde_saphyr::from_str(&text).expect("YAML")
}

/// Adds the paths of all values of a schema that is an object.
fn values_of_schema(schema: &Value, root: &Value, path: &str, found: &mut BTreeSet<String>) {
    let schema =
        schema["$ref"].as_str().map_or(schema, |to| &root["$defs"][to.trim_start_matches("#/$defs/")]);
    match schema["properties"].as_object() {
        Some(properties) => {
            assert_eq!(schema["additionalProperties"], false, "{path}: other values are refused");
            for (name, schema) in properties {
                values_of_schema(schema, root, &format!("{path}.{name}"), found);
            }
        }
        None => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn every_value_of_the_schema_has_a_default() {
    let schema = fs::read_to_string(repository("charts/weir/values.schema.json")).expect("the schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let values = yaml("charts/weir/values.yaml");
    let mut paths = BTreeSet::new();
    values_of_schema(&schema, &schema, "", &mut paths);
    assert!(paths.len() > 80);
    // Helm passes the first to every chart, the second is the condition of a dependency, and claims are for devices
    let without_default = [".global", ".enabled", ".resources.claims"];
    for path in paths.iter().filter(|path| !without_default.contains(&path.as_str())) {
        let pointer = path.replace('.', "/");
        assert!(values.pointer(&pointer).is_some(), "{path} has no default in values.yaml");
    }
}

#[test]
fn the_table_of_values_is_up_to_date() {
    let output = Command::new(repository("target/venv/bin/python3"))
        .arg(repository("scripts/chart-readme.py"))
        .arg("--check")
        .output()
        .expect("Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let readme = fs::read_to_string(repository("charts/weir/README.md")).expect("the file");
    let unexplained: Vec<&str> = readme.lines().filter(|line| line.ends_with("|  |")).collect();
    // names that Kubernetes gives them explain these
    assert!(unexplained.len() < 45, "{unexplained:#?}");
}

#[test]
fn the_plain_manifests_are_rendered_from_the_chart() {
    let folder = tempfile::tempdir().expect("a folder");
    let rendered = folder.path().join("weir.yaml");
    let status = Command::new(repository("scripts/render-examples.sh"))
        .arg(program())
        .arg(&rendered)
        .status()
        .expect("the script can be started");
    assert!(status.success());
    let read = |path| fs::read_to_string(path).expect("the file");
    assert_eq!(
        read(rendered),
        read(repository("examples/kubernetes/weir.yaml")),
        "`make examples` renders it"
    );
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = yaml(&format!("{CHART}/Chart.yaml"));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&chart["version"], &chart["appVersion"]), (&Value::from(version), &Value::from(version)));
}
