//! Recognizes a ConfigMap or Secret that Kubernetes mounts.
//!
//! `rules.yaml -> ..data/rules.yaml` is visible, `..data -> ..2026_11_21/` is a link to the current version. A change
//! writes a new version beside the old one, renames a new `..data` over the old one, adds and removes visible links,
//! and removes the old version. Rules may be read between any two of these steps.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

/// Linux's own limit.
pub const MAX_LINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrokenLink {
    /// It was removed or is not added yet.
    NotInVersion,
    NoVersion,
    /// It leads nowhere, and not through a version on the way.
    Dangling,
}

/// Whether it is a version or the link to one. Their files are rules only through visible links.
#[must_use]
pub fn is_internal(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..")
}

pub(super) fn is_in_version(real: &Path) -> bool {
    real.components().any(|part| is_internal(part.as_os_str()))
}

/// Follows all links that `path` leads to. None if it is no link, or may not be broken.
pub(super) fn broken(path: &Path) -> Option<BrokenLink> {
    let mut current = fs::canonicalize(path.parent()?).ok()?;
    let mut ahead = vec![PathBuf::from(path.file_name()?)];
    let mut links = 0;
    while let Some(step) = ahead.pop() {
        let next = current.join(&step);
        if links > 0 && step != Path::new("..") && is_internal(step.as_os_str()) {
            let exists = fs::metadata(&next).is_ok_and(|found| found.is_dir());
            return Some(if exists { BrokenLink::NotInVersion } else { BrokenLink::NoVersion });
        }
        match fs::read_link(&next) {
            Ok(_) if links == MAX_LINKS => return Some(BrokenLink::Dangling),
            Ok(target) => {
                links += 1;
                if target.is_absolute() {
                    current = PathBuf::from("/");
                }
                ahead.extend(steps(&target));
            }
            Err(error) => match error.kind() {
                // no link
                io::ErrorKind::InvalidInput => current = next,
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    return (links > 0).then_some(BrokenLink::Dangling);
                }
                _ => return None,
            },
        }
    }
    None
}

/// The named parts of `path`, the last one first.
#[must_use]
pub fn steps(path: &Path) -> Vec<PathBuf> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| PathBuf::from(part.as_os_str())).collect()
}
