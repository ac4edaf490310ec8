//! When records expire: how many have, and their removal where the engine compacts tables.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use fjall::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};

use super::record::expiry_of;

/// The width of a class of expiries: 2^4 seconds.
const CLASS: u32 = 4;

/// Records by the class of their expiry. Differences are added in any order, so a count may be negative for a while.
#[derive(Debug, Default)]
pub(super) struct ExpiryCounts(BTreeMap<u32, i64>);

#[derive(Debug, Default)]
pub(super) struct DiskExpiry {
    /// In seconds since the epoch.
    now: AtomicU32,
    /// The records by their expiry, as far as they were written by this process or found by it.
    counts: Mutex<ExpiryCounts>,
    removed: AtomicU64,
}

#[derive(Debug)]
pub(super) struct ExpiryFilters(pub(super) Arc<DiskExpiry>);

#[derive(Debug)]
struct ExpiryFilter {
    expiry: Arc<DiskExpiry>,
    now: u32,
    removed: u64,
}

impl ExpiryCounts {
    /// An expiry of zero means no record.
    pub(super) fn replace(&mut self, before: u32, after: u32) {
        for (expiry, change) in [(before, -1), (after, 1)] {
            if expiry > 0 {
                let count = self.0.entry(expiry >> CLASS).or_default();
                *count += change;
                if *count == 0 {
                    self.0.remove(&(expiry >> CLASS));
                }
            }
        }
    }

    fn add(&mut self, other: Self) {
        for (class, count) in other.0 {
            *self.0.entry(class).or_default() += count;
        }
    }

    fn expired(&self, now: u32) -> (u64, u64) {
        let sum = |counts: &mut dyn Iterator<Item = (&u32, &i64)>| {
            u64::try_from(counts.map(|(_, count)| *count).sum::<i64>()).unwrap_or_default()
        };
        let expired = sum(&mut self.0.range(..now >> CLASS));
        (expired, sum(&mut self.0.iter()).max(expired))
    }
}

impl DiskExpiry {
    pub(super) fn set_now(&self, now: u32) {
        self.now.store(now, Ordering::Relaxed);
    }

    pub(super) fn with_counts<T>(&self, act: impl FnOnce(&mut ExpiryCounts) -> T) -> T {
        act(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn found(&self, found: ExpiryCounts) {
        self.with_counts(|counts| counts.add(found));
    }

    pub(super) fn expired(&self) -> (u64, u64) {
        let now = self.now.load(Ordering::Relaxed);
        self.with_counts(|counts| counts.expired(now))
    }

    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// The records are found anew. What is written meanwhile may be counted twice.
    pub(super) fn forget(&self) {
        self.with_counts(|counts| *counts = ExpiryCounts::default());
    }
}

impl Factory for ExpiryFilters {
    fn name(&self) -> &'static str {
        "expiry"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        let expiry = Arc::clone(&self.0);
        let now = expiry.now.load(Ordering::Relaxed);
        Box::new(ExpiryFilter { expiry, now, removed: 0 })
    }
}

impl CompactionFilter for ExpiryFilter {
    fn filter_item(
        &mut self,
        item: ItemAccessor<'_>,
        _context: &Context,
    ) -> fjall::compaction::filter::CompactionFilterResult {
        // the store's own records have no expiry, nor has one in a newer format
        let Some(expiry) = expiry_of(&item.value()?).filter(|_| item.key().first() != Some(&0)) else {
            return Ok(Verdict::Keep);
        };
        if expiry <= self.now {
            self.removed += 1;
            // leaves a mark above other levels, which may have older states of the counter
            return Ok(Verdict::Remove);
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        self.expiry.removed.fetch_add(self.removed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_their_last_expiry() {
        let mut counts = ExpiryCounts::default();
        counts.replace(0, 160);
        counts.replace(0, 320);
        counts.replace(320, 480);
        assert_eq!((counts.expired(0), counts.expired(176), counts.expired(400)), ((0, 2), (1, 2), (1, 2)));
        assert_eq!(counts.expired(1_000), (2, 2));
        // found later than it was replaced
        counts.replace(640, 0);
        let mut found = ExpiryCounts::default();
        found.replace(0, 640);
        counts.add(found);
        assert_eq!(counts.expired(1_000), (2, 2));
    }
}
