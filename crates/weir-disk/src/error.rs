use std::{io, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `write to`.
        action: &'static str,
        path: PathBuf,
        source: Arc<io::Error>,
    },
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    #[error("there is no data in {}", .0.display())]
    NoData(PathBuf),
    #[error("{} has files of something else, such as {found:?}: the data directory must be empty at first", dir.display())]
    Foreign { dir: PathBuf, found: String },
    #[error(
        "the data in {} have format {found}, and this version of weir reads format {supported}: use the version that wrote them, \
         or a newer one", dir.display()
    )]
    Newer { dir: PathBuf, found: u32, supported: u32 },
    #[error("{} is damaged: {what}", file.display())]
    Damaged {
        /// The file, or the directory if it is not known which of its files is damaged.
        file: PathBuf,
        what: String,
    },
    /// The directory, or what is in it, has gone while it is in use.
    #[error(
        "the data directory {} was removed, moved or replaced while weir uses it: put it back, or start weir again", .0.display()
    )]
    Gone(PathBuf),
    #[error("the data in {} cannot be used: {what}", dir.display())]
    Engine { dir: PathBuf, what: String },
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

    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    pub fn is_full(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if kinds.contains(&source.kind()))
    }
}
