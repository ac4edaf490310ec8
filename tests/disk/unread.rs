//! Decisions whose counter has not been read in time, or whose change is not synced in time.

use weir::{
    limit::{Algorithm, OnStoreFailure, Period},
    store::disk::DiskSync,
};

use crate::support::{Disk, tier, tiers, until};

/// No decision waits.
const NO_TIME: Period = Period::from_nanos(0);

#[test]
fn on_store_failure_decides_until_a_counter_is_read() {
    for (policy, before, over) in [
        (OnStoreFailure::Local, 0, false),
        (OnStoreFailure::Allow, 0, false),
        (OnStoreFailure::Deny, 0, true),
    ] {
        let mut disk = Disk::new();
        disk.open().take("v", 99);
        disk.settings.on_store_failure = policy;
        disk.settings.budget = NO_TIME;
        let opened = disk.open();
        let decision = opened.take("v", 3);
        assert_eq!((decision.before.0.min(before), decision.over), (before, over), "{policy:?}");
        assert_eq!(opened.metric("weir.disk.fallback"), 1);
        // its read arrives nevertheless, so that later decisions know
        until("the counter is read", || opened.hits("v") >= 99);
        let counted = if policy == OnStoreFailure::Deny { 99 } else { 102 };
        assert_eq!(opened.hits("v"), counted, "{policy:?}");
        opened.close();
        disk.settings.budget = Period::from_secs(60);
        assert_eq!(disk.open().hits("v"), counted, "{policy:?} after a restart");
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
}
