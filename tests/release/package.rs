//! What the crate contains.

use std::process::Command;

use weir_testing::repository;

use crate::printed;

#[test]
fn the_crate_has_what_it_is_built_of_and_no_tests() {
    let arguments = ["package", "--list", "--locked", "--allow-dirty"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(repository("")).output();
    let output = output.expect("cargo can be started");
    assert!(output.status.success(), "{}", printed(&output));
    let files = String::from_utf8_lossy(&output.stdout).into_owned();
    let files: Vec<&str> = files.lines().collect();
    for needed in ["src/main.rs", "src/app/mod.rs", "proto/envoy/service/ratelimit/v3/rls.proto", "LICENSE"] {
        assert!(files.contains(&needed), "{needed}: {files:?}");
    }
    for folder in ["tests/", "benches/", "docs/", "charts/", ".github/", "fuzz/", "target/"] {
        assert!(!files.iter().any(|file| file.starts_with(folder)), "{folder}");
    }
}
