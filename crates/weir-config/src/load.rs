//! Reads a directory of rule files. One invalid file rejects all of them.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::{self, File},
    io::{self, Read},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    checks::{calendars, duplicates, hidden, ineffective, open_lists, request_names, unmetered},
    compile::{Declared, compile},
    documents::{self, Document, DocumentContent},
    encoding::decode,
    error::{ConfigErrors, ConfigReport, Finding},
    files::{self, Listing, RuleFile},
    tables::{Plan, Plans, TableOptions, TableRefs, Tables},
    yaml::{self, YamlFault, YamlNode, YamlPosition},
    zone,
};
use weir_limit::{Domain, Origin, TableRows};

/// About 150,000 rules: a wrong mount must not fill the memory.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Files are read again if they change meanwhile. After the last time, the watch finds the change.
const MAX_READS: usize = 5;

/// How long a load waits for a ConfigMap that is being changed, which takes milliseconds.
const MAX_CHANGE: Duration = Duration::from_secs(1);

const CHANGE_POLL: Duration = Duration::from_millis(20);

const UNREADABLE: &str = "error loading config file";

/// The same for a file that an editor may have made.
const UNREADABLE_HIDDEN: &str =
    "error loading config file (RUNTIME_IGNOREDOTFILES=true leaves out those whose names begin with a dot)";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `MERGE_DOMAIN_CONFIG`: merges the descriptors of files with the same domain, in the order of their paths.
    pub merge_domains: bool,
    /// `RUNTIME_IGNOREDOTFILES`: ignores files and directories whose names begin with a dot.
    pub ignore_dotfiles: bool,
    pub tables: TableOptions,
}

#[derive(Clone, Debug)]
pub struct Loaded {
    /// The domains, in the order of the first file that declares each.
    pub domains: Vec<Domain>,
    pub warnings: Vec<Finding>,
    pub files: usize,
    /// The tables that the rules use. They are large: whoever replaces the rules frees them where that delays nobody.
    pub tables: Vec<Arc<TableRows>>,
    /// The errors of what is not part of the rules although it is new, because it is invalid.
    pub left_out: Vec<Finding>,
}

/// Reads every file below `dir`, in the order of paths. A directory without files gives no rules and a warning. Blocks,
/// for seconds with large files. Waits up to a second for a changing ConfigMap, and reads changed files again, with the
/// tables that they name.
pub fn load(dir: &Path, options: &Options) -> Result<Loaded, ConfigErrors> {
    let list = || {
        let tables = options.tables.dir.as_deref();
        let dirs = std::iter::once(dir).chain(tables.filter(|dir| dir.is_dir()));
        dirs.map(|dir| files::list(dir, options.ignore_dotfiles)).collect::<Vec<Listing>>()
    };
    let is_changing = |listings: &[Listing]| listings.iter().any(|listing| listing.is_changing);
    let deadline = Instant::now() + MAX_CHANGE;
    let mut listing = list();
    for _ in 1..MAX_READS {
        while is_changing(&listing) && Instant::now() < deadline {
            thread::sleep(CHANGE_POLL);
            listing = list();
        }
        let (loaded, has_changed) = load_listed(dir, options, &listing[0]);
        let after = list();
        let is_same = after.len() == listing.len()
            && after.iter().zip(&listing).all(|(after, before)| before.is_same(after));
        if is_same && !has_changed {
            return loaded;
        }
        listing = after;
    }
    load_listed(dir, options, &listing[0]).0
}

/// Returns whether a table changed while it was read, too.
fn load_listed(dir: &Path, options: &Options, listing: &Listing) -> (Result<Loaded, ConfigErrors>, bool) {
    let mut reading = FileReading::new(options, Some(dir));
    for (path, error) in &listing.failures {
        let (what, beside) = if path == dir {
            (
                "cannot read the rules directory",
                files::beside(dir).as_deref().map(how_to_read).unwrap_or_default(),
            )
        } else {
            ("cannot read", String::new())
        };
        reading.report.error_at(whole_file(path), || format!("{UNREADABLE}: {what}: {error}{beside}"));
    }
    for (path, reason) in &listing.skipped {
        reading.report.warn_at(whole_file(path), || reason.clone());
    }
    if listing.rule_files().next().is_none() && !reading.report.has_errors() {
        let message = || "the directory has no files, so there are no rules".to_owned();
        reading.report.warn_at(whole_file(dir), message);
    }
    for file in listing.rule_files() {
        reading.file(file);
    }
    reading.finish()
}

/// Reads one rule file. The tables that it names are below its directory.
pub fn load_file(path: &Path, options: &Options) -> Result<Loaded, ConfigErrors> {
    for _ in 1..MAX_READS {
        let (loaded, has_changed) = load_one(path, options);
        if !has_changed {
            return loaded;
        }
    }
    load_one(path, options).0
}

fn load_one(path: &Path, options: &Options) -> (Result<Loaded, ConfigErrors>, bool) {
    let dir = path.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    let mut reading = FileReading::new(options, dir);
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    reading.file(&RuleFile { path: path.to_owned(), real });
    reading.finish()
}

/// Returns the names and the texts of the rule files below `path`, or of that file, of at most `most` bytes.
pub fn texts(path: &Path, options: &Options, most: usize) -> io::Result<Vec<(String, String)>> {
    let files = if path.is_file() {
        vec![RuleFile { path: path.to_owned(), real: path.to_owned() }]
    } else {
        files::list(path, options.ignore_dotfiles).rule_files().cloned().collect()
    };
    let (mut texts, mut left) = (Vec::new(), most);
    for RuleFile { path, real } in files {
        let bytes = File::open(&real).and_then(read)?;
        left = left.checked_sub(bytes.len()).ok_or_else(|| {
            io::Error::other(format!("the rule files have more than {most} bytes together"))
        })?;
        texts.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    Ok(texts)
}

/// Reads rules that are no file. The tables that they name are in the directory of `options`.
pub fn load_input(name: &str, input: impl Read, options: &Options) -> Result<Loaded, ConfigErrors> {
    let mut reading = FileReading::new(options, None);
    reading.bytes((name, None), UNREADABLE, read(input));
    reading.finish().0
}

pub fn parse(file: &str, text: &str) -> Result<Loaded, ConfigErrors> {
    load_input(file, text.as_bytes(), &Options::default())
}

/// Reads `documents` together, as the files of one directory: a domain or name may be in any of them. They name no
/// tables, which are files beside rule files.
pub fn load_documents(documents: Vec<Document>, options: &Options) -> Result<Loaded, ConfigErrors> {
    let options = Options { tables: TableOptions::default(), ..options.clone() };
    let mut reading = FileReading::new(&options, None);
    for Document { name, content } in documents {
        let mut report = ConfigReport::of_file(&name);
        match content {
            DocumentContent::Yaml(text) => reading.document(&text, None, &mut report),
            DocumentContent::Tree(value) => reading.root(&documents::tree(value), None, &mut report),
        }
        reading.files.push((name.into(), None));
        reading.report.add(report);
    }
    reading.finish().0
}

pub(super) fn read_file(path: &Path, report: &mut ConfigReport) -> Option<String> {
    text_of(File::open(path).and_then(read), "error loading file", report)
}

struct FileReading {
    merge_domains: bool,
    report: ConfigReport,
    /// What the files declare: those that turn out to be tables are none.
    declared: Vec<DeclaredFile>,
    /// The names of the rule files, and their paths without links unless they are no files.
    files: Vec<(Arc<str>, Option<PathBuf>)>,
    domains: Vec<Domain>,
    places: HashMap<String, (usize, Origin)>,
    plans: HashMap<String, Plans>,
    tables: Tables,
}

struct DeclaredFile {
    name: Arc<str>,
    /// None if the rules are no file.
    file: Option<RuleFile>,
    declared: Declared,
}

// === impl FileReading ===

impl FileReading {
    /// `root` is the directory of the rules, if they are files.
    fn new(options: &Options, root: Option<&Path>) -> Self {
        zone::refresh();
        Self {
            merge_domains: options.merge_domains,
            report: ConfigReport::of_load(),
            declared: Vec::new(),
            files: Vec::new(),
            domains: Vec::new(),
            places: HashMap::new(),
            plans: HashMap::new(),
            tables: Tables::new(root, &options.tables),
        }
    }

    fn file(&mut self, file: &RuleFile) {
        let is_hidden = file.path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let start = if is_hidden { UNREADABLE_HIDDEN } else { UNREADABLE };
        let name = file.path.display().to_string();
        self.bytes((&name, Some(file)), start, File::open(&file.real).and_then(read));
    }

    fn bytes(&mut self, (name, file): (&str, Option<&RuleFile>), start: &str, bytes: io::Result<Vec<u8>>) {
        let mut report = ConfigReport::of_file(name);
        if let Some(text) = text_of(bytes, start, &mut report) {
            self.document(&text, file, &mut report);
        }
        self.files.push((report.whole().file, file.map(|file| file.real.clone())));
        self.report.add(report);
    }

    fn document(&mut self, text: &str, file: Option<&RuleFile>, report: &mut ConfigReport) {
        // after a fault, compiling would also report a missing domain
        if let Some(root) = report.root_of(yaml::parse(text), UNREADABLE) {
            self.root(&root, file, report);
        }
    }

    fn root(&mut self, root: &YamlNode, file: Option<&RuleFile>, report: &mut ConfigReport) {
        if let Some(declared) = compile(root, report) {
            self.declared.push(DeclaredFile { name: report.whole().file, file: file.cloned(), declared });
        }
    }

    /// Finds the tables that files name, and takes these from the rule files.
    fn find_tables(&mut self) {
        let mut places: HashMap<PathBuf, Origin> = HashMap::new();
        for DeclaredFile { file, declared, .. } in &mut self.declared {
            let dir = file.as_ref().and_then(|file| file.path.parent());
            for table in declared.tables.values_mut() {
                let found = self.tables.find(table, dir, &mut self.report);
                places.extend(found.map(|real| (real, table.at.clone())));
            }
        }
        let by = |file: &Option<PathBuf>| file.as_ref().and_then(|file| places.get(file));
        let tables: Vec<_> = self.files.extract_if(.., |(_, file)| by(file).is_some()).collect();
        for (name, file) in tables {
            self.report.forget(&name);
            for file_of_table in self.declared.extract_if(.., |declared| declared.name == name) {
                // its rules would have no effect
                if let (Some(table), Some(by)) = (file_of_table.declared.tables.values().next(), by(&file)) {
                    self.report.error_at(table.at.clone(), || {
                        format!("this file is a table, as {by} says, so it has no rules; write them in another one")
                    });
                }
            }
        }
    }

    fn declare(&mut self, name: &Arc<str>, Declared { domain, at, plans, .. }: Declared) {
        let at = Origin { file: Arc::clone(name), line: at.line, column: at.column };
        self.add_plans(&domain.name, plans);
        let Some((index, first)) = self.places.get(&domain.name) else {
            self.places.insert(domain.name.clone(), (self.domains.len(), at));
            self.domains.push(domain);
            return;
        };
        if self.merge_domains {
            let merged = &mut self.domains[*index];
            merged.nodes.extend(domain.nodes);
            merged.scope = merged.scope.max(domain.scope);
            merged.give_back = merged.give_back.max(domain.give_back);
        } else {
            let (name, first) = (&domain.name, first);
            self.report.error_at(at, || {
                format!(
                    "duplicate domain '{name}' in config file; the first is at {first} \
                     (MERGE_DOMAIN_CONFIG=true merges them)"
                )
            });
        }
    }

    fn add_plans(&mut self, domain: &str, plans: Vec<(Box<str>, Plan)>) {
        if plans.is_empty() {
            return;
        }
        let known = self.plans.entry(domain.to_owned()).or_default();
        for (name, plan) in plans {
            match known.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(plan)),
                Entry::Occupied(first) => {
                    let (name, first) = (first.key(), &first.get().at);
                    self.report.error_at(plan.at, || {
                        format!("the plan '{name}' of the domain is at {first}, too; keep one of both")
                    });
                }
            }
        }
    }

    /// Returns whether a table changed while it was read, too.
    fn finish(mut self) -> (Result<Loaded, ConfigErrors>, bool) {
        self.find_tables();
        let mut tables = TableRefs::new();
        for DeclaredFile { name, mut declared, .. } in mem::take(&mut self.declared) {
            tables.extend(mem::take(&mut declared.tables));
            self.declare(&name, declared);
        }
        self.tables.fill(&mut self.domains, &tables, &self.plans, &mut self.report);
        let has_changed = self.tables.has_changed;
        (self.checked(), has_changed)
    }

    fn checked(mut self) -> Result<Loaded, ConfigErrors> {
        for domain in &self.domains {
            let report = &mut self.report;
            duplicates::report(&[&domain.name], &domain.nodes, &mut |at, message| {
                report.error_at(at.clone(), message);
            });
            request_names::check(domain, report);
            ineffective::warn(domain, report);
            hidden::warn(domain, report);
            open_lists::warn(domain, report);
            unmetered::warn(domain, report);
            calendars::warn(domain, report);
        }
        self.report.finish().map(|warnings| Loaded {
            domains: self.domains,
            warnings,
            files: self.files.len(),
            tables: self.tables.rows,
            left_out: Vec::new(),
        })
    }
}

fn text_of(bytes: io::Result<Vec<u8>>, start: &str, report: &mut ConfigReport) -> Option<String> {
    match bytes.map(decode) {
        Ok(Ok(text)) => return Some(text),
        Ok(Err(YamlFault { at, message })) => report.error(at, format!("{start}: {message}")),
        Err(error) => report.error(YamlPosition::default(), format!("{start}: {error}")),
    }
    None
}

/// envoyproxy/ratelimit reads `beside` with `RUNTIME_WATCH_ROOT`.
fn how_to_read(beside: &Path) -> String {
    format!(
        "; {} is beside it and not read: move it into the directory, or name the one that it is in (--config, or \
         RUNTIME_APPDIRECTORY=.)",
        beside.display()
    )
}

fn whole_file(path: &Path) -> Origin {
    Origin { file: path.display().to_string().into(), line: 0, column: 0 }
}

fn read(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("the file has more than {MAX_FILE_BYTES} bytes, the maximum");
        return Err(io::Error::other(message));
    }
    Ok(bytes)
}
