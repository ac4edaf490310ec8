//! Tables: many values of a key, each with its limit, which a file lists.

use std::{
    fmt,
    hash::BuildHasher as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::HashTable;

/// The most bytes of all tables that share it: those in force, and those that are being loaded.
#[derive(Debug)]
pub struct TableMemory {
    most: u64,
    used: AtomicU64,
}

/// A part of a [`TableMemory`], which has it back when this is dropped.
#[derive(Debug)]
pub struct TableBytes {
    memory: Arc<TableMemory>,
    bytes: u64,
}

/// The values of a file, each once.
#[derive(Debug)]
pub struct TableRows {
    file: Arc<str>,
    /// All values, one after the other.
    text: String,
    rows: Vec<TableRow>,
    /// The rows by the hash of their values.
    index: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
    _bytes: TableBytes,
}

/// Where a value ends, and begins with the end of the one before.
#[derive(Clone, Copy, Debug)]
pub struct TableRow {
    pub end: u32,
    /// Counted from 1.
    pub line: u32,
    /// Rows of one class have the same limits.
    pub class: u32,
}

/// The rows of a file as the descriptors of a key use them: each class of rows belongs to a group, which is a node.
#[derive(Debug)]
pub struct ValueTable {
    name: Box<str>,
    rows: Arc<TableRows>,
    /// By class.
    groups: Box<[u32]>,
}

/// The values of one group of a table, or those that the table lacks.
#[derive(Clone, Debug)]
pub struct TableValues {
    pub table: Arc<ValueTable>,
    /// None: all values that the table lacks.
    pub group: Option<u32>,
}

// === impl TableMemory ===

impl TableMemory {
    pub const DEFAULT: u64 = 256 << 20;

    pub const fn new(most: u64) -> Self {
        Self { most, used: AtomicU64::new(0) }
    }

    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Default for TableMemory {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

// === impl TableBytes ===

impl TableBytes {
    pub const fn none(memory: Arc<TableMemory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Makes it so many bytes. Returns whether there is room for them.
    #[must_use]
    pub fn set(&mut self, bytes: u64) -> bool {
        let change = |used: u64| {
            let used = (used - self.bytes).checked_add(bytes)?;
            (used <= self.memory.most || bytes <= self.bytes).then_some(used)
        };
        let has_room = self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok();
        if has_room {
            self.bytes = bytes;
        }
        has_room
    }
}

impl Drop for TableBytes {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl TableRows ===

impl TableRows {
    /// Returns the bytes that so many rows and the text of their values take.
    pub const fn bytes(rows: usize, text: usize) -> u64 {
        // a table of hashes is full to 7/8 at most, and has a byte beside each number
        let buckets = (rows.saturating_mul(8) / 7).next_power_of_two();
        (text + rows * size_of::<TableRow>() + buckets * (size_of::<u32>() + 1)) as u64
    }

    /// `repeated` gets each value that an earlier row has, and the lines of both. The earlier one counts.
    pub fn new(
        file: Arc<str>,
        text: String,
        rows: Vec<TableRow>,
        bytes: TableBytes,
        mut repeated: impl FnMut(&str, u32, u32),
    ) -> Self {
        let index = HashTable::with_capacity(rows.len());
        let hasher = foldhash::fast::RandomState::default();
        let mut table = Self { file, text, rows, index, hasher, _bytes: bytes };
        for row in 0..table.rows.len() {
            let (value, line) = (table.value(row), table.rows[row].line);
            if let Some(first) = table.find(value) {
                repeated(value, first.line, line);
                continue;
            }
            let hash = table.hasher.hash_one(value);
            let Self { index, hasher, rows, text, .. } = &mut table;
            let rehash = |row: &u32| hasher.hash_one(value_of(rows, text, *row as usize));
            // positions in the text, of which each row takes one, are numbers of 32 bits
            index.insert_unique(hash, u32::try_from(row).unwrap_or(u32::MAX), rehash);
        }
        table
    }

    fn value(&self, row: usize) -> &str {
        value_of(&self.rows, &self.text, row)
    }

    fn find(&self, value: &str) -> Option<TableRow> {
        let is_value = |row: &u32| self.value(*row as usize) == value;
        self.index.find(self.hasher.hash_one(value), is_value).map(|row| self.rows[*row as usize])
    }

    /// The path of the file, as messages show it.
    pub const fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns each value with its line.
    pub fn values(&self) -> impl Iterator<Item = (&str, u32)> {
        self.rows.iter().enumerate().map(|(i, row)| (self.value(i), row.line))
    }
}

fn value_of<'t>(rows: &[TableRow], text: &'t str, row: usize) -> &'t str {
    let start = row.checked_sub(1).map_or(0, |before| rows[before].end);
    text.get(start as usize..rows[row].end as usize).unwrap_or_default()
}

// === impl ValueTable ===

impl ValueTable {
    /// `name` is what rules call the file, and `groups` has the group of each class.
    pub fn new(name: &str, rows: Arc<TableRows>, groups: impl Into<Box<[u32]>>) -> Self {
        Self { name: name.into(), rows, groups: groups.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub const fn rows(&self) -> &Arc<TableRows> {
        &self.rows
    }

    /// Returns the group of `value`, and its line.
    #[inline]
    pub fn find(&self, value: &str) -> Option<(u32, u32)> {
        let row = self.rows.find(value)?;
        Some((*self.groups.get(row.class as usize)?, row.line))
    }
}

// === impl TableValues ===

impl TableValues {
    pub fn matches(&self, value: &str) -> bool {
        self.table.find(value).map(|(group, _)| group) == self.group
    }

    /// Returns the values that it has; none if it has those that the table lacks.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        let ValueTable { rows, groups, .. } = &*self.table;
        let is_here =
            |row: &TableRow| self.group.is_some() && groups.get(row.class as usize).copied() == self.group;
        rows.rows.iter().enumerate().filter(move |(_, row)| is_here(row)).map(|(i, _)| rows.value(i))
    }
}

impl PartialEq for TableValues {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table) && self.group == other.group
    }
}

impl Eq for TableValues {}

/// The name of the table.
impl fmt::Display for TableValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[(&str, u32)], memory: &Arc<TableMemory>) -> (TableRows, Vec<(String, u32, u32)>) {
        let (mut text, mut rows, mut repeated) = (String::new(), Vec::new(), Vec::new());
        for (line, (value, class)) in (1..).zip(values) {
            text.push_str(value);
            rows.push(TableRow { end: u32::try_from(text.len()).expect("short"), line, class: *class });
        }
        let mut bytes = TableBytes::none(Arc::clone(memory));
        assert!(bytes.set(TableRows::bytes(rows.len(), text.len())));
        let add = |value: &str, first, again| repeated.push((value.to_owned(), first, again));
        (TableRows::new("t.csv".into(), text, rows, bytes, add), repeated)
    }

    #[test]
    fn each_value_is_found_with_its_group_and_line() {
        let names: Vec<String> =
            (0..1_000).map(|i| format!("v{}", "x".repeat(i % 40) + &i.to_string())).collect();
        let values: Vec<(&str, u32)> = names.iter().zip(0_u32..).map(|(name, i)| (&**name, i % 3)).collect();
        let (rows, repeated) = rows(&values, &Arc::default());
        assert_eq!((rows.len(), repeated), (1_000, vec![]));
        let table = Arc::new(ValueTable::new("t", Arc::new(rows), [7, 8, 7]));
        for (line, (value, class)) in (1..).zip(&values) {
            assert_eq!(table.find(value), Some(([7, 8, 7][*class as usize], line)));
        }
        assert_eq!((table.find("v"), table.find("")), (None, None));
        let of = |group| TableValues { table: Arc::clone(&table), group };
        assert!(
            of(Some(7)).matches(&names[0]) && !of(Some(8)).matches(&names[0]) && !of(None).matches(&names[0])
        );
        assert!(of(None).matches("other") && !of(Some(7)).matches("other"));
        assert_eq!(of(Some(8)).values().count(), 333);
        assert_eq!((of(None).values().count(), of(None).to_string()), (0, "t".to_owned()));
        assert!(of(Some(7)) != of(Some(8)));
    }

    #[test]
    fn a_value_that_is_there_again_is_told_with_both_lines() {
        let (rows, repeated) =
            rows(&[("a", 0), ("b", 1), ("a", 2), ("", 3), ("a", 4), ("", 5)], &Arc::default());
        let expected = [("a", 1, 3), ("a", 1, 5), ("", 4, 6)];
        assert_eq!(repeated, expected.map(|(value, first, again)| (value.to_owned(), first, again)));
        assert_eq!(ValueTable::new("t", Arc::new(rows), [0, 1, 2, 3]).find("a"), Some((0, 1)));
    }

    #[test]
    fn the_memory_of_all_tables_is_bounded_and_comes_back() {
        let memory = Arc::new(TableMemory::new(1_000));
        let mut first = TableBytes::none(Arc::clone(&memory));
        assert!(first.set(600) && !first.set(1_001) && first.set(700));
        let mut second = TableBytes::none(Arc::clone(&memory));
        assert!(!second.set(301) && second.set(300));
        assert!(first.set(10));
        assert_eq!(memory.used(), 310);
        drop(first);
        drop(second);
        assert_eq!(memory.used(), 0);
        let (rows, _) = rows(&[("a", 0)], &memory);
        assert_eq!(memory.used(), TableRows::bytes(1, 1));
        drop(rows);
        assert_eq!(memory.used(), 0);
    }
}
