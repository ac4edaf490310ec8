//! Tests that a change to a ConfigMap causes no error and no warning, regardless of the order and pace of its steps.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    child::{Serving, run, stdout},
    get, path,
};

/// Longer than the time after which a change is read, so that each step is read separately.
const PAUSE: Duration = Duration::from_millis(150);

/// A step of a change from the version `..1` to `..2`.
#[derive(Clone, Copy, Debug)]
enum Step {
    MakeVersion,
    WriteFiles,
    LinkVersion,
    /// Renames the new link to the version over the old one.
    Swap,
    /// Adds the visible link of a file that only the new version has.
    AddLink,
    /// Removes the visible link of a file that only the old version has.
    RemoveLink,
    RemoveVersion,
}

use Step::{AddLink, LinkVersion, MakeVersion, RemoveLink, RemoveVersion, Swap, WriteFiles};

/// The orders to test, beginning with the kubelet's.
const ORDERS: [[Step; 7]; 5] = [
    [MakeVersion, WriteFiles, LinkVersion, Swap, AddLink, RemoveLink, RemoveVersion],
    [MakeVersion, WriteFiles, LinkVersion, Swap, RemoveLink, AddLink, RemoveVersion],
    [MakeVersion, WriteFiles, LinkVersion, Swap, RemoveVersion, RemoveLink, AddLink],
    [LinkVersion, MakeVersion, WriteFiles, AddLink, RemoveLink, Swap, RemoveVersion],
    [AddLink, LinkVersion, MakeVersion, WriteFiles, RemoveVersion, Swap, RemoveLink],
];

/// Returns the files of a version. One is in both versions and changes; the domain `moved` has another file in each.
fn files(version: u32) -> [(&'static str, String); 2] {
    let file = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors:\n- key: k\n  rate_limit: {{unit: hour, requests_per_unit: {version}}}\n"
        )
    };
    let moved = if version == 1 { "removed.yaml" } else { "added.yaml" };
    [("stays.yaml", file("kept")), (moved, file("moved"))]
}

fn write_files(dir: &Path, version: u32) {
    for (name, text) in files(version) {
        fs::write(dir.join(format!("..{version}")).join(name), text).expect("a file");
    }
}

fn add_link(dir: &Path, name: &str) {
    symlink(Path::new("..data").join(name), dir.join(name)).expect("a link");
}

/// Creates a mount with the first version, and leftovers of interrupted changes.
fn mount(dir: &Path) {
    fs::create_dir(dir.join("..1")).expect("a directory");
    write_files(dir, 1);
    symlink("..1", dir.join("..data")).expect("a link");
    add_link(dir, "stays.yaml");
    add_link(dir, "removed.yaml");
    fs::create_dir(dir.join("..0")).expect("a directory");
    fs::write(dir.join("..0/stays.yaml"), "domain: kept\n").expect("a file");
    fs::write(dir.join("..0/broken.yaml"), "domain: [\n").expect("a file");
    symlink("..gone", dir.join("..stale")).expect("a link");
}

// === impl Step ===

impl Step {
    fn take(self, dir: &Path) {
        match self {
            MakeVersion => fs::create_dir(dir.join("..2")).expect("a directory"),
            WriteFiles => write_files(dir, 2),
            LinkVersion => symlink("..2", dir.join("..data_tmp")).expect("a link"),
            Swap => fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("a rename"),
            AddLink => add_link(dir, "added.yaml"),
            RemoveLink => fs::remove_file(dir.join("removed.yaml")).expect("a removal"),
            RemoveVersion => fs::remove_dir_all(dir.join("..1")).expect("a removal"),
        }
    }
}

fn loaded_rules(weir: &Serving) -> Vec<String> {
    let page = get(weir.address("debug"), "/rlconfig");
    let mut rules: Vec<_> = page.lines().filter(|line| line.contains("requests_per_unit")).collect();
    rules.sort_unstable();
    rules.iter().map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect()
}

fn expected_rules(version: u32) -> Vec<String> {
    let rule = |domain: &str| format!("{domain}.k: unit=HOUR requests_per_unit={version}");
    vec![rule("kept"), rule("moved")]
}

fn assert_changes_without_an_error(order: [Step; 7], pause: Duration) {
    let dir = tempfile::tempdir().expect("a directory");
    mount(dir.path());
    let weir = Serving::start(path(&dir), &[("WEIR_STOP_DELAY", "0")]);
    assert_eq!(loaded_rules(&weir), expected_rules(1));
    for step in order {
        step.take(dir.path());
        thread::sleep(pause);
    }
    let started = Instant::now();
    while loaded_rules(&weir) != expected_rules(2) {
        assert!(started.elapsed() < Duration::from_secs(20), "{order:?}: {:?}", loaded_rules(&weir));
        thread::sleep(Duration::from_millis(10));
    }
    let stats = get(weir.address("debug"), "/stats");
    assert!(stats.contains("ratelimit.service.config_load_error: 0"), "{order:?}: {stats}");
    weir.signal("TERM");
    let (_, log) = weir.ended();
    // errors and warnings are logged by default, and changes
    let is_expected =
        |line: &&str| line.contains("weir: listening") || line.contains("weir_audit: Rules were loaded");
    assert_eq!(log.lines().filter(|line| !is_expected(line)).count(), 0, "{order:?}: {log}");
}

#[test]
fn a_paused_change_causes_no_error_in_any_order() {
    thread::scope(|scope| {
        for order in ORDERS {
            scope.spawn(move || assert_changes_without_an_error(order, PAUSE));
        }
    });
}

#[test]
fn a_fast_change_causes_no_error_in_any_order() {
    for order in ORDERS {
        assert_changes_without_an_error(order, Duration::ZERO);
    }
}

#[test]
fn a_stale_version_is_not_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    mount(dir.path());
    let checked = run(&["check", path(&dir)], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
    assert!(
        stdout(&checked).ends_with(": ok: 2 files, 2 domains, 2 rules, 0 warnings\n"),
        "{}",
        stdout(&checked)
    );
}
