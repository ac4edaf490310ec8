//! `cargo install --path .`, and what the crate contains.

use std::process::Command;

use weir_testing::repository;

use crate::printed;

/// Returns Cargo in the repository's root, without what the tests' own Cargo sets.
fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).current_dir(repository(""));
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR")
    {
        cargo.env_remove(name);
    }
    cargo
}

#[test]
fn cargo_installs_the_program() {
    let root = tempfile::tempdir().expect("a directory");
    // unoptimized, since tests have built that already
    let root_flag = ["--root", root.path().to_str().expect("UTF-8")];
    let output =
        cargo(&["install", "--path", ".", "--locked", "--debug", "--no-track"]).args(root_flag).output();
    let output = output.expect("cargo can be started");
    assert!(output.status.success(), "{}", printed(&output));
    let installed: Vec<_> = std::fs::read_dir(root.path().join("bin")).expect("bin").collect();
    assert_eq!(installed.len(), 1, "{installed:?}");
    let version =
        Command::new(root.path().join("bin/weir")).arg("--version").output().expect("weir can be started");
    assert_eq!(printed(&version), concat!("weir ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn the_crate_has_what_it_is_built_of_and_no_tests() {
    let output =
        cargo(&["package", "--list", "--locked", "--allow-dirty"]).output().expect("cargo can be started");
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
