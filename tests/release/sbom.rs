//! `make sbom`: the list of dependencies, and its validator.

use std::fs;

use serde_json::{Value, json};
use weir_testing::repository;

use crate::{printed, script};

/// The version of cargo-cyclonedx that `make tools` installs; release.mk has the same.
const CARGO_CYCLONEDX: &str = "target/tools/cargo-cyclonedx-0.5.9";

#[test]
fn the_sbom_is_valid_and_lists_what_the_program_contains() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("weir.cdx.json");
    let path = file.to_str().expect("UTF-8");
    let output = script(&repository(""), &["scripts/sbom.sh", CARGO_CYCLONEDX, "target/venv", path]);
    assert!(output.status.success(), "{}", printed(&output));
    assert!(printed(&output).contains(": valid CycloneDX 1.5, "), "{}", printed(&output));

    let bom: Value = serde_json::from_slice(&fs::read(&file).expect("the file")).expect("JSON");
    assert_eq!(bom["metadata"]["component"]["name"], "weir");
    assert_eq!(bom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = bom["components"].as_array().expect("components");
    let component = |name: &str| components.iter().find(|component| component["name"] == name);
    for name in ["tokio", "ring", "clap_complete"] {
        let found = component(name).unwrap_or_else(|| panic!("no {name}"));
        assert!(found["licenses"].is_array() && found["hashes"].is_array(), "{found}");
        assert!(
            found["purl"].as_str().is_some_and(|purl| purl.starts_with(&format!("pkg:cargo/{name}@"))),
            "{found}"
        );
    }
    for name in ["proptest", "criterion", "windows-sys"] {
        assert!(component(name).is_none(), "{name} is not part of the program");
    }

    // the validator refuses what is not CycloneDX, and what Cargo.lock does not have
    let validate = |bom: &Value| {
        fs::write(&file, bom.to_string()).expect("it is written");
        printed(&script(&repository(""), &["target/venv/bin/python3", "scripts/check-sbom.py", path]))
    };
    assert!(validate(&bom).contains(": valid"));
    let changed = |pointer: &str, value: Value| {
        let mut bom = bom.clone();
        *bom.pointer_mut(pointer).expect("it is there") = value;
        validate(&bom)
    };
    assert!(changed("/components/0/type", json!("crate")).contains("not valid CycloneDX 1.5"));
    assert!(changed("/specVersion", json!("9.9")).contains("9.9"));
    assert!(changed("/components/0/version", json!("999.0.0")).contains("not in Cargo.lock"));
    assert!(changed("/components", json!([])).contains("missing: ['h2', 'hyper', 'ring', 'tokio']"));
}
