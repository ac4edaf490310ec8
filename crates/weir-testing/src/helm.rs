//! Renders the chart with the real Helm.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;

use crate::repository;

/// The installed version; the Makefile has the same.
const VERSION: &str = "4.1.4";

/// The chart.
pub const CHART: &str = "charts/weir";

/// Returns the Helm that `make tools` installs.
pub fn program() -> PathBuf {
    let program = repository(&format!("target/tools/helm-{VERSION}"));
    assert!(program.exists(), "there is no Helm at {}: `make tools` installs it", program.display());
    program
}

/// Runs Helm in the repository's root.
pub fn helm(arguments: &[&str]) -> Output {
    Command::new(program())
        .args(arguments)
        .current_dir(repository(""))
        // plugins and repositories of the user must not matter
        .env("HELM_CONFIG_HOME", repository("target/helm"))
        .output()
        .expect("Helm can be started")
}

/// Renders the chart as release `weir` in namespace `edge`, with further `arguments`. Returns Helm's error if it
/// refuses.
pub fn render(arguments: &[&str]) -> Result<String, String> {
    let output = helm(&[&["template", "weir", CHART, "--namespace", "edge"], arguments].concat());
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("UTF-8"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Reads the objects of rendered YAML.
pub fn objects(yaml: &str) -> Vec<Value> {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"));
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// Returns the object of that kind and name.
pub fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}
