//! Lists the rule files of a directory, each under its visible name.
//!
//! In a ConfigMap that Kubernetes mounts, `rules.yaml -> ..data/rules.yaml` is visible, and `..data -> ..2026_11_21/` is a
//! link to the current version. A change writes a new version beside the old one, renames a new `..data` over the old
//! one, adds and removes visible links, and removes the old version. Rules may be read between any two of these steps.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Linux's own limit.
const MAX_LINKS: usize = 40;

/// How the names of files end that are never rule files.
const TABLES: [&str; 2] = ["csv", "txt"];

/// A directory at the top of an ext file system, which only root may read.
const LOST_AND_FOUND: &str = "lost+found";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFile {
    /// The path below the listed directory, through links, as messages show it.
    pub path: PathBuf,
    /// The path without links.
    pub real: PathBuf,
}

#[derive(Debug, Default)]
pub struct Listing {
    /// The files, in the order of their names. Some may be tables.
    pub files: Vec<RuleFile>,
    /// Every directory that was read, and every version of a ConfigMap that a file is in, links resolved.
    pub dirs: BTreeSet<PathBuf>,
    /// Paths left out, with the reason. As in envoyproxy/ratelimit, they do not keep the others from being used.
    pub skipped: Vec<(PathBuf, String)>,
    /// Paths that could not be read, although rules may be there.
    pub failures: Vec<(PathBuf, io::Error)>,
    /// Whether a ConfigMap seems to be changing, since a visible link is broken.
    pub(super) is_changing: bool,
}

// === impl Listing ===

impl Listing {
    /// The files that may have rules.
    pub(super) fn rule_files(&self) -> impl Iterator<Item = &RuleFile> {
        let is_table = |file: &&RuleFile| {
            file.path.extension().is_some_and(|extension| TABLES.iter().any(|table| extension == *table))
        };
        self.files.iter().filter(move |file| !is_table(file))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        let failures = |listing: &Self| -> Vec<_> {
            listing.failures.iter().map(|(path, error)| (path.clone(), error.kind())).collect()
        };
        self.files == other.files
            && self.dirs == other.dirs
            && self.is_changing == other.is_changing
            && self.skipped == other.skipped
            && failures(self) == failures(other)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BrokenLink {
    NotInVersion,
    NoVersion,
    /// It does not lead through a version.
    Dangling,
}

/// Paths without a hidden part sort first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListedPath {
    hidden: bool,
    path: PathBuf,
}

/// A file with several paths is listed once, under a visible one if there is one. A directory is read once, so that
/// circular links end. Versions of a ConfigMap are never read: their files have visible links.
pub fn list(root: &Path, ignore_dotfiles: bool) -> Listing {
    let mut listing = Listing::default();
    let mut names: BTreeMap<PathBuf, ListedPath> = BTreeMap::new();
    let mut seen = HashSet::new();
    let mut ahead = BTreeSet::from([ListedPath { hidden: false, path: root.to_owned() }]);
    while let Some(dir) = ahead.pop_first() {
        let real = match fs::canonicalize(&dir.path) {
            Ok(real) => real,
            Err(error) => {
                listing.failures.push((dir.path, error));
                continue;
            }
        };
        if !seen.insert(real.clone()) {
            continue;
        }
        listing.dirs.insert(real.clone());
        match fs::read_dir(&dir.path) {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => {
                            let (name, path) = (entry.file_name(), entry.path());
                            let hidden = name.as_bytes().starts_with(b".");
                            if hidden && ignore_dotfiles || is_internal(&name) && !path.is_file() {
                                continue;
                            }
                            let found = ListedPath { hidden: dir.hidden || hidden, path };
                            classify(found, &mut ahead, &mut names, &mut listing);
                        }
                        Err(error) => listing.failures.push((dir.path.clone(), error)),
                    }
                }
            }
            // nobody keeps rules there; any other directory may have been readable a moment ago
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && dir.path != root
                    && (dir.hidden || dir.path.file_name() == Some(OsStr::new(LOST_AND_FOUND))) =>
            {
                let reason = format!("the directory cannot be read, so rules in it have no effect: {error}");
                listing.skipped.push((dir.path, reason));
            }
            Err(error) => listing.failures.push((dir.path, error)),
        }
    }
    let versions = names.keys().filter_map(|real| real.parent());
    let versions = versions.filter(|dir| dir.file_name().is_some_and(is_internal));
    listing.dirs.extend(versions.map(Path::to_owned));
    listing.files =
        names.into_iter().map(|(real, ListedPath { path, .. })| RuleFile { path, real }).collect();
    listing.files.sort_by(|a, b| a.path.cmp(&b.path));
    listing.skipped.sort();
    listing.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
    listing
}

fn classify(
    found: ListedPath,
    ahead: &mut BTreeSet<ListedPath>,
    names: &mut BTreeMap<PathBuf, ListedPath>,
    listing: &mut Listing,
) {
    let target =
        fs::metadata(&found.path).and_then(|metadata| Ok((metadata, fs::canonicalize(&found.path)?)));
    match target {
        Ok((metadata, _)) if metadata.is_dir() => {
            ahead.insert(found);
        }
        Ok((metadata, real)) if metadata.is_file() => {
            let name = names.entry(real).or_insert_with(|| found.clone());
            if found < *name {
                *name = found;
            }
        }
        Ok(_) => {}
        Err(error) => match broken(&found.path).filter(|_| error.kind() != io::ErrorKind::PermissionDenied) {
            Some(BrokenLink::NotInVersion) => listing.is_changing = true,
            // such as the lock of a file that an editor has open; any other may be a rule file that is being replaced
            Some(BrokenLink::Dangling) if found.hidden => {
                listing.skipped.push((found.path, "the link leads nowhere, so it has no effect".to_owned()));
            }
            broken => {
                listing.is_changing |= broken == Some(BrokenLink::NoVersion);
                listing.failures.push((found.path, error));
            }
        },
    }
}

/// Whether it is a version or the link to one. Their files are rules only through visible links.
pub fn is_internal(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..")
}

/// Follows all links that `path` leads to. None if it is no link.
fn broken(path: &Path) -> Option<BrokenLink> {
    let mut end = path.parent()?.join(fs::read_link(path).ok()?);
    for _ in 1..MAX_LINKS {
        let Ok(target) = fs::read_link(&end) else { break };
        end = end.parent()?.join(target);
    }
    let version = end.ancestors().find(|part| part.file_name().is_some_and(is_internal));
    Some(match version {
        None => BrokenLink::Dangling,
        Some(version) if version.is_dir() => BrokenLink::NotInVersion,
        Some(_) => BrokenLink::NoVersion,
    })
}

/// Such as `config.yaml` beside `config`.
pub(super) fn beside(dir: &Path) -> Option<PathBuf> {
    let start = [dir.file_name()?.as_bytes(), b"."].concat();
    let entries = fs::read_dir(dir.parent()?).ok()?;
    let found =
        entries.filter_map(Result::ok).filter(|entry| entry.file_name().as_bytes().starts_with(&start));
    found.map(|entry| entry.path()).min()
}
