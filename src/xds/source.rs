//! The source of rules that is a control plane.

use std::sync::Arc;

use prost_types::Any;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, spawn_blocking},
};

use super::{
    client::Client,
    metrics::XdsMetrics,
    resource,
    settings::XdsSettings,
    snapshot::{Outcome, Snapshot},
};
use crate::{
    config::{
        ConfigError, ConfigErrors, Document, Loaded, Options, RuleDefaults, RuleSource, Watch, load_documents,
    },
    limit::Origin,
    observe::Stats,
};

/// The most characters of errors that a control plane receives.
const MAX_ERRORS: usize = 16_000;

/// Rules from a control plane. A task of the runtime keeps the connection.
#[derive(Debug)]
pub struct XdsSource {
    snapshots: mpsc::Receiver<Snapshot>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    /// The snapshot that waits for its outcome.
    candidate: Option<Snapshot>,
    /// The resources of the last accepted snapshot.
    accepted: Option<Vec<Any>>,
    defaults: RuleDefaults,
    /// The defaults without those of the file, and the file.
    base: RuleDefaults,
    file: Option<(std::path::PathBuf, Watch)>,
    metrics: Arc<XdsMetrics>,
    client: AbortHandle,
}

// === impl XdsSource ===

impl XdsSource {
    /// Begins to connect, on the current runtime.
    ///
    /// # Errors
    ///
    /// The errors of the file of defaults.
    pub fn start(settings: XdsSettings) -> Result<Self, ConfigErrors> {
        let base = settings.defaults.clone();
        let file = settings.defaults_file.clone();
        // the watch first, so that no change is missed
        let file = file.map(|file| (file.clone(), Watch::files(&[file])));
        let defaults = match &file {
            Some((path, _)) => base.with_file(path)?,
            None => base.clone(),
        };
        let (send, snapshots) = mpsc::channel(1);
        let (outcomes, receive) = mpsc::unbounded_channel();
        let metrics = Arc::new(XdsMetrics::default());
        let client = Client::new(settings, send, receive, Arc::clone(&metrics));
        let client = tokio::spawn(client.run()).abort_handle();
        Ok(Self {
            snapshots,
            outcomes,
            candidate: None,
            accepted: None,
            defaults,
            base,
            file,
            metrics,
            client,
        })
    }

    /// Reads the changed file of defaults. Returns whether the rules should be loaded again.
    fn reload_defaults(&mut self) -> bool {
        let Some((path, _)) = &self.file else { return false };
        match self.base.with_file(path) {
            Ok(defaults) => {
                self.defaults = defaults;
                self.accepted.is_some()
            }
            Err(errors) => {
                for error in &errors.errors {
                    tracing::error!("{error}");
                }
                tracing::error!("defaults not reloaded, keeping the previous ones");
                false
            }
        }
    }
}

impl RuleSource for XdsSource {
    const CORRECTS_ITSELF: bool = true;

    async fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        // the first snapshot may take as long as it likes; another load uses the last good one
        if self.candidate.is_none() && self.accepted.is_none() {
            self.candidate = received(&mut self.snapshots).await;
        }
        let candidate = self.candidate.as_ref().map(|candidate| &candidate.resources);
        let resources = candidate.or(self.accepted.as_ref()).cloned().unwrap_or_default();
        let defaults = self.defaults.clone();
        match spawn_blocking(move || load(resources, &defaults)).await {
            Ok(loaded) => loaded,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    async fn changed(&mut self) {
        loop {
            if self.candidate.is_some() {
                return;
            }
            tokio::select! {
                candidate = received(&mut self.snapshots) => self.candidate = candidate,
                () = file_changed(&mut self.file) => if self.reload_defaults() {
                    return;
                }
            }
        }
    }

    fn acknowledge(&mut self, outcome: Result<(), &ConfigErrors>) {
        // without a candidate, the service has loaded the same snapshot again
        let Some(Snapshot { id, resources }) = self.candidate.take() else { return };
        let result = outcome.map_err(|errors| {
            let text = errors.to_string();
            match text.char_indices().nth(MAX_ERRORS) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        });
        if result.is_ok() {
            self.accepted = Some(resources);
        }
        // an error means that the client has ended, as at the end of the process
        let _ = self.outcomes.send(Outcome { id, result });
    }

    fn register(&self, stats: &Stats) {
        stats.register(&self.metrics);
    }
}

impl Drop for XdsSource {
    fn drop(&mut self) {
        self.client.abort();
    }
}

/// Waits for the next snapshot.
async fn received(snapshots: &mut mpsc::Receiver<Snapshot>) -> Option<Snapshot> {
    match snapshots.recv().await {
        Some(snapshot) => Some(snapshot),
        // the client ends with the process
        None => std::future::pending().await,
    }
}

async fn file_changed(file: &mut Option<(std::path::PathBuf, Watch)>) {
    match file {
        Some((_, watch)) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Checks `resources` together, as the files of a directory are.
fn load(resources: Vec<Any>, defaults: &RuleDefaults) -> Result<Loaded, ConfigErrors> {
    let (mut documents, mut errors): (Vec<Document>, Vec<ConfigError>) = (Vec::new(), Vec::new());
    for resource in resources {
        match resource::document(resource) {
            Ok(document) => documents.push(document),
            Err(error) => {
                let at = Origin { file: "xds".into(), line: 0, column: 0 };
                errors.push(ConfigError { at, message: error.to_string() });
            }
        }
    }
    // control planes send them in any order
    documents.sort_by(|a, b| a.name.cmp(&b.name));
    let loaded = load_documents(&documents, &Options::default());
    if errors.is_empty() {
        return loaded.map(|mut loaded| {
            defaults.apply(&mut loaded.domains);
            loaded
        });
    }
    if let Err(more) = loaded {
        errors.extend(more.errors);
    }
    Err(ConfigErrors { errors, warnings: Vec::new() })
}
