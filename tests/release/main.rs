//! What a release is made of, and the checks before it: scripts and targets that `make` and the workflows run.
//! `tests/image` has the image and the Debian package.

mod chart;
mod package;
mod sbom;
mod unit;
mod versions;
mod workflows;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;
use weir_testing::repository;

/// Runs a script of `root`, which is the repository or a copy of parts of it.
fn script(root: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(repository(arguments[0]));
    command.args(&arguments[1..]).current_dir(root).output().expect("the script can be started")
}

/// Returns all that a command printed.
fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Copies files and directories of the repository to a new one.
fn copy(paths: &[&str]) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for path in paths {
        let target = root.path().join(path);
        fs::create_dir_all(target.parent().expect("a directory")).expect("it can be made");
        let copied = Command::new("cp").arg("-r").args([&repository(path), &target]).status();
        assert!(copied.expect("cp can be started").success(), "{path}");
    }
    root
}

/// Replaces the first `old` in a file, which must have it.
fn replace(file: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(file).expect("text");
    assert!(text.contains(old), "{}: no {old}", file.display());
    fs::write(file, text.replacen(old, new, 1)).expect("it is written");
}

#[test]
fn the_places_that_contributing_names_exist() {
    let text = fs::read_to_string(repository("CONTRIBUTING.md")).expect("text");
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<&str> = quoted.filter(|quoted| quoted.contains('/') && !quoted.contains(' ')).collect();
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths {
        assert!(repository(path).exists(), "{path}");
    }
}
