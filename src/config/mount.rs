//! Recognizes a ConfigMap or Secret that Kubernetes mounts.
//!
//! `rules.yaml -> ..data/rules.yaml` is visible, `..data -> ..2026_11_21/` is a link to the current version. A change
//! writes a new version beside the old one, renames a new `..data` over the old one, adds and removes visible links,
//! and removes the old version. Rules may be read between any two of these steps.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path},
};

/// The reason why a link into a version is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The current version does not have the file: it was removed or is not added yet.
    NotInVersion,
    /// There is no current version.
    NoVersion,
}

/// Returns whether `name` belongs to a version or to the link to one. Their files are rules only through visible links.
pub(super) fn is_internal(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..")
}

/// Returns the reason why the link `path` is broken; none if it does not lead into a version.
pub(super) fn broken(path: &Path) -> Option<Broken> {
    let target = fs::read_link(path).ok()?;
    let mut version = path.parent()?.to_owned();
    for part in target.components() {
        version.push(part);
        // `..` itself is another kind of component
        if matches!(part, Component::Normal(name) if is_internal(name)) {
            let exists = fs::metadata(&version).is_ok_and(|found| found.is_dir());
            return Some(if exists { Broken::NotInVersion } else { Broken::NoVersion });
        }
    }
    None
}
