//! The sources of rules: the trait through which the service loads them, and the directory of rule files.

use std::{
    future::Future,
    path::{Path, PathBuf},
};

use crate::watch::Watch;
use weir_config::{
    error::ConfigErrors,
    load::{Loaded, Options, load, load_file},
    thread::on_rules_thread,
};
use weir_observe::Stats;

/// A source of rules. The service calls [`load`](Self::load) at its start and after each [`changed`](Self::changed) or
/// reload signal, and then [`acknowledge`](Self::acknowledge) once. A source of versions such as xDS keeps the one that
/// `load` returned, and sends its ACK or NACK from `acknowledge`.
pub trait RuleSource: Send + 'static {
    /// Whether the source replaces invalid rules itself: the service then waits, unhealthy, instead of giving up.
    const CORRECTS_ITSELF: bool = false;

    /// Loads the current rules, and may wait for the first ones. Dropping the future loses none.
    fn load(&mut self) -> impl Future<Output = Result<Loaded, ConfigErrors>> + Send;

    /// Waits until the rules may have changed since the last load. Dropping the future loses no change.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Receives the outcome of the last load: its rules are in force now, or the previous ones stay due to the errors.
    fn acknowledge(&mut self, outcome: Result<(), &ConfigErrors>);

    fn register(&self, _stats: &Stats) {}
}

/// The rule files below a directory, or one rule file, which are watched for changes, as are their tables.
#[derive(Debug)]
pub struct DirectorySource {
    path: PathBuf,
    is_file: bool,
    options: Options,
    watch: Watch,
}

// === impl DirectorySource ===

impl DirectorySource {
    /// Watches `path` from now on. It is a file if it is one now, else a directory, which need not exist yet.
    pub fn new(path: &Path, options: Options) -> Self {
        let (path, is_file) = (path.to_owned(), path.is_file());
        let tables = options.tables.dir.clone();
        let (files, dirs) = if is_file { (vec![path.clone()], vec![]) } else { (vec![], vec![path.clone()]) };
        let watch = Watch::of(&files, &[dirs, tables.into_iter().collect()].concat());
        Self { path, is_file, options, watch }
    }
}

impl RuleSource for DirectorySource {
    async fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        let (path, is_file, options) = (self.path.clone(), self.is_file, self.options.clone());
        on_rules_thread(move || if is_file { load_file(&path, &options) } else { load(&path, &options) })
            .await
    }

    async fn changed(&mut self) {
        self.watch.changed().await;
    }

    /// The log already contains the outcome.
    fn acknowledge(&mut self, _outcome: Result<(), &ConfigErrors>) {}
}
