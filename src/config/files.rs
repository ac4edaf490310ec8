//! Which files of a directory are read, and under which names.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// A file to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// As the user sees it: below the directory that was asked for, through links.
    pub(super) path: PathBuf,
    /// What it is, links resolved.
    pub(super) real: PathBuf,
}

/// What there is below a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// In the order of paths; no real file twice.
    pub(super) files: Vec<Found>,
    /// Every real directory that was looked into.
    pub(super) dirs: Vec<PathBuf>,
    /// What could not be looked into, as the user sees it.
    pub(super) failures: Vec<(PathBuf, io::Error)>,
}

/// A path below the directory that was asked for. Those without a hidden part come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Visible {
    hidden: bool,
    path: PathBuf,
}

/// Lists what is below `root`, recursively, links followed.
///
/// A Kubernetes ConfigMap is mounted as `rules.yaml -> ..data/rules.yaml` and `..data -> ..2026_11_21/`: three ways to
/// one file. It is listed once, under the way without a hidden name. In the same manner each directory is looked into
/// once, so that links in a circle come to an end.
pub(super) fn list(root: &Path, ignore_dotfiles: bool) -> Listing {
    let mut listing = Listing::default();
    let mut names: BTreeMap<PathBuf, Visible> = BTreeMap::new();
    let mut seen = HashSet::new();
    let mut ahead = BTreeSet::from([Visible { hidden: false, path: root.to_owned() }]);
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
                            let found = Visible { hidden: dir.hidden || hidden, path: entry.path() };
                            look_at(found, &mut ahead, &mut names, &mut listing.failures);
                        }
                        Err(error) => listing.failures.push((dir.path.clone(), error)),
                    }
                }
            }
            Err(error) => listing.failures.push((dir.path, error)),
        }
    }
    listing.files = names.into_iter().map(|(real, Visible { path, .. })| Found { path, real }).collect();
    listing.files.sort_by(|a, b| a.path.cmp(&b.path));
    listing.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
    listing
}

/// Puts `found` where it belongs. What is neither a file nor a directory, such as a socket, is left alone.
fn look_at(
    found: Visible,
    ahead: &mut BTreeSet<Visible>,
    names: &mut BTreeMap<PathBuf, Visible>,
    failures: &mut Vec<(PathBuf, io::Error)>,
) {
    let looked =
        fs::metadata(&found.path).and_then(|metadata| Ok((metadata, fs::canonicalize(&found.path)?)));
    match looked {
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
