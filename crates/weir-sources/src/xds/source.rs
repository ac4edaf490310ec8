use std::sync::Arc;

use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    client::{Snapshot, XdsClient},
    metrics::XdsMetrics,
    resource,
    response::Resource,
    settings::XdsSettings,
};
use crate::{directory::RuleSource, watch::Watch};
use weir_config::{
    ConfigErrors, Document, Finding, Loaded, Options, RuleDefaults, load_documents, on_rules_thread,
};
use weir_limit::Origin;
use weir_observe::{Stats, text::shortened};

/// The most characters of errors that a control plane receives.
const MAX_ERRORS: usize = 16_000;

const MAX_UNREADABLE: usize = 100;

/// Rules from a control plane. A task of the runtime keeps the connection.
#[derive(Debug)]
pub struct XdsSource {
    snapshots: mpsc::Receiver<Snapshot>,
    /// The snapshot that waits for its outcome.
    candidate: Option<Snapshot>,
    accepted: Option<Vec<Resource>>,
    options: Options,
    defaults: RuleDefaults,
    /// The errors of the newest file of defaults, if it has any: the previous ones stay.
    rejected_defaults: Vec<Finding>,
    /// The defaults without those of the file.
    base: RuleDefaults,
    file: Option<(std::path::PathBuf, Watch)>,
    metrics: Arc<XdsMetrics>,
    client: AbortHandle,
}

// === impl XdsSource ===

impl XdsSource {
    /// Begins to connect, on the current runtime.
    pub fn start(settings: XdsSettings) -> Result<Self, ConfigErrors> {
        let (base, merge_domains) = (settings.defaults.clone(), settings.merge_domains);
        let file = settings.defaults_file.clone();
        // the watch first, so that no change is missed
        let file = file.map(|file| (file.clone(), Watch::files(&[file])));
        let defaults = match &file {
            Some((path, _)) => base.with_file(path)?,
            None => base.clone(),
        };
        let (send, snapshots) = mpsc::channel(1);
        let metrics = Arc::new(XdsMetrics::default());
        let client = XdsClient::new(settings, send, Arc::clone(&metrics));
        let client = tokio::spawn(client.run()).abort_handle();
        Ok(Self {
            snapshots,
            candidate: None,
            accepted: None,
            options: Options { merge_domains, ..Options::default() },
            defaults,
            rejected_defaults: Vec::new(),
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
                self.rejected_defaults.clear();
            }
            Err(errors) => self.rejected_defaults = errors.errors,
        }
        self.accepted.is_some()
    }
}

impl RuleSource for XdsSource {
    const CORRECTS_ITSELF: bool = true;

    async fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        // the first snapshot may take as long as it likes; another load uses the last good one
        if self.candidate.is_none() && self.accepted.is_none() {
            self.candidate = received(&mut self.snapshots).await;
        }
        let resources = match &self.candidate {
            Some(candidate) => candidate
                .resources
                .clone()
                .map_err(|reason| ConfigErrors { errors: vec![error(reason)], warnings: Vec::new() })?,
            None => self.accepted.clone().unwrap_or_default(),
        };
        let (options, defaults) = (self.options.clone(), self.defaults.clone());
        let loaded = on_rules_thread(move || load(resources, &options, &defaults)).await;
        loaded.map(|loaded| Loaded { left_out: self.rejected_defaults.clone(), ..loaded })
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
        let Some(Snapshot { resources, outcome: judged }) = self.candidate.take() else { return };
        let result = outcome.map_err(|errors| {
            // bounded, as the errors of every load are
            shortened(&errors.to_string(), MAX_ERRORS).into_owned()
        });
        if result.is_ok() {
            self.accepted = resources.ok();
        }
        // an error means that the client has ended, as at the end of the process
        let _ = judged.send(result);
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

/// An error about the response as a whole.
fn error(message: String) -> Finding {
    Finding { at: Origin { file: "xds".into(), line: 0, column: 0 }, message }
}

/// Checks `resources` together, as the files of a directory are: in the order of their names.
fn load(
    resources: Vec<Resource>,
    options: &Options,
    defaults: &RuleDefaults,
) -> Result<Loaded, ConfigErrors> {
    let (mut documents, mut errors): (Vec<Document>, Vec<Finding>) = (Vec::new(), Vec::new());
    let mut unreadable = 0;
    for resource in resources {
        match resource::document(resource) {
            Ok(document) => documents.push(document),
            Err(reason) => {
                unreadable += 1;
                if unreadable <= MAX_UNREADABLE {
                    errors.push(error(reason.to_string()));
                }
            }
        }
    }
    if let Some(more @ 1..) = unreadable.checked_sub(MAX_UNREADABLE) {
        errors.push(error(format!("and {more} more resources that cannot be read")));
    }
    // control planes send them in any order
    documents.sort_by(|a, b| a.name.cmp(&b.name));
    let loaded = load_documents(documents, options);
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
