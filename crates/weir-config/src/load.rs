//! Reads a directory of rule files. One invalid file rejects all of them.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    checks::{duplicates, hidden, ineffective, open_lists, request_names, unmetered},
    compile::{Declared, compile},
    documents::{self, Document, DocumentContent},
    encoding::decode,
    error::{ConfigErrors, ConfigReport, Finding},
    files::{self, Listing, RuleFile},
    yaml::{self, YamlFault, YamlNode, YamlPosition},
};
use weir_limit::{Domain, Origin};

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `MERGE_DOMAIN_CONFIG`: merges the descriptors of files with the same domain, in the order of their paths.
    pub merge_domains: bool,
    /// `RUNTIME_IGNOREDOTFILES`: ignores files and directories whose names begin with a dot.
    pub ignore_dotfiles: bool,
}

#[derive(Clone, Debug)]
pub struct Loaded {
    /// The domains, in the order of the first file that declares each.
    pub domains: Vec<Domain>,
    pub warnings: Vec<Finding>,
    pub files: usize,
    /// The errors of what is not part of the rules although it is new, because it is invalid.
    pub left_out: Vec<Finding>,
}

/// Reads every file below `dir`, in the order of paths. A directory without files gives no rules and a warning. Blocks,
/// for seconds with large files. Waits up to a second for a changing ConfigMap, and reads changed files again.
pub fn load(dir: &Path, options: &Options) -> Result<Loaded, ConfigErrors> {
    let list = || files::list(dir, options.ignore_dotfiles);
    let deadline = Instant::now() + MAX_CHANGE;
    let mut listing = list();
    for _ in 1..MAX_READS {
        while listing.is_changing && Instant::now() < deadline {
            thread::sleep(CHANGE_POLL);
            listing = list();
        }
        let loaded = load_listed(dir, *options, &listing);
        let after = list();
        if listing.is_same(&after) {
            return loaded;
        }
        listing = after;
    }
    load_listed(dir, *options, &listing)
}

fn load_listed(dir: &Path, options: Options, listing: &Listing) -> Result<Loaded, ConfigErrors> {
    let mut reading = FileReading::new(options);
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
    if listing.files.is_empty() && !reading.report.has_errors() {
        let message = || "the directory has no files, so there are no rules".to_owned();
        reading.report.warn_at(whole_file(dir), message);
    }
    for file in &listing.files {
        reading.file(file);
    }
    reading.finish(listing.files.len())
}

pub fn load_file(path: &Path) -> Result<Loaded, ConfigErrors> {
    let mut reading = FileReading::new(Options::default());
    reading.file(&RuleFile { path: path.to_owned(), real: path.to_owned() });
    reading.finish(1)
}

/// Returns the names and the texts of the rule files below `path`, or of that file, of at most `most` bytes.
pub fn texts(path: &Path, options: &Options, most: usize) -> io::Result<Vec<(String, String)>> {
    let files = if path.is_file() {
        vec![RuleFile { path: path.to_owned(), real: path.to_owned() }]
    } else {
        files::list(path, options.ignore_dotfiles).files
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

pub fn load_input(name: &str, input: impl Read) -> Result<Loaded, ConfigErrors> {
    let mut reading = FileReading::new(Options::default());
    reading.bytes(name, UNREADABLE, read(input));
    reading.finish(1)
}

pub fn parse(file: &str, text: &str) -> Result<Loaded, ConfigErrors> {
    load_input(file, text.as_bytes())
}

/// Reads `documents` together, as the files of one directory: a domain or name may be in any of them.
pub fn load_documents(documents: Vec<Document>, options: &Options) -> Result<Loaded, ConfigErrors> {
    let mut reading = FileReading::new(*options);
    let count = documents.len();
    for Document { name, content } in documents {
        let mut report = ConfigReport::of_file(&name);
        match content {
            DocumentContent::Yaml(text) => reading.document(&text, &mut report),
            DocumentContent::Tree(value) => reading.root(&documents::tree(value), &mut report),
        }
        reading.report.add(report);
    }
    reading.finish(count)
}

pub(super) fn read_file(path: &Path, report: &mut ConfigReport) -> Option<String> {
    text_of(File::open(path).and_then(read), "error loading file", report)
}

struct FileReading {
    options: Options,
    report: ConfigReport,
    domains: Vec<Domain>,
    places: HashMap<String, (usize, Origin)>,
}

// === impl FileReading ===

impl FileReading {
    fn new(options: Options) -> Self {
        Self { options, report: ConfigReport::of_load(), domains: Vec::new(), places: HashMap::new() }
    }

    fn file(&mut self, file: &RuleFile) {
        let is_hidden = file.path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let start = if is_hidden { UNREADABLE_HIDDEN } else { UNREADABLE };
        self.bytes(&file.path.display().to_string(), start, File::open(&file.real).and_then(read));
    }

    fn bytes(&mut self, name: &str, start: &str, bytes: io::Result<Vec<u8>>) {
        let mut report = ConfigReport::of_file(name);
        if let Some(text) = text_of(bytes, start, &mut report) {
            self.document(&text, &mut report);
        }
        self.report.add(report);
    }

    fn document(&mut self, text: &str, report: &mut ConfigReport) {
        // after a fault, compiling would also report a missing domain
        if let Some(root) = report.root_of(yaml::parse(text), UNREADABLE) {
            self.root(&root, report);
        }
    }

    fn root(&mut self, root: &YamlNode, report: &mut ConfigReport) {
        if let Some(declared) = compile(root, report) {
            self.declare(declared, report);
        }
    }

    fn declare(&mut self, Declared { domain, at }: Declared, report: &mut ConfigReport) {
        let Some((index, first)) = self.places.get(&domain.name) else {
            self.places.insert(domain.name.clone(), (self.domains.len(), report.origin(at)));
            self.domains.push(domain);
            return;
        };
        if self.options.merge_domains {
            let merged = &mut self.domains[*index];
            merged.nodes.extend(domain.nodes);
            merged.scope = merged.scope.max(domain.scope);
            merged.give_back = merged.give_back.max(domain.give_back);
        } else {
            let (name, first) = (&domain.name, first);
            report.error(
                at,
                format!(
                    "duplicate domain '{name}' in config file; the first is at {first} \
                     (MERGE_DOMAIN_CONFIG=true merges them)"
                ),
            );
        }
    }

    fn finish(mut self, files: usize) -> Result<Loaded, ConfigErrors> {
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
        }
        self.report.finish().map(|warnings| Loaded {
            domains: self.domains,
            warnings,
            files,
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
