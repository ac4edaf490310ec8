//! The rules of a limiter: where they come from, and how they come into force.

#[cfg(feature = "dns")]
mod dns;

use std::{collections::HashSet, num::NonZeroU16, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

#[cfg(feature = "dns")]
pub(super) use self::dns::FollowedRules;
use crate::selected_store::AnyStore;
use weir_config::{self as config, ConfigErrors, divide_by_names, put_in_force};
use weir_limit::{Domain, KeyHasher, RuleSet, Timestamp};
use weir_limiter::Limiter;
use weir_store::{
    Store as _,
    clock::{Clock, pause_before},
    runtime,
};

pub(super) struct RuleFiles {
    pub(super) dir: Option<PathBuf>,
    /// Rules that are not in files.
    pub(super) domains: Vec<Domain>,
}

/// A thread follows the schedules of the rules while there are any, and ends when this is dropped.
pub(super) struct Rules {
    in_force: Arc<RulesInForce>,
    clock: Arc<dyn Clock>,
}

/// Shared with the thread.
struct RulesInForce {
    limiter: Arc<Limiter<AnyStore>>,
    /// Kept across loads, since counters are found by it.
    hasher: KeyHasher,
    state: Mutex<RulesState>,
    /// Notified if the thread has other rules to follow, or must end.
    changed: Notify,
}

#[derive(Default)]
struct RulesState {
    domains: Vec<Domain>,
    /// When time changes them, by the store's clock.
    until: Option<Timestamp>,
    has_thread: bool,
    is_over: bool,
}

// === impl RuleFiles ===

impl RuleFiles {
    pub(super) fn read(&self) -> Result<Vec<Domain>, ConfigErrors> {
        let mut domains = self.domains.clone();
        if let Some(dir) = &self.dir {
            domains.extend(config::load(dir, &config::Options::default())?.domains);
        }
        reject_duplicates(&domains)?;
        #[cfg(not(feature = "dns"))]
        reject_names(&domains)?;
        Ok(domains)
    }
}

/// Only one of several sources with the same domain could count.
fn reject_duplicates(domains: &[Domain]) -> Result<(), ConfigErrors> {
    let mut seen = HashSet::new();
    let again = domains.iter().filter(|domain| !seen.insert(&domain.name));
    let errors: Vec<_> = again
        .map(|domain| config::Finding {
            at: domain.nodes.first().map(|node| node.origin.clone()).unwrap_or_default(),
            message: format!(
                "the domain '{}' has rules of another source, too: write them in one",
                domain.name
            ),
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors, warnings: Vec::new() }) }
}

#[cfg(not(feature = "dns"))]
fn reject_names(domains: &[Domain]) -> Result<(), ConfigErrors> {
    let names = domains.iter().flat_map(|domain| config::names_of_instances(&domain.nodes));
    let errors = names.map(|(name, at)| config::Finding {
        at,
        message: format!(
            "'instances: dns://{name}' needs the crate's feature 'dns', by which names are looked up; enable it, or \
             write a number"
        ),
    });
    let errors: Vec<_> = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors, warnings: Vec::new() }) }
}

// === impl Rules ===

impl Rules {
    pub(super) fn new(limiter: Arc<Limiter<AnyStore>>, clock: Arc<dyn Clock>) -> Self {
        let (hasher, state) = (KeyHasher::random(), Mutex::default());
        Self { in_force: Arc::new(RulesInForce { limiter, hasher, state, changed: Notify::new() }), clock }
    }

    /// `number` returns the instances of a DNS name that limits are divided by.
    pub(super) fn load(&self, mut domains: Vec<Domain>, number: impl Fn(&str) -> NonZeroU16) {
        for domain in &mut domains {
            divide_by_names(&mut domain.nodes, &number);
        }
        let mut state = self.in_force.state.lock();
        state.domains = domains;
        self.in_force.apply(&mut state, &*self.clock);
        if state.has_thread {
            self.in_force.changed.notify_one();
        } else if state.until.is_some() {
            let (in_force, clock) = (Arc::clone(&self.in_force), Arc::clone(&self.clock));
            let started = runtime::spawn("weir-schedules".into(), move || follow(in_force, clock));
            // without a thread, the limits stay as they are now until the next load
            state.has_thread = started.is_ok();
        }
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        self.in_force.state.lock().is_over = true;
        self.in_force.changed.notify_one();
    }
}

// === impl RulesInForce ===

impl RulesInForce {
    fn now(&self, clock: &dyn Clock) -> Timestamp {
        clock.now().shifted(self.limiter.store().clock_offset())
    }

    fn apply(&self, state: &mut RulesState, clock: &dyn Clock) {
        state.until = put_in_force(&mut state.domains, self.now(clock));
        self.limiter.load(RuleSet::new(&state.domains, self.hasher));
    }
}

/// Returns when the rules are dropped.
async fn follow(in_force: Arc<RulesInForce>, clock: Arc<dyn Clock>) {
    loop {
        let until = {
            let mut state = in_force.state.lock();
            if state.is_over {
                return;
            }
            if state.until.is_some_and(|until| until <= in_force.now(&*clock)) {
                in_force.apply(&mut state, &*clock);
            }
            state.until
        };
        // either may have come
        let _ = timeout(pause_before(until, in_force.now(&*clock)), in_force.changed.notified()).await;
    }
}
