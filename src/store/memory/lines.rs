//! The lines of a shard, and what callers that wait have of them.

use std::{
    sync::{Arc, atomic::AtomicU64},
    task::Waker,
};

use hashbrown::HashTable;

use super::timers::Timers;
use crate::limit::{
    CounterKey, Hits, LimitCheck, Period, RuleId, SharedTiers, Timestamp,
    line::{Line, Place, Rejection},
};

/// The bounds on waiting callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBounds {
    /// The most callers that wait for one key.
    pub per_key: usize,
    /// The most callers that wait in all.
    pub total: usize,
    /// Longer waits are cut to this.
    pub longest: Period,
}

/// The lines of a shard.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) table: HashTable<Box<KeyLine>>,
    /// To be woken when the shard's lock is free.
    pub(super) woken: Vec<Waker>,
    timers: Arc<Timers>,
}

/// A line with the names of its key, by which its rule is found after a reload.
#[derive(Debug)]
pub(super) struct KeyLine {
    pub(super) key: CounterKey,
    pub(super) line: Line,
    /// Its instant in [`Timers`].
    armed: Option<Timestamp>,
    pub(super) domain: Box<str>,
    pub(super) entries: Box<[(Box<str>, Box<str>)]>,
}

/// A place in a line. Whoever has it must [poll](super::MemoryStore::poll_place) it until there is an answer, or [leave](super::MemoryStore::leave).
#[derive(Debug)]
#[must_use = "a place that nobody polls or leaves stays taken"]
pub struct Ticket {
    pub(super) key: CounterKey,
    pub(super) place: Place,
}

/// What becomes of a caller that may wait.
#[derive(Debug)]
pub enum Arrival {
    /// Its hits were taken.
    Admitted,
    /// It waits.
    Waits(Ticket),
    /// Its hits are not taken.
    Rejected(Rejection),
}

/// Hits that were taken, by which they can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(super) key: CounterKey,
    pub(super) tiers: SharedTiers,
    pub(super) hits: Hits,
    pub(super) taken_at: Timestamp,
    rule: Option<RuleId>,
}

/// What became of the callers that may wait.
#[derive(Debug, Default)]
pub(super) struct WaitCounts {
    pub(super) kept: AtomicU64,
    pub(super) admitted: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) too_many: AtomicU64,
    pub(super) too_heavy: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) left: AtomicU64,
}

// === impl WaitCounts ===

impl WaitCounts {
    pub(super) fn of(&self, rejection: Rejection) -> &AtomicU64 {
        match rejection {
            Rejection::Timeout { .. } => &self.timeouts,
            Rejection::Full { .. } => &self.too_many,
            Rejection::Never => &self.too_heavy,
            Rejection::Closed => &self.closed,
        }
    }
}

// === impl WaitBounds ===

impl Default for WaitBounds {
    fn default() -> Self {
        Self { per_key: 100_000, total: 1_000_000, longest: Period::from_secs(60) }
    }
}

// === impl Receipt ===

impl Receipt {
    /// Creates the receipt for the hits of `check`, which were taken at `taken_at`.
    #[must_use]
    pub fn new(check: &LimitCheck<'_>, taken_at: Timestamp) -> Self {
        Self::of_key(check.key, check.shared_tiers(), check.rule.id(), check.hits, taken_at)
    }

    /// Creates the receipt for `hits` of the counters of `key` in `tiers`, which were taken at `taken_at` by `rule`.
    #[must_use]
    pub const fn of_key(
        key: CounterKey,
        tiers: SharedTiers,
        rule: Option<RuleId>,
        hits: Hits,
        taken_at: Timestamp,
    ) -> Self {
        Self { key, tiers, hits, taken_at, rule }
    }

    /// Returns whether the hits were taken by earlier rules than those of `rule`. A bucket then gets nothing back: how much has flowed in since
    /// is not known.
    #[must_use]
    pub fn is_older_than(&self, rule: RuleId) -> bool {
        self.rule.is_some_and(|own| own.is_older_than(rule))
    }

    /// Returns the instant from which nothing can be given back any more.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        let longest = self.tiers.iter().map(|tier| tier.period).max().unwrap_or_default();
        self.taken_at.after(longest)
    }
}

// === impl Lines ===

impl Lines {
    pub(super) fn new(timers: &Arc<Timers>) -> Self {
        Self { timers: Arc::clone(timers), ..Self::default() }
    }

    pub(super) fn find(&mut self, key: CounterKey) -> Option<&mut KeyLine> {
        self.table.find_mut(key.hash(), |line| line.key == key).map(|line| &mut **line)
    }

    /// Takes a line out, until it is [put](Self::put) back.
    pub(super) fn take(&mut self, key: CounterKey) -> Option<Box<KeyLine>> {
        let entry = self.table.find_entry(key.hash(), |line| line.key == key).ok()?;
        Some(entry.remove().0)
    }

    /// Keeps a line while anybody waits in it, and sets its timer.
    pub(super) fn put(&mut self, mut line: Box<KeyLine>, now: Timestamp) {
        let timer = line.line.timer().map(|timer| timer.max(now.after(Period::from_nanos(1))));
        if timer != line.armed {
            self.timers.set(line.key, line.armed, timer);
            line.armed = timer;
        }
        if !line.line.is_unused() {
            self.table.insert_unique(line.key.hash(), line, |line| line.key.hash());
        } else if self.table.is_empty() {
            // returns the memory of a flood of keys
            self.table = HashTable::new();
        }
    }
}

impl KeyLine {
    pub(super) fn new(check: &LimitCheck<'_>) -> Self {
        let entries = check.entries.iter().map(|entry| (entry.key.into(), entry.value.into()));
        Self {
            key: check.key,
            line: Line::new(check.shared_tiers()),
            armed: None,
            domain: check.domain.into(),
            entries: entries.collect(),
        }
    }
}
