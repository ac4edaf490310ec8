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
        let admitted: Vec<bool> = (0..50).map(|i| !opened.take(&i.to_string(), 3).over).collect();
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
