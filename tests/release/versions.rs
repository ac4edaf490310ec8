//! `make release-check` and `make release-notes`: one version in all files and the tag.

use std::{fs, path::Path};

use crate::{copy, printed, replace, script};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns what the check of `root` prints, and whether it passes.
fn check(root: &Path, tag: &[&str]) -> (bool, String) {
    let output = script(root, &[&["scripts/release.py", "check"], tag].concat());
    (output.status.success(), printed(&output))
}

const CHECKED: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "CHANGELOG.md", "README.md", "charts", "docs", "examples"];

#[test]
fn the_versions_of_this_repository_agree() {
    let root = copy(&CHECKED);
    assert_eq!(check(root.path(), &[]), (true, format!("version {VERSION} everywhere\n")));
}

#[test]
fn each_file_with_another_version_is_named() {
    for (file, old, new, expected) in [
        (
            "Cargo.lock",
            "name = \"weir\"\nversion = \"",
            "name = \"weir\"\nversion = \"9",
            "Cargo.lock: version 9",
        ),
        (
            "charts/weir/Chart.yaml",
            "\nversion: ",
            "\nversion: 9",
            "charts/weir/Chart.yaml (version): version 9",
        ),
        (
            "charts/weir/Chart.yaml",
            "\nappVersion: ",
            "\nappVersion: 9",
            "charts/weir/Chart.yaml (appVersion): version 9",
        ),
        (
            "CHANGELOG.md",
            &format!("## {VERSION}"),
            "## 8.0.0",
            "CHANGELOG.md (its first section): version 8.0.0",
        ),
        (
            "docs/kubernetes.md",
            &format!("weir:{VERSION}"),
            "weir:9.9.9",
            "docs/kubernetes.md:13: version 9.9.9",
        ),
        ("CHANGELOG.md", ", not yet released", ", soon", "'soon' is neither a date"),
    ] {
        let root = copy(&CHECKED);
        replace(&root.path().join(file), old, new);
        let (passed, text) = check(root.path(), &[]);
        assert!(!passed && text.contains(expected), "{file}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_tag_needs_its_version_and_a_date() {
    let root = copy(&CHECKED);
    let tag = format!("v{VERSION}");
    let (passed, text) = check(root.path(), &[&tag]);
    assert!(!passed && text.contains("needs a date such as 2026-01-31 to be released"), "{text}");
    replace(&root.path().join("CHANGELOG.md"), "not yet released", "2026-01-31");
    assert_eq!(check(root.path(), &[&tag]), (true, format!("version {VERSION} everywhere\n")));
    let (passed, text) = check(root.path(), &["v9.0.0"]);
    assert!(!passed && text.contains("the tag: version 9.0.0, but Cargo.toml has"), "{text}");
    let (passed, text) = check(root.path(), &[&format!("x{VERSION}")]);
    assert!(!passed && text.contains("does not begin with v"), "{text}");
}

#[test]
fn the_notes_of_a_version_are_its_section_of_the_changelog() {
    let root = copy(&["Cargo.toml"]);
    let changelog =
        "# Changelog\n\n## 0.2.0, not yet released\n\n### Limits\n- New.\n\n## 0.1.0, 2026-01-31\n\n- Old.\n";
    fs::write(root.path().join("CHANGELOG.md"), changelog).expect("it is written");
    let notes = |version| script(root.path(), &["scripts/release.py", "notes", version]);
    assert_eq!(printed(&notes("v0.2.0")), "### Limits\n- New.\n");
    assert_eq!(printed(&notes("0.1.0")), "- Old.\n");
    let none = notes("0.3.0");
    assert!(!none.status.success());
    assert_eq!(printed(&none), "CHANGELOG.md has no section for 0.3.0\n");
}
