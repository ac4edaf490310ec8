//! Floods of values that the disk has never seen.

use weir_limit::OnStoreFailure;

use crate::support::{Disk, until};

/// Values that are used up, many more than memory holds beside others.
const USED_UP: usize = 1_000;

/// New values for each of them.
const NEW: usize = 60;

fn values(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{kind}{i}")).collect()
}

/// Look-ups of what the disk has not would fill the queue of those who read, and `local` would decide about a used-up
/// value as if it were new.
#[test]
fn new_values_hold_up_no_counter_that_the_disk_has() {
    let mut disk = Disk::new();
    (disk.settings.max_counters, disk.settings.on_store_failure) = (2_000, OnStoreFailure::Local);
    let cards = values("card", USED_UP);
    let opened = disk.open();
    assert!(opened.take_all(&cards, 100).iter().all(|decision| !decision.over));
    opened.close();
    let opened = disk.open();
    until("all records to be found", || opened.metric("weir.disk.records") >= USED_UP as u64);
    let new = values("new", USED_UP * NEW);
    let mixed: Vec<String> =
        cards.iter().zip(new.chunks(NEW)).flat_map(|(card, new)| new.iter().chain([card])).cloned().collect();
    let decided = opened.take_all(&mixed, 1);
    let passed =
        mixed.iter().zip(&decided).filter(|(value, decision)| value.starts_with('c') && !decision.over);
    assert_eq!(passed.count(), 0, "used-up values that pass");
    assert!(mixed.iter().zip(&decided).all(|(value, decision)| value.starts_with('c') || !decision.over));
    assert_eq!(opened.metric("weir.disk.fallback"), 0);
    // the others are read later: they are on the disk
    let reads = opened.metric("weir.disk.reads");
    assert!(reads < 2 * USED_UP as u64, "{reads} reads");
    opened.written();
    opened.close();
    let opened = disk.open();
    assert!(["new0", "new30000", "new59999"].iter().all(|value| opened.hits(value) == 1));
    assert_eq!(opened.hits("card500"), 100);
}

/// Counters come and go: what left memory and is on the disk is never taken for new.
#[test]
fn what_was_new_is_read_when_it_comes_back() {
    let mut disk = Disk::new();
    disk.settings.max_counters = 500;
    let opened = disk.open();
    for round in 1..=5 {
        for some in values("v", 5_000).chunks(1_000) {
            for decision in opened.take_all(some, 20) {
                assert_eq!((decision.before.0, decision.over), (20 * (round - 1), false));
            }
        }
    }
    assert_eq!((opened.metric("weir.disk.fallback"), opened.metric("weir.disk.reads") > 0), (0, true));
}
