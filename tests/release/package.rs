//! What Cargo installs, and what the crate contains.

use std::process::Command;

use serde_json::{Value, json};
use weir_testing::repository;

use crate::printed;

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(repository("")).output();
    let output = output.expect("cargo can be started");
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn cargo_installs_one_program() {
    let metadata = cargo(&["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let targets = packages.filter(|package| package["name"] == "weir").map(|package| &package["targets"]);
    let targets = targets.flat_map(|targets| targets.as_array().expect("targets"));
    let programs: Vec<_> = targets.filter(|target| target["kind"] == json!(["bin"])).collect();
    assert_eq!(programs.iter().map(|program| &program["name"]).collect::<Vec<_>>(), ["weir"]);
}

#[test]
fn the_crate_has_what_it_is_built_of_and_no_tests() {
    let files = cargo(&["package", "--list", "--locked", "--allow-dirty"]);
    let files: Vec<&str> = files.lines().collect();
    for needed in ["src/main.rs", "src/app/mod.rs", "proto/envoy/service/ratelimit/v3/rls.proto", "LICENSE"] {
        assert!(files.contains(&needed), "{needed}: {files:?}");
    }
    for folder in ["tests/", "benches/", "docs/", "charts/", ".github/", "fuzz/", "target/"] {
        assert!(!files.iter().any(|file| file.starts_with(folder)), "{folder}");
    }
}
