//! Tables: files with the values of a key, and with their limits.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | what descriptors say of tables, and where the files are |
//! | `csv`, `lines` | both formats, as streams |
//! | `file` | the rows of a file, and their limits once each |
//! | `plans` | plans and limits as rules |
//! | `expand` | puts the rows of tables in the tree of rules: a node for each limit |

mod csv;
mod expand;
mod file;
mod lines;
pub(super) mod plans;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use jiff::tz::TimeZone;

use self::file::{ReadTable, TableFault};
use super::{
    error::ConfigReport,
    fields::{Field, Fields, wrong},
    keys::KeyLevel,
    scalar::Scalar,
    yaml::{Value, YamlNode},
};
use weir_limit::{Domain, Origin, Rule, TableMemory, TableRows, ValueTable};

pub(super) use self::plans::{Plan, Plans};

/// The column of limits unless a rule names another.
const LIMIT: &str = "limit";

/// Where tables are, and how much memory they may take.
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    /// `WEIR_TABLES_DIR`: a directory besides that of the rules.
    pub dir: Option<PathBuf>,
    /// `WEIR_MAX_TABLE_BYTES`, which all loads share.
    pub memory: Arc<TableMemory>,
}

/// What a descriptor says of a table.
#[derive(Clone, Debug)]
pub(super) struct TableRef {
    /// As it is written.
    pub(super) name: Box<str>,
    pub(super) at: Origin,
    used_for: TableUse,
    /// None if it is not found, which is reported.
    place: Option<TablePlace>,
    /// That of the rule file, for limits that name none.
    pub(super) timezone: Option<TimeZone>,
}

#[derive(Clone, Debug)]
enum TableUse {
    Values {
        /// Whether they are networks.
        is_cidr: bool,
    },
    Limits(LimitsFrom),
}

#[derive(Clone, Debug)]
struct LimitsFrom {
    /// The key whose values the table has, if it is not the descriptor's.
    by: Option<(Box<str>, Origin)>,
    column: Box<str>,
    /// The plan of values that the table lacks.
    default: Option<(Box<str>, Origin)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TablePlace {
    /// For messages.
    shown: Arc<str>,
    /// Without links.
    real: PathBuf,
}

/// The tables that descriptors name, by the places of these: those that an alias repeats say the same.
pub(super) type TableRefs = HashMap<Origin, TableRef>;

/// A file, and whether it has limits beside the values.
type TableKey = (PathBuf, bool);

/// The directories of tables, and what was read from them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Without links.
    roots: Vec<PathBuf>,
    dir: Option<PathBuf>,
    memory: Arc<TableMemory>,
    read: HashMap<TableKey, TableOfLoad>,
    /// Those of all tables.
    pub(super) rows: Vec<Arc<TableRows>>,
    /// Whether a file changed while it was read.
    pub(super) has_changed: bool,
}

/// A table, and the limits that were made of it.
#[derive(Debug)]
struct TableOfLoad {
    table: Option<Rc<ReadTable>>,
    report: ConfigReport,
    /// By domain, column and class.
    rules: HashMap<(Box<str>, Box<str>, usize), Option<Rule>>,
}

// === impl TableOptions ===

impl PartialEq for TableOptions {
    fn eq(&self, other: &Self) -> bool {
        self.dir == other.dir && self.memory.most() == other.memory.most()
    }
}

impl Eq for TableOptions {}

// === impl TableRef ===

impl TableRef {
    /// Reads what a descriptor says of a table; none if it names none.
    pub(super) fn read(fields: &Fields<'_>, is_cidr: bool, report: &mut ConfigReport) -> Option<Self> {
        let values = fields.get("values_from");
        let limits = fields.get("limits_from");
        if let Some(field) = fields.get("default").filter(|_| limits.is_none()) {
            report.error(field.key_at, "'default' requires 'limits_from'; add that, or remove 'default'");
        }
        for key in ["count_by", "match"] {
            if let Some(field) = fields.get(key).filter(|_| limits.is_some()) {
                let why = "each value of the table has a counter of its own";
                report.error(field.key_at, format!("'{key}' cannot be combined with 'limits_from': {why}"));
            }
        }
        if let (Some(_), Some(limits)) = (values, limits) {
            report.error(
                limits.key_at,
                "'values_from' and 'limits_from' cannot be combined; remove one of both",
            );
            return None;
        }
        let (name, at, used_for) = match (values, limits) {
            (Some(field), _) => {
                for key in ["value", "values"] {
                    if let Some(field) = fields.get(key) {
                        report.error(field.key_at, format!("'{key}' and 'values_from' cannot be combined"));
                    }
                }
                (Self::file(field, report)?, report.origin(field.at), TableUse::Values { is_cidr })
            }
            (None, Some(field)) => Self::limits(fields, field, report)?,
            (None, None) => return None,
        };
        Some(Self { name, at, used_for, place: None, timezone: None })
    }

    fn limits(
        fields: &Fields<'_>,
        field: Field<&YamlNode>,
        report: &mut ConfigReport,
    ) -> Option<(Box<str>, Origin, TableUse)> {
        let default = fields.text("default", report);
        let default = default.map(|plan| (plan.value.into(), report.origin(plan.at)));
        let at = report.origin(field.at);
        if !matches!(field.value.value, Value::Map(_)) {
            let used_for = TableUse::Limits(LimitsFrom { by: None, column: LIMIT.into(), default });
            return Some((Self::file(field, report)?, at, used_for));
        }
        let fields = Fields::new(field.value, KeyLevel::LimitsFrom, "'limits_from'", report)?;
        let by = fields.text("by", report).map(|key| (key.value.into(), report.origin(key.at)));
        let column = fields.text("column", report).map_or(LIMIT, |column| column.value.trim());
        let Some(file) = fields.get("file") else {
            report.error(field.key_at, "'limits_from' requires 'file', such as 'file: plans.csv'");
            return None;
        };
        let limits = LimitsFrom { by, column: column.into(), default };
        Some((Self::file(file, report)?, at, TableUse::Limits(limits)))
    }

    fn file(field: Field<&YamlNode>, report: &mut ConfigReport) -> Option<Box<str>> {
        let name = field.value.scalar().map(Scalar::text).filter(|name| !name.is_empty());
        if name.is_none() {
            report.error(field.at, wrong("file of a table", "the name of a file", field.value));
        }
        name.map(Into::into)
    }

    /// Whether the table has networks.
    fn has_networks(&self) -> bool {
        matches!(self.used_for, TableUse::Values { is_cidr: true })
    }

    /// Whether the table has the limits of the descriptor.
    pub(super) const fn has_limits(&self) -> bool {
        matches!(self.used_for, TableUse::Limits(_))
    }

    fn limits_from(&self) -> Option<&LimitsFrom> {
        match &self.used_for {
            TableUse::Limits(limits) => Some(limits),
            TableUse::Values { .. } => None,
        }
    }
}

/// Whether the values of a list share one counter.
pub(super) fn shares_counter(fields: &Fields<'_>, report: &mut ConfigReport) -> bool {
    fields.choice("count_by", &[("list", true), ("value", false)], report).unwrap_or(true)
}

// === impl Tables ===

impl Tables {
    /// `root` is the directory of the rules, if they are files.
    pub(super) fn new(root: Option<&Path>, options: &TableOptions) -> Self {
        let dirs = [root, options.dir.as_deref()].into_iter().flatten();
        Self {
            roots: dirs.filter_map(|dir| fs::canonicalize(dir).ok()).collect(),
            dir: options.dir.clone(),
            memory: Arc::clone(&options.memory),
            ..Self::default()
        }
    }

    /// Finds the file of `table`, which a file in `dir` names. The paths without links of those that are found are no
    /// rule files.
    pub(super) fn find(
        &self,
        table: &mut TableRef,
        dir: Option<&Path>,
        report: &mut ConfigReport,
    ) -> Option<PathBuf> {
        match self.place(&table.name, dir) {
            Ok(place) => table.place = Some(place),
            Err(message) => report.error_at(table.at.clone(), || message),
        }
        table.place.as_ref().map(|place| place.real.clone())
    }

    fn place(&self, name: &str, dir: Option<&Path>) -> Result<TablePlace, String> {
        let dirs: Vec<&Path> = dir.into_iter().chain(self.dir.as_deref()).collect();
        if dirs.is_empty() {
            return Err(format!(
                "the table '{name}' is a file beside rule files, and these rules are none; write the values here \
                 (commands that read rules from standard input take --tables DIR)"
            ));
        }
        let mut missing = None;
        for dir in dirs {
            let path = dir.join(name);
            match fs::canonicalize(&path) {
                Ok(real) if self.roots.iter().any(|root| real.starts_with(root)) => {
                    return Ok(TablePlace { shown: path.display().to_string().into(), real });
                }
                Ok(_) => {
                    return Err(format!(
                        "the table {} is outside of the rules' directory, links resolved; move it there, or below \
                         WEIR_TABLES_DIR",
                        path.display()
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && missing.is_none() => {
                    missing = Some(format!("cannot read the table {}: {error}", path.display()));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot read the table {}: {error}", path.display())),
            }
        }
        let message = missing.unwrap_or_default();
        let or = if self.dir.is_none() { "; WEIR_TABLES_DIR names another directory of tables" } else { "" };
        Err(format!("{message}{or}"))
    }

    /// Reads all tables that `refs` of any domain name, and puts their rows in the tree of each domain.
    pub(super) fn fill(
        &mut self,
        domains: &mut [Domain],
        refs: &TableRefs,
        plans: &HashMap<String, Plans>,
        report: &mut ConfigReport,
    ) {
        if refs.is_empty() {
            return;
        }
        let mut columns: BTreeMap<TableKey, (Arc<str>, Vec<Box<str>>)> = BTreeMap::new();
        for table in refs.values() {
            let Some(TablePlace { shown, real }) = &table.place else { continue };
            let limits = table.limits_from();
            let of = (real.clone(), limits.is_some());
            let (first, of_file) = columns.entry(of).or_insert_with(|| (Arc::clone(shown), Vec::new()));
            // of several names of a file, the same one in each load
            if shown < first {
                first.clone_from(shown);
            }
            of_file.extend(limits.map(|limits| limits.column.clone()));
        }
        for ((real, has_limits), (shown, mut columns)) in columns {
            columns.sort_unstable();
            columns.dedup();
            let mut report = ConfigReport::of_table(&shown);
            let columns = has_limits.then_some(&*columns);
            let read = ReadTable::read(&real, &shown, columns, &self.memory, &mut report);
            if matches!(read, Err(TableFault::Changed)) {
                self.has_changed = true;
                report.error_at(report.whole(), || "the table changes while it is read".to_owned());
            }
            self.rows.extend(read.iter().map(|table| Arc::clone(&table.rows)));
            let table = TableOfLoad { table: read.ok().map(Rc::new), report, rules: HashMap::new() };
            self.read.insert((real, has_limits), table);
        }
        expand::domains(self, domains, refs, plans, report);
        // in the order of their paths, so that a load says the same each time
        let read: BTreeMap<_, _> = self.read.drain().collect();
        for table in read.into_values() {
            report.add(table.report);
        }
    }

    fn of(&mut self, table: &TableRef) -> Option<&mut TableOfLoad> {
        let place = table.place.as_ref()?;
        self.read.get_mut(&(place.real.clone(), table.has_limits()))
    }
}

/// The pairs of tables in which a value was looked for that both have.
type ComparedTables = HashSet<(*const TableRows, *const TableRows)>;

fn rows_of(table: &Arc<ValueTable>) -> *const TableRows {
    Arc::as_ptr(table.rows())
}
