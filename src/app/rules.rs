//! Loads the rules of a source into the limiter: at the start, and after every change.

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use weir_config::{
    ConfigErrors, Finding, Loaded, check_shared, divide_by_names, free_tables, names_of_instances,
    on_rules_thread, put_in_force, warn_unkept,
};
use weir_limit::{
    Coordination, KeyHasher, NANOS_PER_SECOND, RuleSet, SharedCounts, SharedStore, TableRows, Timestamp,
};
use weir_net::dns::DnsInstances;
use weir_server::{
    health::Reason,
    http::admin::{AuditedChange, ChangeKind, RuleError},
};
use weir_sources::RuleSource;
use weir_store::{Store as _, clock::pause_before};

use super::{AppContext, reload::Reload};
use crate::settings::Settings;

/// How long a service that may start without rules waits for a control plane, to limit its first requests.
const FIRST_RULES: Duration = Duration::from_secs(2);

/// Who loads rules, and what the audit says of it.
const BY_FILES: (&str, &str) = ("file", "Rules were loaded.");
const BY_SCHEDULE: (&str, &str) = ("schedule", "A schedule or a calendar came to its next edge.");

#[expect(clippy::struct_excessive_bools, reason = "facts of their own, two of which are settings")]
pub(super) struct Rules<S> {
    source: S,
    force_start: bool,
    healthy_with_rules_only: bool,
    /// The store of instances that share counts, and the coordination mode of rules that name none.
    shared: Option<(SharedStore, Coordination)>,
    /// Whether counts outlive the process without such a store.
    is_on_disk: bool,
    is_loaded: bool,
    context: AppContext,
    /// Kept across loads: counters outlive the rules, and are found by the keys that this hasher makes.
    hasher: KeyHasher,
    reload: Reload,
    instances: DnsInstances,
    /// The rules in use before `instances` divide limits. None if neither their number nor time changes them.
    declared: Option<Loaded>,
    /// When the rules in force change next, by the store's clock.
    until: Option<Timestamp>,
    /// Those of the rules in force, so that no request frees one of these.
    tables: Vec<Arc<TableRows>>,
}

// === impl Rules ===

impl<S: RuleSource> Rules<S> {
    pub(super) fn new(source: S, settings: &Settings, context: AppContext) -> Self {
        let SharedCounts { store, mode, .. } = context.limiter.store().shared_counts();
        Self {
            source,
            force_start: settings.rules.force_start,
            healthy_with_rules_only: settings.healthy_with_rules_only,
            shared: store.map(|store| (store, mode)),
            is_on_disk: settings.disk.is_some(),
            is_loaded: false,
            context,
            hasher: KeyHasher::random(),
            reload: Reload::default(),
            instances: DnsInstances::new(settings.rules.dns.clone()),
            declared: None,
            until: None,
            tables: Vec::new(),
        }
    }

    pub(super) fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Bad rules are an error only if the service must not start without rules, and the source does not correct itself.
    pub(super) async fn load_first(&mut self) -> Result<(), ConfigErrors> {
        if self.healthy_with_rules_only {
            self.context.health.fail(Reason::NoConfiguration);
        }
        loop {
            let waits = self.force_start && S::CORRECTS_ITSELF;
            let longest = if waits { FIRST_RULES } else { Duration::MAX };
            let Ok(outcome) = timeout(longest, self.load()).await else {
                tracing::warn!("no rules received yet, starting without rules");
                return Ok(());
            };
            match outcome {
                Err(errors) if self.force_start => {
                    log(&errors, "initial load failed, starting without rules");
                    return Ok(());
                }
                Err(errors) if S::CORRECTS_ITSELF => {
                    log(&errors, "initial load failed, waiting for valid rules");
                }
                outcome => return outcome,
            }
        }
    }

    /// Loads again after each change and requested reload. Bad rules leave the previous ones. Never returns.
    pub(super) async fn follow(mut self) {
        let clock = Arc::clone(&self.context.clock);
        loop {
            tokio::select! {
                () = self.source.changed() => {}
                () = self.reload.requested() => {}
                () = self.instances.changed(|| clock.now()) => {
                    self.install(BY_FILES).await;
                    continue;
                }
                () = sleep(pause_before(self.until, store_time(&self.context))) => {
                    if self.until.is_some_and(|until| until <= store_time(&self.context)) {
                        self.install(BY_SCHEDULE).await;
                    }
                    continue;
                }
            }
            if let Err(errors) = self.load().await {
                log(&errors, "reload failed, keeping the previous rules");
            }
        }
    }

    async fn load(&mut self) -> Result<(), ConfigErrors> {
        let loaded = self.source.load().await.and_then(|loaded| match self.shared {
            Some((store, default)) => check_shared(loaded, store, default),
            None if self.is_on_disk => Ok(loaded),
            None => Ok(warn_unkept(loaded)),
        });
        let stats = Arc::clone(&self.context.stats);
        let reject = || {
            stats.config_load_error.add(1);
            stats.config_rejected.set(1);
        };
        let outcome = match loaded {
            Ok(mut loaded) => {
                let errors = std::mem::take(&mut loaded.left_out);
                self.apply(loaded).await;
                self.context.audit.set_rule_errors(rule_errors(&errors));
                if !errors.is_empty() {
                    reject();
                    let left_out = ConfigErrors { errors, warnings: Vec::new() };
                    log(&left_out, "defaults not reloaded, keeping the previous ones");
                } else if stats.config_rejected.get() == 1 {
                    tracing::info!("the newest rules are valid again, and in force");
                    stats.config_rejected.set(0);
                }
                Ok(())
            }
            Err(errors) => {
                reject();
                self.context.audit.set_rule_errors(rule_errors(&errors.errors));
                if S::CORRECTS_ITSELF && !self.is_loaded {
                    self.context.health.fail(Reason::NoConfiguration);
                }
                Err(errors)
            }
        };
        self.source.acknowledge(outcome.as_ref().copied());
        outcome
    }

    async fn apply(&mut self, loaded: Loaded) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let names = loaded.domains.iter().flat_map(|domain| names_of_instances(&domain.nodes));
        let names: BTreeSet<Box<str>> = names.map(|(name, _)| name).collect();
        self.instances.follow(&names, self.context.clock.now()).await;
        let replaced = mem::replace(&mut self.tables, loaded.tables.clone());
        self.declared = Some(loaded);
        self.install(BY_FILES).await;
        self.context.stats.config_load_success.add(1);
        self.context.stats.config_loaded_at.set(self.context.clock.now().as_nanos() / NANOS_PER_SECOND);
        if !replaced.is_empty() {
            // before the next load, which may need their memory
            tokio::spawn(on_rules_thread(move || free_tables(replaced)));
        }
    }

    /// What is in force, in words.
    fn state(&self) -> String {
        let limiter = &self.context.limiter;
        let rules = limiter.rules(|rules| rules.rules().len()).unwrap_or_default();
        format!("generation {}, {rules} rules", limiter.generation())
    }

    /// Puts into force what the declared rules are now.
    async fn install(&mut self, (who, what): (&str, &str)) {
        let Some(mut loaded) = self.declared.take() else { return };
        let now = store_time(&self.context);
        let (loaded, until) = on_rules_thread(move || {
            let until = put_in_force(&mut loaded.domains, now);
            (loaded, until)
        })
        .await;
        self.until = until;
        let has_names = loaded.domains.iter().any(|domain| !names_of_instances(&domain.nodes).is_empty());
        self.declared = (until.is_some() || has_names).then(|| loaded.clone());
        let Loaded { mut domains, files, .. } = loaded;
        let (domain_count, hasher) = (domains.len(), self.hasher);
        for domain in &mut domains {
            divide_by_names(&mut domain.nodes, &|name| self.instances.of(name));
        }
        let set = on_rules_thread(move || RuleSet::new(&domains, hasher)).await;
        let rule_count = set.rules().len();
        let before = self.state();
        self.context.limiter.load(set);
        if self.is_loaded {
            self.context.audit.add(AuditedChange {
                at: self.context.clock.now(),
                kind: ChangeKind::Rules,
                who: who.into(),
                what: what.to_owned(),
                before: Some(before),
                after: Some(self.state()),
            });
        }
        self.is_loaded = true;
        if self.healthy_with_rules_only && domain_count == 0 {
            self.context.health.fail(Reason::NoConfiguration);
        } else {
            self.context.health.ok(Reason::NoConfiguration);
        }
        tracing::info!(files, domains = domain_count, rules = rule_count, "rules loaded");
    }
}

fn store_time(AppContext { clock, limiter, .. }: &AppContext) -> Timestamp {
    clock.now().shifted(limiter.store().clock_offset())
}

fn rule_errors(errors: &[Finding]) -> Vec<RuleError> {
    let error = |Finding { at, message }: &Finding| RuleError {
        file: at.file.to_string(),
        line: at.line,
        message: message.clone(),
    };
    errors.iter().map(error).collect()
}

fn log(errors: &ConfigErrors, outcome: &str) {
    for error in &errors.errors {
        tracing::error!("{error}");
    }
    tracing::error!(errors = errors.errors.len(), "{outcome}");
}
