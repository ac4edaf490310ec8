//! Tests that skipped tests are told of.

use std::{env, fs, process::Command};

use weir_testing::repository;
use weir_testing::skipped::VARIABLE;
pub(crate) use weir_testing::skipped::skipped;

fn last_line(file: &std::path::Path) -> String {
    let output =
        Command::new(repository("scripts/skipped-tests.sh")).arg(file).output().expect("it can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_skipped_test_is_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("skipped");
    assert_eq!(last_line(&file), "nothing was skipped\n");
    // these tests on a machine without an engine
    let tests = Command::new(env::current_exe().expect("its path"))
        .args(["container::", "rolling::"])
        .env("PATH", folder.path())
        .env(VARIABLE, &file)
        .output()
        .expect("it can be started");
    let output = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success() && output.contains("test result: ok"), "{output}");
    let count = fs::read_to_string(&file).expect("a file").lines().count();
    assert!(count > 1 && output.contains(&format!(" {count} passed")), "{output}");
    let why = "there is no Docker engine whose client builds with BuildKit";
    assert_eq!(last_line(&file), format!("not tested: the image ({count} tests): {why}\n"));
    fs::write(&file, "b\twhy\na\twhy\nb\twhy\n").expect("a file");
    assert_eq!(last_line(&file), "not tested: a (1 test): why; b (2 tests): why\n");
}
