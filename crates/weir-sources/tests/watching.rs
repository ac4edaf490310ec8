//! Tests that every kind of change to rule files is reported.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use tempfile::TempDir;
use weir_sources::Watch;

/// Far longer than a change takes to be reported.
const DEADLINE: Duration = Duration::from_secs(20);

/// Longer than a change takes to be reported, shorter than the poll interval.
const QUIET: Duration = Duration::from_millis(500);

fn dir() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.yaml"), "domain: a").expect("a file");
    dir
}

async fn assert_changes(watch: &mut Watch, what: &str) {
    assert!(tokio::time::timeout(DEADLINE, watch.changed()).await.is_ok(), "{what}");
}

async fn assert_quiet(watch: &mut Watch) {
    assert!(tokio::time::timeout(QUIET, watch.changed()).await.is_err());
}

#[tokio::test]
async fn written_replaced_added_and_removed_files_are_reported() {
    let dir = dir();
    let file = dir.path().join("a.yaml");
    let mut watch = Watch::new(dir.path());

    fs::write(&file, "domain: b").expect("a file");
    assert_changes(&mut watch, "written in place").await;

    let new = dir.path().join("a.yaml.new");
    fs::write(&new, "domain: c").expect("a file");
    fs::rename(&new, &file).expect("a rename");
    assert_changes(&mut watch, "replaced").await;

    let below = dir.path().join("below");
    fs::create_dir(&below).expect("a directory");
    fs::write(below.join("b.yaml"), "domain: d").expect("a file");
    assert_changes(&mut watch, "added").await;

    fs::write(below.join("b.yaml"), "domain: e").expect("a file");
    assert_changes(&mut watch, "written in a new directory").await;

    fs::remove_dir_all(&below).expect("a removal");
    assert_changes(&mut watch, "removed").await;
}

#[tokio::test]
async fn reading_the_rules_is_not_reported_as_a_change() {
    let dir = dir();
    let mut watch = Watch::new(dir.path());
    for _ in 0..3 {
        weir_config::load(dir.path(), &weir_config::Options::default()).expect("rules");
    }
    assert_quiet(&mut watch).await;
}

#[tokio::test]
async fn a_burst_of_changes_is_reported_once() {
    let dir = dir();
    let mut watch = Watch::new(dir.path());
    for i in 0..100 {
        fs::write(dir.path().join("a.yaml"), format!("domain: d{i}")).expect("a file");
    }
    assert_changes(&mut watch, "a burst").await;
    assert_quiet(&mut watch).await;
}

#[tokio::test]
async fn a_dropped_future_loses_no_change() {
    let dir = dir();
    let mut watch = Watch::new(dir.path());
    fs::write(dir.path().join("a.yaml"), "domain: b").expect("a file");
    for _ in 0..20 {
        if tokio::time::timeout(Duration::from_millis(5), watch.changed()).await.is_ok() {
            return;
        }
    }
    assert_changes(&mut watch, "a change whose future was dropped").await;
}

/// Replaces a link in one step, as Kubernetes does.
fn swap(link: &Path, target: &str) {
    let new = link.with_file_name("..new");
    symlink(target, &new).expect("a link");
    fs::rename(&new, link).expect("a rename");
}

#[tokio::test]
async fn a_swap_of_a_config_map_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    for (version, text) in [("..1", "domain: a"), ("..2", "domain: b"), ("..3", "domain: c")] {
        fs::create_dir(dir.path().join(version)).expect("a directory");
        fs::write(dir.path().join(version).join("a.yaml"), text).expect("a file");
    }
    symlink("..1", dir.path().join("..data")).expect("a link");
    symlink("..data/a.yaml", dir.path().join("a.yaml")).expect("a link");
    let mut watch = Watch::new(dir.path());
    for version in ["..2", "..3", "..1"] {
        swap(&dir.path().join("..data"), version);
        assert_changes(&mut watch, version).await;
    }
}

#[tokio::test]
async fn a_swap_of_the_runtime_root_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    for (version, text) in [("v1", "domain: a"), ("v2", "domain: b")] {
        let config = dir.path().join("versions").join(version).join("config");
        fs::create_dir_all(&config).expect("a directory");
        fs::write(config.join("a.yaml"), text).expect("a file");
    }
    symlink("versions/v1", dir.path().join("current")).expect("a link");
    let config = dir.path().join("current/config");
    let mut watch = Watch::new(&config);
    swap(&dir.path().join("current"), "versions/v2");
    assert_changes(&mut watch, "swapped").await;

    fs::write(dir.path().join("versions/v2/config/a.yaml"), "domain: c").expect("a file");
    assert_changes(&mut watch, "written in the new target of the link").await;

    fs::write(dir.path().join("beside"), "no rules").expect("a file");
    assert_quiet(&mut watch).await;
}

#[tokio::test]
async fn a_directory_created_later_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("not/yet");
    let mut watch = Watch::new(&config);
    fs::create_dir_all(&config).expect("a directory");
    fs::write(config.join("a.yaml"), "domain: a").expect("a file");
    assert_changes(&mut watch, "made").await;
}
