//! The lines of a shard, and what callers that wait have of them.

use std::{sync::Arc, task::Waker};

use hashbrown::HashTable;

use super::timers::Timers;
use crate::wait_room::Ticket;
use weir_limit::{
    CounterKey, GiveBack, Hits, LimitCheck, Named, Period, RuleId, SharedTiers, Tier, Timestamp,
    line::{Line, Rejection},
};

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
    pub(super) names: Named,
}

#[derive(Debug)]
pub enum Arrival {
    Admitted,
    Waits(Ticket),
    Rejected(Rejection),
}

/// Hits that were taken, by which they can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub key: CounterKey,
    pub tiers: SharedTiers,
    pub hits: Hits,
    pub taken_at: Timestamp,
    /// The rule by which they were taken, if it is configured.
    pub rule: Option<RuleId>,
    /// Whether the caller may give them back, as the rule says; weir itself may, for a caller that left.
    pub is_returnable: bool,
    /// By which they are given back to a store that is not this process's memory.
    pub names: Option<Arc<Named>>,
}

// === impl Receipt ===

impl Receipt {
    /// Creates the receipt for the hits of `check`, which were taken at `taken_at`.
    pub fn new(check: &LimitCheck<'_>, taken_at: Timestamp) -> Self {
        Self {
            key: check.key,
            tiers: check.shared_tiers(),
            hits: check.hits,
            taken_at,
            rule: check.rule.id(),
            is_returnable: check.rule.give_back() != Some(GiveBack::Deny),
            names: None,
        }
    }

    /// Creates the receipt for the hits of `check`, whose counters are elsewhere.
    pub fn of_store(check: &LimitCheck<'_>, taken_at: Timestamp) -> Self {
        let names = Some(Arc::new(Named::new(check.domain, check.entries)));
        Self { names, ..Self::new(check, taken_at) }
    }

    /// Returns whether the hits were taken of the counters of `check`, also if its limits are others.
    pub fn is_of_counters_of(&self, check: &LimitCheck<'_>) -> bool {
        let tiers = check.tiers();
        self.key == check.key
            && self.tiers.len() == tiers.len()
            && self.tiers.iter().zip(tiers).all(|(own, other)| own.shares_counter(other))
    }

    /// Whether earlier rules than those of `rule` took the hits. Then a bucket gets nothing: its inflow is not known.
    pub fn is_older_than(&self, rule: RuleId) -> bool {
        self.rule.is_some_and(|own| own.is_older_than(rule))
    }

    /// Returns the instant from which nothing can be given back any more.
    pub fn ends_at(&self) -> Timestamp {
        let longest = self.tiers.iter().map(Tier::length).max().unwrap_or_default();
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
        let (mut line, _) = entry.remove();
        if !key.is_of_request() {
            // a rule's from now on, as its counters
            line.key = key;
        }
        Some(line)
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
        Self {
            key: check.key,
            line: Line::new(check.shared_tiers()),
            armed: None,
            names: Named::new(check.domain, check.entries),
        }
    }
}
