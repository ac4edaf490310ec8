//! Why a data directory cannot be used.

use std::{io, path::PathBuf, sync::Arc};

/// The reason why the data on disk cannot be opened, read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `write to`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another process uses the directory.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// There is a directory, but no data in it.
    #[error("there is no data in {}", .0.display())]
    NoData(PathBuf),
    /// The directory has other contents.
    #[error("{} has files of something else, such as {found:?}: the data directory must be empty at first", dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// A file in it.
        found: String,
    },
    /// A newer version of weir has written the data.
    #[error(
        "the data in {} have format {found}, and this version of weir reads format {supported}: use the version that wrote them, \
         or a newer one", dir.display()
    )]
    Newer {
        /// The directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format that is known.
        supported: u32,
    },
    /// A file is damaged.
    #[error("{} is damaged: {what}", file.display())]
    Damaged {
        /// The file, or the directory if it is not known which of its files is damaged.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The directory, or what is in it, has gone while it is in use.
    #[error(
        "the data directory {} was removed, moved or replaced while weir uses it: put it back, or start weir again", .0.display()
    )]
    Gone(PathBuf),
    /// The engine failed for another reason.
    #[error("the data in {} cannot be used: {what}", dir.display())]
    Engine {
        /// The directory.
        dir: PathBuf,
        /// What the engine says.
        what: String,
    },
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] Arc<io::Error>),
}

impl DiskError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source: source.into() }
    }

    pub(super) fn damaged(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), what: what.into() }
    }

    pub(super) fn engine(dir: impl Into<PathBuf>, what: &str) -> Self {
        Self::Engine { dir: dir.into(), what: what.into() }
    }

    pub(super) fn thread(error: io::Error) -> Self {
        Self::Thread(error.into())
    }

    /// Returns whether data are damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Returns whether the disk has no room for more.
    pub fn is_full(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if kinds.contains(&source.kind()))
    }
}
