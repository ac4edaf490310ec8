//! The sources of rules: the trait through which the service loads them, and the directory of rule files.

use std::{
    future::Future,
    path::{Path, PathBuf},
};

use super::{
    error::ConfigErrors,
    load::{Loaded, Options, load, load_file},
    thread::on_rules_thread,
    watch::Watch,
};
use crate::observe::Stats;

/// A source of rules, such as a directory of files or a control plane.
///
/// The service calls [`load`](Self::load) at its start, and again after each [`changed`](Self::changed) and each reload
/// signal. Every load is followed by one [`acknowledge`](Self::acknowledge) before the next call. A source of versioned
/// snapshots such as xDS therefore keeps the version that `load` returned, and sends its ACK or NACK from
/// `acknowledge`.
pub trait RuleSource: Send + 'static {
    /// Whether the source replaces invalid rules by itself. If so, the service waits for valid ones at its start
    /// instead of giving up, and is unhealthy if the first ones are invalid.
    const CORRECTS_ITSELF: bool = false;

    /// Loads the current rules. A source that has received none yet may wait for its first snapshot. Dropping the
    /// future loses none: the next load returns it.
    ///
    /// # Errors
    ///
    /// All errors of the current rules.
    fn load(&mut self) -> impl Future<Output = Result<Loaded, ConfigErrors>> + Send;

    /// Waits until the rules may have changed since the last load. Dropping the future loses no change.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Receives the outcome of the last load: requests are now decided by its rules, or the previous rules stay because
    /// of these errors.
    fn acknowledge(&mut self, outcome: Result<(), &ConfigErrors>);

    /// Registers its metrics, if it has any.
    fn register(&self, _stats: &Stats) {}
}

/// The rule files below a directory, or one rule file, which are watched for changes.
#[derive(Debug)]
pub struct DirectorySource {
    path: PathBuf,
    is_file: bool,
    options: Options,
    watch: Watch,
}

// === impl DirectorySource ===

impl DirectorySource {
    /// Watches `path`, which need not exist yet: a file if it is one now, and otherwise a directory. Reports changes from
    /// now on, including those during the first load.
    #[must_use]
    pub fn new(path: &Path, options: Options) -> Self {
        let (path, is_file) = (path.to_owned(), path.is_file());
        let watch = if is_file { Watch::files(std::slice::from_ref(&path)) } else { Watch::new(&path) };
        Self { path, is_file, options, watch }
    }
}

impl RuleSource for DirectorySource {
    async fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        let (path, is_file, options) = (self.path.clone(), self.is_file, self.options);
        on_rules_thread(move || if is_file { load_file(&path) } else { load(&path, &options) }).await
    }

    async fn changed(&mut self) {
        self.watch.changed().await;
    }

    /// Does nothing: the log already contains the outcome.
    fn acknowledge(&mut self, _outcome: Result<(), &ConfigErrors>) {}
}
