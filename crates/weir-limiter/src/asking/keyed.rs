//! Lines by their keys, and when each has something to do: what lines for hits and lines for places have in common.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_limit::{CounterKey, Named, Timestamp};

#[derive(Debug)]
pub(super) struct KeyedLines<L> {
    lines: BTreeMap<CounterKey, KeyedLine<L>>,
    timers: BTreeSet<(Timestamp, CounterKey)>,
}

#[derive(Debug)]
pub(super) struct KeyedLine<L> {
    pub(super) line: L,
    pub(super) names: Arc<Named>,
    /// Its instant among the timers.
    armed: Option<Timestamp>,
}

// === impl KeyedLines ===

impl<L> Default for KeyedLines<L> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), timers: BTreeSet::new() }
    }
}

impl<L> KeyedLines<L> {
    pub(super) fn get(&mut self, key: CounterKey) -> Option<&mut KeyedLine<L>> {
        self.lines.get_mut(&key)
    }

    /// Makes the line if there is none.
    pub(super) fn make(&mut self, key: CounterKey, make: impl FnOnce() -> (L, Named)) {
        self.lines.entry(key).or_insert_with(|| {
            let (line, names) = make();
            KeyedLine { line, names: Arc::new(names), armed: None }
        });
    }

    pub(super) fn keys(&self) -> Vec<CounterKey> {
        self.lines.keys().copied().collect()
    }

    /// Returns the first that has something to do, and when.
    pub(super) fn first(&self) -> Option<(Timestamp, CounterKey)> {
        self.timers.first().copied()
    }

    /// Sets when a line has something to do, or removes it if it `is_unused`.
    pub(super) fn settle(&mut self, key: CounterKey, timer: Option<Timestamp>, is_unused: bool) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        if timer != line.armed {
            line.armed.inspect(|armed| _ = self.timers.remove(&(*armed, key)));
            timer.inspect(|timer| _ = self.timers.insert((*timer, key)));
            line.armed = timer;
        }
        if is_unused {
            self.lines.remove(&key);
        }
    }

    /// Removes an unused line, unless its timer does.
    pub(super) fn remove(&mut self, key: CounterKey) {
        if self.lines.get(&key).is_some_and(|line| line.armed.is_none()) {
            self.lines.remove(&key);
        }
    }
}
