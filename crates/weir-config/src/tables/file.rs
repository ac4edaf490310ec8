//! Reads the file of a table, which has the limits of its rows once each.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::BufReader,
    mem,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
};

use super::{
    super::{
        error::ConfigReport,
        scalar::brief,
        yaml::{YamlFault, YamlPosition},
    },
    csv::{CsvError, CsvReader, CsvRecord},
    lines,
    plans::{Cell, LimitCells},
};
use weir_limit::{TableBytes, TableMemory, TableRow, TableRows};

const MAX_VALUE: usize = 4 << 10;

/// The most different limits of a file: each is a node of the tree of rules.
pub(super) const MAX_LIMITS: usize = 100_000;

const BUFFER: usize = 128 << 10;

const VALUE: &str = "value";

/// The columns of limits besides those that rules name.
const COLUMNS: [&str; 3] = ["plan", "timezone", "starts"];

/// What was read of a file.
#[derive(Debug)]
pub(super) struct ReadTable {
    pub(super) rows: Arc<TableRows>,
    pub(super) limits: Vec<RowLimits>,
    /// Those that rules name, in order.
    columns: Vec<Box<str>>,
}

/// What the rows of a class say: the [`COLUMNS`], and then those that rules name.
#[derive(Debug)]
pub(super) struct RowLimits(Vec<Option<Cell>>);

/// What was wrong with the file itself.
#[derive(Debug)]
pub(super) enum TableFault {
    /// The report has the errors.
    Reported,
    /// It changed while it was read.
    Changed,
}

struct RowsBuilder {
    text: String,
    rows: Vec<TableRow>,
    bytes: TableBytes,
    most: u64,
    /// The bytes of the limits, which are gone after the load.
    limits: usize,
}

// === impl ReadTable ===

impl ReadTable {
    /// Reads the file at `real`, whose path for messages is that of `report`. Without `columns` it is a list of values.
    pub(super) fn read(
        real: &Path,
        shown: &Arc<str>,
        columns: Option<&[Box<str>]>,
        memory: &Arc<TableMemory>,
        report: &mut ConfigReport,
    ) -> Result<Self, TableFault> {
        let state = |file: &std::fs::Metadata| {
            (file.ino(), file.size(), file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec())
        };
        let opened = File::open(real).and_then(|file| Ok((file.metadata()?, file)));
        let (before, file) = match opened {
            Ok((metadata, file)) if metadata.is_file() => (state(&metadata), file),
            Ok(_) => {
                report.error(YamlPosition::default(), "a table must be a file");
                return Err(TableFault::Reported);
            }
            Err(error) => {
                report.error(YamlPosition::default(), format!("cannot read the table: {error}"));
                return Err(TableFault::Reported);
            }
        };
        let input = BufReader::with_capacity(BUFFER, file);
        let mut builder = RowsBuilder::new(memory);
        let mut limits = Vec::new();
        let outcome = match columns {
            None => read_list(input, &mut builder, report),
            Some(columns) => read_limits(input, columns, &mut builder, &mut limits, report),
        };
        match outcome {
            Ok(()) => {}
            Err(CsvError::Fault(YamlFault { at, message })) => report.error(at, message),
            Err(CsvError::Io(error)) => {
                report.error(YamlPosition::default(), format!("cannot read the table: {error}"));
            }
        }
        // also in place of an error that only half of a file has
        if std::fs::metadata(real).map(|after| state(&after)).ok() != Some(before) {
            return Err(TableFault::Changed);
        }
        let rows = Arc::new(builder.finish(shown, report)?);
        if report.has_errors() {
            return Err(TableFault::Reported);
        }
        Ok(Self { rows, limits, columns: columns.unwrap_or_default().to_vec() })
    }

    /// What `class` says about the limit in `column`.
    pub(super) fn cells(&self, class: usize, column: &str) -> LimitCells<'_> {
        let cells = &self.limits[class].0;
        let [plan, timezone, starts] = [0, 1, 2].map(|i| cells[i].as_ref());
        let at = self.columns.binary_search_by(|other| (**other).cmp(column)).ok();
        let limit = at.and_then(|at| cells[COLUMNS.len() + at].as_ref());
        LimitCells { plan, limit, timezone, starts }
    }
}

fn read_list(
    input: BufReader<File>,
    builder: &mut RowsBuilder,
    report: &mut ConfigReport,
) -> Result<(), CsvError> {
    lines::read(input, |value, at| {
        let checked = value.and_then(|value| check_value(value, at).map(|()| value));
        match checked {
            Ok(value) => builder.push(value, at, 0),
            Err(YamlFault { at, message }) => {
                report.error_with(at, || message);
                Ok(())
            }
        }
    })
}

fn read_limits(
    input: BufReader<File>,
    columns: &[Box<str>],
    builder: &mut RowsBuilder,
    limits: &mut Vec<RowLimits>,
    report: &mut ConfigReport,
) -> Result<(), CsvError> {
    let (mut reader, mut record) = (CsvReader::new(input), CsvRecord::default());
    let is_there = reader.next(&mut record)?;
    let names = if is_there { read_header(&record, columns, report)? } else { Vec::new() };
    if !is_there {
        let message = "a table of limits begins with a line that names its columns, such as 'value,limit'";
        report.error(YamlPosition { line: 1, column: 1 }, message);
    }
    if report.has_errors() {
        return Ok(());
    }
    let mut classes: HashMap<Box<str>, u32> = HashMap::new();
    let mut key = String::new();
    while reader.next(&mut record)? {
        match read_row(&record, &names, columns, &mut key) {
            Ok(value) => {
                let class = if let Some(class) = classes.get(&*key) {
                    *class
                } else {
                    let at = record.at();
                    if limits.len() >= MAX_LIMITS {
                        let message = format!("a table has at most {MAX_LIMITS} different limits");
                        return Err(CsvError::Fault(YamlFault::new(at, message)));
                    }
                    builder.limits += 4 * key.len() + (8 + columns.len()) * size_of::<Option<Cell>>();
                    limits.push(RowLimits::of(&record, &names, columns));
                    let class = u32::try_from(classes.len()).unwrap_or(u32::MAX);
                    classes.insert(key.as_str().into(), class);
                    class
                };
                builder.push(value, record.at(), class)?;
            }
            Err(YamlFault { at, message }) => report.error_with(at, || message),
        }
    }
    Ok(())
}

/// Returns the names of the columns in their order.
fn read_header(
    record: &CsvRecord,
    columns: &[Box<str>],
    report: &mut ConfigReport,
) -> Result<Vec<Box<str>>, CsvError> {
    let mut names: Vec<Box<str>> = Vec::new();
    let mut seen = HashSet::new();
    for i in 0..record.len() {
        let (name, at) = record.field(i).map_err(CsvError::Fault)?;
        let name = name.trim();
        if name != VALUE && !COLUMNS.contains(&name) && !columns.iter().any(|column| **column == *name) {
            let known: Vec<&str> =
                std::iter::once(VALUE).chain(columns.iter().map(|column| &**column)).chain(COLUMNS).collect();
            let message = format!(
                "unknown column '{}'; the columns are {}, those of limits as rules name them",
                brief(name),
                known.join(", ")
            );
            report.error(at, message);
        } else if !seen.insert(name.to_owned()) {
            report.error(at, format!("the column '{}' is there twice", brief(name)));
        }
        names.push(name.into());
    }
    let has = |name: &str| names.iter().any(|other| **other == *name);
    if !has(VALUE) {
        report.error(record.at(), "the column 'value' is missing");
    }
    for column in columns.iter().filter(|column| !(has(column) || ***column == *super::LIMIT && has("plan")))
    {
        report.error(record.at(), format!("the column '{}' is missing, which a rule names", brief(column)));
    }
    Ok(names)
}

/// Returns the value of the row, and writes to `key` what else it says.
fn read_row<'r>(
    record: &'r CsvRecord,
    names: &[Box<str>],
    columns: &[Box<str>],
    key: &mut String,
) -> Result<&'r str, YamlFault> {
    if record.len() != names.len() {
        let message =
            format!("this line has {} fields, and the first one names {}", record.len(), names.len());
        return Err(YamlFault::new(record.at(), message));
    }
    key.clear();
    let (mut value, mut plan, mut limits, mut limit_at) = (None, false, 0, record.at());
    for (i, name) in names.iter().enumerate() {
        let (text, at) = record.field(i)?;
        if **name == *VALUE {
            check_value(text, at)?;
            value = Some(text);
            continue;
        }
        let text = text.trim();
        key.push_str(&text.len().to_string());
        key.push(':');
        key.push_str(text);
        if text.is_empty() {
            continue;
        }
        if **name == *COLUMNS[0] {
            plan = true;
        } else if columns.binary_search(name).is_ok() {
            limits += 1;
            limit_at = at;
        }
    }
    match (plan, limits) {
        (true, 0) => {}
        (false, limits) if limits == columns.len() => {}
        (true, _) => {
            return Err(YamlFault::new(limit_at, "this line has a limit and a plan; leave one of both out"));
        }
        (false, _) => {
            let columns: Vec<&str> = columns.iter().map(|column| &**column).collect();
            let message =
                format!("this line has no plan, and not each limit; fill 'plan', or {}", columns.join(", "));
            return Err(YamlFault::new(record.at(), message));
        }
    }
    value.ok_or_else(|| YamlFault::new(record.at(), "this line has no value"))
}

fn check_value(value: &str, at: YamlPosition) -> Result<(), YamlFault> {
    match value.len() {
        0 => Err(YamlFault::new(at, "a value must not be empty")),
        1..=MAX_VALUE => Ok(()),
        length => Err(YamlFault::new(
            at,
            format!("a value has at most {MAX_VALUE} bytes, and this one has {length}"),
        )),
    }
}

// === impl RowLimits ===

impl RowLimits {
    fn of(record: &CsvRecord, names: &[Box<str>], columns: &[Box<str>]) -> Self {
        let cell = |name: &str| {
            let at = names.iter().position(|other| **other == *name)?;
            let (text, at) = record.field(at).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| Cell { text: text.into(), at })
        };
        let columns = columns.iter().map(|column| &**column);
        Self(COLUMNS.into_iter().chain(columns).map(cell).collect())
    }

    /// The texts without their places.
    pub(super) fn texts(&self) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().map(|cell| cell.as_ref().map(|cell| &*cell.text))
    }
}

// === impl RowsBuilder ===

impl RowsBuilder {
    fn new(memory: &Arc<TableMemory>) -> Self {
        let bytes = TableBytes::none(Arc::clone(memory));
        Self { text: String::new(), rows: Vec::new(), bytes, most: memory.most(), limits: 0 }
    }

    fn push(&mut self, value: &str, at: YamlPosition, class: u32) -> Result<(), CsvError> {
        if self.rows.len() == self.rows.capacity() {
            self.rows.reserve_exact((self.rows.len() / 4).max(1_024));
            self.reserve(at)?;
        }
        if self.text.len() + value.len() > self.text.capacity() {
            self.text.reserve_exact((self.text.len() / 4).max(32 << 10));
            self.reserve(at)?;
        }
        self.text.push_str(value);
        let Ok(end) = u32::try_from(self.text.len()) else {
            return Err(CsvError::Fault(YamlFault::new(at, "a table has at most 4 GiB of values")));
        };
        self.rows.push(TableRow { end, line: at.line, class });
        Ok(())
    }

    fn reserve(&mut self, at: YamlPosition) -> Result<(), CsvError> {
        let bytes = TableRows::bytes(self.rows.capacity(), self.text.capacity()) + self.limits as u64;
        if self.bytes.set(bytes) {
            return Ok(());
        }
        let message = format!(
            "all tables together take more than WEIR_MAX_TABLE_BYTES, which is {}, those in force until these are \
             loaded included",
            self.most
        );
        Err(CsvError::Fault(YamlFault::new(YamlPosition { column: 1, ..at }, message)))
    }

    fn finish(mut self, shown: &Arc<str>, report: &mut ConfigReport) -> Result<TableRows, TableFault> {
        self.text.shrink_to_fit();
        self.rows.shrink_to_fit();
        let (text, rows) = (mem::take(&mut self.text), mem::take(&mut self.rows));
        if !self.bytes.set(TableRows::bytes(rows.len(), text.len())) {
            return Err(TableFault::Reported);
        }
        let repeated = |value: &str, first: u32, again: u32| {
            report.error_with(YamlPosition { line: again, column: 1 }, || {
                format!("the value '{}' is there twice; the first is in line {first}", brief(value))
            });
        };
        Ok(TableRows::new(Arc::clone(shown), text, rows, self.bytes, repeated))
    }
}
