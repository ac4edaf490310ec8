//! The rules of the moment: loaded at the start, and again whenever their files change.

use tokio::{sync::Notify, task::spawn_blocking};

use super::{Context, Reload};
use crate::{
    config::{self, ConfigErrors, Loaded, Watch},
    limit::{KeyHasher, NANOS_PER_SECOND, RuleSet},
    observe::health::Reason,
    settings::{RulesSettings, Settings},
};

/// Loads rules into a limiter.
#[derive(Clone)]
pub(super) struct Rules {
    settings: RulesSettings,
    healthy_with_rules_only: bool,
    context: Context,
    /// The same for every load: counters are found by the keys that it makes, and outlive the rules.
    hasher: KeyHasher,
    reload: Reload,
}

// === impl Rules ===

impl Rules {
    pub(super) fn new(settings: &Settings, context: Context) -> Self {
        Self {
            settings: settings.rules.clone(),
            healthy_with_rules_only: settings.healthy_with_rules_only,
            context,
            hasher: KeyHasher::random(),
            reload: Reload::default(),
        }
    }

    /// A handle that asks for a load.
    pub(super) fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Sees every change of the files from now on.
    pub(super) fn watch(&self) -> Watch {
        Watch::new(&self.settings.dir)
    }

    /// Loads for the first time. An error is one only if the service must not start without rules.
    pub(super) async fn load_first(&self) -> Result<(), ConfigErrors> {
        if self.healthy_with_rules_only {
            self.context.health.fail(Reason::NoConfiguration);
        }
        match self.load().await {
            Err(errors) if self.settings.force_start => {
                log(&errors, "the service starts without rules, for the first ones are bad");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Loads again whenever something changes or is asked for, for ever. Where the new rules are bad the old ones stay.
    pub(super) async fn follow(self, mut watch: Watch) {
        loop {
            tokio::select! {
                () = watch.changed() => {}
                () = self.reload.0.notified() => {}
            }
            if let Err(errors) = self.load().await {
                log(&errors, "the rules stay as they are, for the new ones are bad");
            }
        }
    }

    async fn load(&self) -> Result<(), ConfigErrors> {
        let (rules, hasher) = (self.settings.clone(), self.hasher);
        // reading and compiling may take seconds, which decisions must not wait for
        let loading = spawn_blocking(move || {
            let options = config::Options {
                merge_domains: rules.merge_domains,
                ignore_dotfiles: rules.ignore_dotfiles,
            };
            config::load(&rules.dir, &options).map(|loaded| (RuleSet::new(&loaded.domains, hasher), loaded))
        });
        let loaded = match loading.await {
            Ok(loaded) => loaded,
            Err(died) => std::panic::resume_unwind(died.into_panic()),
        };
        match loaded {
            Ok((set, loaded)) => {
                self.take(set, &loaded);
                Ok(())
            }
            Err(errors) => {
                self.context.stats.config_load_error.add(1);
                Err(errors)
            }
        }
    }

    fn take(&self, set: RuleSet, loaded: &Loaded) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let (domains, rules) = (loaded.domains.len(), set.rules().len());
        self.context.limiter.load(set);
        self.context.stats.config_load_success.add(1);
        self.context.stats.config_loaded_at.set(self.context.clock.now().as_nanos() / NANOS_PER_SECOND);
        if self.healthy_with_rules_only {
            if domains == 0 {
                self.context.health.fail(Reason::NoConfiguration);
            } else {
                self.context.health.ok(Reason::NoConfiguration);
            }
        }
        tracing::info!(files = loaded.files, domains, rules, "rules loaded");
    }
}

/// Every error, each in a message of its own, so that each has its line in a log.
fn log(errors: &ConfigErrors, outcome: &str) {
    for error in &errors.errors {
        tracing::error!("{error}");
    }
    tracing::error!(errors = errors.errors.len(), "{outcome}");
}

// === impl Reload ===

impl Reload {
    /// Has the rules read again, soon.
    pub fn now(&self) {
        Notify::notify_one(&self.0);
    }
}
