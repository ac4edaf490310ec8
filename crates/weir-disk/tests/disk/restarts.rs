//! What a restart leaves, and what leaves memory or the disk.

use weir_disk::DiskSync;
use weir_limit::{Algorithm, Period, Tier};

use crate::support::{DAY, Disk, tier, tiers, until, year};

/// Every algorithm, alone and together, and all names: also those that look like another counter's.
#[test]
fn counters_are_the_same_after_a_restart() {
    let disk = Disk::new();
    let long = "x".repeat(5_000);
    let values = ["acme", "", "a}f1d", "\u{fc}|=%~\0", long.as_str()];
    let mut sets: Vec<Vec<Tier>> = tiers().into_iter().map(|tier| vec![tier]).collect();
    sets.push(tiers());
    for tiers in &sets {
        let mut before = Vec::new();
        {
            let opened = disk.open_with(tiers.clone());
            for (i, value) in (1..).zip(values) {
                opened.take(value, i);
                disk.clock.advance(Period::from_secs(7));
                opened.take(value, 2);
            }
            before.extend(values.map(|value| opened.take(value, 0)));
            opened.close();
        }
        let opened = disk.open_with(tiers.clone());
        assert_eq!(values.map(|value| opened.take(value, 0)).to_vec(), before, "{tiers:?}");
        assert_eq!(opened.metric("weir.disk.read_failures"), 0);
        // of other names there is nothing
        assert_eq!((opened.hits("acme2"), opened.hits("a")), (0, 0));
    }
}

/// A window of the calendar is the same one if its first second is, whatever the time zone.
#[test]
fn a_window_of_a_year_goes_on_until_a_reload_moves_its_start() {
    let disk = Disk::new();
    let hits = |tier: Tier, take: u32| {
        let opened = disk.open_with(vec![tier]);
        if take > 0 {
            opened.take("v", take);
        }
        let hits = opened.hits("v");
        opened.close();
        hits
    };
    assert_eq!(hits(year("UTC", 0), 7), 7);
    disk.clock.advance(Period::from_secs(10 * DAY));
    assert_eq!(hits(year("Africa/Accra", 0), 2), 9);
    assert_eq!(hits(year("Europe/Berlin", 1), 0), 0);
    assert_eq!(hits(year("Europe/Berlin", 1), 3), 3);
    disk.clock.advance(Period::from_secs(40 * DAY));
    assert_eq!(hits(year("Europe/Berlin", 1), 0), 0);
}

/// What a kill leaves: without a clean stop the journal is read again.
#[test]
fn written_counters_are_there_without_a_clean_stop() {
    for sync in [DiskSync::Always, DiskSync::Interval, DiskSync::Os] {
        let mut disk = Disk::new();
        disk.settings.sync = sync;
        let opened = disk.open_with(tiers());
        for i in 0..200_u32 {
            opened.take(&i.to_string(), 1 + i % 5);
        }
        if sync != DiskSync::Always {
            opened.written();
        }
        let copy = disk.copy();
        let left = copy.open_with(tiers());
        for i in 0..200_u32 {
            assert_eq!(left.hits(&i.to_string()), u64::from(1 + i % 5), "{sync:?}");
        }
    }
}

/// A counter that is given back in full has no record, and an old one does not come back.
#[test]
fn given_back_hits_do_not_come_back() {
    let disk = Disk::new();
    let bucket = tiers().pop().expect("a bucket");
    let opened = disk.open_with(vec![bucket.clone()]);
    opened.take("v", 50);
    opened.written();
    let day = Period::from_secs(DAY);
    // the bucket is full again before the record on disk says so
    let twice = Tier { requests: 200, ..bucket.clone() };
    opened.close();
    let opened = disk.open_with(vec![twice]);
    opened.take("v", 1);
    disk.clock.advance(Period::from_secs(DAY / 3));
    opened.take("v", 1);
    opened.written();
    opened.close();
    let opened = disk.open_with(vec![bucket]);
    assert_eq!(opened.hits("v"), 1);
    disk.clock.advance(day);
    assert_eq!(opened.hits("v"), 0);
}

/// Memory is bounded, the disk has the rest.
#[test]
fn counters_that_leave_memory_are_read_again() {
    let mut disk = Disk::new();
    disk.settings.max_counters = 100;
    let opened = disk.open();
    for round in 0..3 {
        for i in 0..3_000 {
            assert_eq!(opened.take(&i.to_string(), 1).before.0, round, "{i}");
        }
    }
    // all changes of one interval may have to stay, beside the bound
    assert!(opened.metric("weir.counters.live") < 100 + 25 + 1_024 + 64);
    assert!(opened.metric("weir.disk.evicted") > 3_000);
    assert_eq!(opened.metric("weir.counters.evicted"), 0, "none was lost");
    assert!(opened.metric("weir.disk.reads") > 3_000);
}

#[test]
fn expired_counters_count_nothing_and_are_removed() {
    let disk = Disk::new();
    let minute = Tier { period: Period::from_secs(60), ..tier(Algorithm::FixedWindow) };
    let opened = disk.open_with(vec![minute.clone()]);
    for i in 0..15_000 {
        opened.take(&i.to_string(), 1);
    }
    opened.written();
    assert_eq!(opened.metric("weir.disk.removed"), 0);
    disk.clock.advance(Period::from_secs(120));
    assert_eq!(opened.hits("7"), 0);
    until("expired counters are removed", || opened.metric("weir.disk.removed") >= 15_000);
    until("they are not counted any more", || opened.metric("weir.disk.records") < 100);
    opened.close();
    // also those that this process did not write: they are counted in the background
    let opened = disk.open_with(vec![minute.clone()]);
    for i in 0..15_000 {
        opened.take(&i.to_string(), 1);
    }
    opened.close();
    let opened = disk.open_with(vec![minute]);
    until("all are counted", || opened.metric("weir.disk.records") >= 15_000);
    disk.clock.advance(Period::from_secs(120));
    until("expired counters are removed", || opened.metric("weir.disk.removed") >= 15_000);
}
