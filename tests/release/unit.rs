//! The systemd unit, judged by systemd itself. `tests/image/debian.rs` runs it.

use std::{fs, process::Command};

use weir_testing::repository;

use crate::{printed, replace};

/// Tenths: the exposure must be below 2.0.
const THRESHOLD: u32 = 20;

/// Returns the exposure in tenths. `systemd-analyze` comes with systemd, which need not run.
fn exposure(unit: &std::path::Path) -> u32 {
    let mut analyze = Command::new("systemd-analyze");
    let output = analyze.args(["security", "--offline=true", "--no-pager"]).arg(unit).output();
    let text = printed(&output.expect("systemd-analyze can be started"));
    let line =
        text.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_else(|| panic!("{text}"));
    let level = line.split_once(": ").expect("a level").1.split(' ').next().expect("a number");
    level.replace('.', "").parse().expect("a number")
}

#[test]
fn the_unit_is_hardened() {
    let unit = repository("packaging/weir.service");
    assert!(exposure(&unit) < THRESHOLD, "{}", exposure(&unit));
    let text = fs::read_to_string(&unit).expect("text");
    assert!(text.contains("\nDynamicUser=yes\n") && text.contains("\nLoadCredential="), "{text}");

    // the measure sees what is missing
    let folder = tempfile::tempdir().expect("a directory");
    let weaker = folder.path().join("weir.service");
    fs::copy(&unit, &weaker).expect("a copy");
    replace(&weaker, "CapabilityBoundingSet=\n", "");
    assert!(exposure(&weaker) >= THRESHOLD, "{}", exposure(&weaker));
}

#[test]
fn the_unit_waits_as_long_as_the_program_may_take_to_stop() {
    let text = fs::read_to_string(repository("packaging/weir.service")).expect("text");
    let compose = fs::read_to_string(repository("compose.yaml")).expect("text");
    assert!(text.contains("\nTimeoutStopSec=46s\n") && compose.contains("stop_grace_period: 46s"));
}
