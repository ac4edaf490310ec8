//! Lists the rule files of a directory, each under its visible name.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleFile {
    /// The path below the listed directory, through links, as messages show it.
    pub(super) path: PathBuf,
    /// The path with links resolved.
    pub(super) real: PathBuf,
}

/// The contents of a directory and of all below it.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The files in the order of their paths; each real file once.
    pub(super) files: Vec<RuleFile>,
    /// Every directory that was read, links resolved.
    pub(super) dirs: Vec<PathBuf>,
    /// The paths that could not be read.
    pub(super) failures: Vec<(PathBuf, io::Error)>,
}

/// A path below the listed directory. Paths without a hidden part sort first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListedPath {
    hidden: bool,
    path: PathBuf,
}

/// Lists the files below `root`, recursively, and follows links.
///
/// A Kubernetes ConfigMap is mounted as `rules.yaml -> ..data/rules.yaml` and `..data -> ..2026_11_21/`: three paths to
/// one file. It is listed once, under the path without a hidden name. Each real directory is likewise read once, so that
/// circular links end.
pub(super) fn list(root: &Path, ignore_dotfiles: bool) -> Listing {
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
        listing.dirs.push(real);
        match fs::read_dir(&dir.path) {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => {
                            let hidden = is_hidden(&entry.file_name());
                            if hidden && ignore_dotfiles {
                                continue;
                            }
                            let found = ListedPath { hidden: dir.hidden || hidden, path: entry.path() };
                            classify(found, &mut ahead, &mut names, &mut listing.failures);
                        }
                        Err(error) => listing.failures.push((dir.path.clone(), error)),
                    }
                }
            }
            Err(error) => listing.failures.push((dir.path, error)),
        }
    }
    listing.files =
        names.into_iter().map(|(real, ListedPath { path, .. })| RuleFile { path, real }).collect();
    listing.files.sort_by(|a, b| a.path.cmp(&b.path));
    listing.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
    listing
}

/// Adds `found` to the directories to read or to the files. Ignores other kinds, such as sockets.
fn classify(
    found: ListedPath,
    ahead: &mut BTreeSet<ListedPath>,
    names: &mut BTreeMap<PathBuf, ListedPath>,
    failures: &mut Vec<(PathBuf, io::Error)>,
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
        Err(error) => failures.push((found.path, error)),
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}
