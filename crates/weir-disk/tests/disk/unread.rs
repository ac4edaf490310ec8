//! Decisions whose counter has not been read in time, or whose change is not synced in time.

use std::time::Duration;

use weir_disk::DiskSync;
use weir_limit::{Algorithm, Basis, Hits, OnStoreFailure, Period};
use weir_observe::DecisionRecord;
use weir_store::TakeOptions;

use crate::support::{Disk, tier, tiers, until};

/// No decision waits.
const NO_TIME: Period = Period::from_nanos(0);

#[test]
fn on_store_failure_decides_until_a_counter_is_read() {
    for policy in [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Deny] {
        let mut disk = Disk::new();
        let opened = disk.open();
        for i in 0..50 {
            opened.take(&i.to_string(), 99);
        }
        opened.close();
        disk.settings.on_store_failure = policy;
        disk.settings.budget = NO_TIME;
        let opened = disk.open();
        // a read may arrive just before a decision, which then knows that three more are too many
        let decisions: Vec<_> = (0..50).map(|i| opened.take(&i.to_string(), 3)).collect();
        assert!(decisions.iter().any(|decision| decision.basis == Basis::Fallback), "{policy:?}");
        let admitted: Vec<bool> = decisions.iter().map(|decision| !decision.over).collect();
        assert_eq!(admitted.iter().any(|admitted| *admitted), policy != OnStoreFailure::Deny, "{policy:?}");
        assert!(opened.metric("weir.disk.fallback") > 0);
        opened.close();
        disk.settings.budget = Period::from_secs(60);
        let opened = disk.open();
        for (i, admitted) in admitted.into_iter().enumerate() {
            let counted = if admitted { 102 } else { 99 };
            assert_eq!(opened.hits(&i.to_string()), counted, "{policy:?}, {i}");
        }
    }
}

/// What was counted meanwhile is added to what the disk had, for every algorithm.
#[test]
fn what_is_counted_meanwhile_is_added() {
    for tier in tiers() {
        let mut disk = Disk::new();
        let opened = disk.open_with(vec![tier.clone()]);
        for i in 0..50 {
            opened.take(&i.to_string(), 40);
        }
        opened.close();
        disk.settings.budget = NO_TIME;
        let opened = disk.open_with(vec![tier.clone()]);
        for i in 0..50 {
            opened.take(&i.to_string(), 30);
        }
        opened.close();
        disk.settings.budget = Period::from_secs(60);
        let opened = disk.open_with(vec![tier.clone()]);
        for i in 0..50 {
            assert_eq!(opened.hits(&i.to_string()), 70, "{tier}");
        }
    }
}

/// A caller that waits no longer than that gets an answer without the disk, and others wait.
#[test]
fn the_callers_deadline_bounds_the_wait() {
    let mut disk = Disk::new();
    for sync in [DiskSync::Interval, DiskSync::Always] {
        disk.settings.sync = sync;
        let opened = disk.open();
        let before = opened.hits("v");
        opened.take("v", 40);
        opened.close();
        let opened = disk.open();
        let record = DecisionRecord::default();
        let wait = Some(Duration::ZERO);
        let options = TakeOptions { record: Some(&record), wait, ..TakeOptions::default() };
        opened.take_with("v", 1, options);
        assert!(record.take().fallback, "{sync:?}");
        // a longer deadline than the budget changes nothing
        disk.settings.budget = NO_TIME;
        let wait = Some(Duration::from_mins(1));
        let options = TakeOptions { record: Some(&record), wait, ..TakeOptions::default() };
        disk.copy().open().take_with("v", 1, options);
        assert!(record.take().fallback, "{sync:?}");
        disk.settings.budget = Period::from_secs(60);
        until("the counter is read", || opened.hits("v") == before + 41);
    }
}

/// The waits of a traced decision, with the counters that were read or synced.
#[test]
fn waits_are_recorded() {
    let mut disk = Disk::new();
    disk.open().close();
    disk.settings.sync = DiskSync::Always;
    let opened = disk.open_with(tiers());
    let recorded = |hits| {
        let record = DecisionRecord::default();
        opened.take_with("v", hits, TakeOptions { record: Some(&record), ..TakeOptions::default() });
        let recorded = record.take();
        assert!(!recorded.fallback);
        recorded.waits.iter().map(|wait| (wait.commands, wait.error)).collect::<Vec<_>>()
    };
    assert_eq!(recorded(1), [(4, None), (1, None)], "a read of four tiers, and a sync");
    assert_eq!(recorded(1), [(1, None)]);
    assert_eq!(recorded(0), []);
}

#[test]
fn answers_wait_for_their_sync_within_the_budget() {
    let mut disk = Disk::new();
    disk.settings.sync = DiskSync::Always;
    disk.settings.on_store_failure = OnStoreFailure::Deny;
    // no write happens by itself
    disk.settings.interval = Period::from_secs(3_600);
    let opened = disk.open();
    for i in 0..20 {
        assert!(!opened.take("v", 1).over);
        assert_eq!(disk.copy().open().hits("v"), i + 1);
    }
    // a rejection counts nothing, so there is nothing to wait for
    let written = opened.metric("weir.disk.written");
    assert!(opened.take("v", 100).over);
    assert_eq!(opened.metric("weir.disk.written"), written);
    opened.close();
    disk.settings.budget = NO_TIME;
    let opened = disk.open_with(vec![tier(Algorithm::FixedWindow)]);
    until("the counter is read", || {
        opened.take("v", 0);
        opened.hits("v") == 20
    });
    let late = opened.take("v", 1);
    assert!(late.over && late.reset == Period::from_secs(1), "{late:?}");
    assert_eq!(opened.hits("v"), 21, "it counts");
    // what a caller that waits would be served with
    let late = opened.reserve("v", 1);
    assert_eq!((late.hits, late.decision.over, late.decision.reset), (Hits(0), true, Period::from_secs(1)));
    assert_eq!(opened.hits("v"), 21, "nothing is reserved");
}
