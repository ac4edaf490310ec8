//! Reads a directory of rule files: all of them are right, or none is used.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use super::{
    compile::{Declared, compile},
    duplicates,
    error::{ConfigErrors, ConfigWarning, FileReport, Place, Report},
    files::{self, Found},
    ineffective,
    yaml::{self, Position},
};
use crate::limit::{Domain, Origin};

/// The most bytes that a file may have, some 150,000 rules: a mistaken mount must not fill the memory.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What begins every message about a file that is no rule file.
const UNREADABLE: &str = "error loading config file";

/// How a directory is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `MERGE_DOMAIN_CONFIG`: several files may declare descriptors of one domain, in the order of their paths.
    pub merge_domains: bool,
    /// `RUNTIME_IGNOREDOTFILES`: files and directories whose names begin with a dot are left alone.
    pub ignore_dotfiles: bool,
}

/// Rules that were read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// By the path of the first file that declares them.
    pub domains: Vec<Domain>,
    /// What is allowed but hardly meant, by file and place.
    pub warnings: Vec<ConfigWarning>,
    /// How many files there were.
    pub files: usize,
}

/// Reads every file below `dir`, in the order of paths. No files are no rules, with a warning.
///
/// Blocks on the file system, and on as much parsing as there are rules.
///
/// # Errors
///
/// All that is wrong, in all files: one that is not right keeps the others from being used too.
pub fn load(dir: &Path, options: &Options) -> Result<Loaded, ConfigErrors> {
    let mut reading = Reading::new(*options);
    let listing = files::list(dir, options.ignore_dotfiles);
    for (path, error) in listing.failures {
        let what = if path == dir { "cannot read the folder of rules" } else { "cannot read" };
        reading.report.error(whole_file(&name(&path)), format!("{UNREADABLE}: {what}: {error}"));
    }
    if listing.files.is_empty() && reading.report.errors.is_empty() {
        reading.report.warn(whole_file(&name(dir)), "there are no files in this folder, so no rules".into());
    }
    let files = listing.files.len();
    for file in listing.files {
        reading.file(&file);
    }
    reading.finish(files)
}

/// Reads one document, which messages call `file`.
///
/// # Errors
///
/// All that is wrong.
pub fn parse(file: &str, text: &str) -> Result<Loaded, ConfigErrors> {
    let mut reading = Reading::new(Options::default());
    let mut report = FileReport::new(file.into());
    reading.document(text, &mut report);
    report.finish(&mut reading.report);
    reading.finish(1)
}

/// What was read so far.
struct Reading {
    options: Options,
    report: Report,
    domains: Vec<Domain>,
    /// By name: its index, and where it is named first.
    places: HashMap<String, (usize, Origin)>,
}

// === impl Reading ===

impl Reading {
    fn new(options: Options) -> Self {
        Self { options, report: Report::default(), domains: Vec::new(), places: HashMap::new() }
    }

    fn file(&mut self, file: &Found) {
        let mut report = FileReport::new(name(&file.path));
        match read(&file.real) {
            Err(error) => report.error(Position::default(), format!("{UNREADABLE}: {error}")),
            Ok(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => self.document(text, &mut report),
                Err(error) => {
                    let at = end_of(&bytes[..error.valid_up_to()]);
                    report.error(at, format!("{UNREADABLE}: this is not UTF-8, as YAML must be"));
                }
            },
        }
        report.finish(&mut self.report);
    }

    fn document(&mut self, text: &str, report: &mut FileReport) {
        let document = yaml::parse(text);
        let faulty = !document.faults.is_empty();
        for fault in document.faults {
            report.error(fault.at, format!("{UNREADABLE}: {}", fault.message));
        }
        // without a root, whatever else is missing is missing because of the fault
        if (!faulty || document.root.is_some())
            && let Some(declared) = compile(document.root.as_deref(), report)
        {
            self.declare(declared, report);
        }
    }

    fn declare(&mut self, Declared { domain, at }: Declared, report: &mut FileReport) {
        let Some((index, first)) = self.places.get(&domain.name) else {
            self.places.insert(domain.name.clone(), (self.domains.len(), report.origin(at)));
            self.domains.push(domain);
            return;
        };
        if self.options.merge_domains {
            self.domains[*index].nodes.extend(domain.nodes);
        } else {
            let (name, first) = (&domain.name, Place(first));
            report.error(
                at,
                format!(
                    "duplicate domain '{name}' in config file; the first is at {first} \
                     (MERGE_DOMAIN_CONFIG=true puts them together)"
                ),
            );
        }
    }

    fn finish(mut self, files: usize) -> Result<Loaded, ConfigErrors> {
        for domain in &self.domains {
            let report = &mut self.report;
            duplicates::report(&domain.name, &domain.nodes, &mut |at, message| {
                report.error(at.clone(), message);
            });
            ineffective::warn(domain, report);
        }
        let place = |at: &Origin| (Arc::clone(&at.file), at.line, at.column);
        self.report.errors.sort_by_cached_key(|error| place(&error.at));
        self.report.warnings.sort_by_cached_key(|warning| place(&warning.at));
        self.report.verdict().map(|warnings| Loaded { domains: self.domains, warnings, files })
    }
}

fn name(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}

fn whole_file(name: &Arc<str>) -> Origin {
    Origin { file: Arc::clone(name), line: 0, column: 0 }
}

/// The content of the file `path`, if it is not too large. What it says of its size is not relied on, but saves the
/// reading.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    if size <= MAX_FILE_BYTES {
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    }
    let size = size.max(bytes.len() as u64);
    if size > MAX_FILE_BYTES {
        let message = format!("it has {size} bytes, more than the {MAX_FILE_BYTES} that a file may have");
        return Err(io::Error::other(message));
    }
    Ok(bytes)
}

/// The position behind `text`, which is UTF-8.
fn end_of(text: &[u8]) -> Position {
    let lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
    let characters = lines.last().map_or(0, |line| String::from_utf8_lossy(line).chars().count());
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position { line: count(lines.len()), column: count(characters + 1) }
}
