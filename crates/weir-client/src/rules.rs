//! The rules of a limiter: where they come from, and how they come into force.

#[cfg(feature = "dns")]
mod dns;

use std::{collections::HashSet, num::NonZeroU16, path::PathBuf, sync::Arc, time::Duration};

#[cfg(feature = "dns")]
pub(super) use self::dns::FollowedRules;
use crate::selected_store::AnyStore;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};
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

/// While the rules change with time, a thread puts them in force again at each edge. It ends when this is dropped.
pub(super) struct Rules(Arc<TimedRules>);

/// Shared with the thread.
struct TimedRules {
    limiter: Arc<Limiter<AnyStore>>,
    clock: Arc<dyn Clock>,
    /// Kept across loads, since counters are found by it.
    hasher: KeyHasher,
    state: Mutex<TimedState>,
    /// Notified if the edge is another one, or the thread must end.
    changed: Notify,
}

#[derive(Default)]
struct TimedState {
    domains: Vec<Domain>,
    /// When they change next, by the store's clock.
    edge: Option<Timestamp>,
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
        let (state, changed) = (Mutex::default(), Notify::new());
        Self(Arc::new(TimedRules { limiter, clock, hasher: KeyHasher::random(), state, changed }))
    }

    /// `number` returns the instances of a DNS name that limits are divided by.
    pub(super) fn load(&self, mut domains: Vec<Domain>, number: impl Fn(&str) -> NonZeroU16) {
        for domain in &mut domains {
            divide_by_names(&mut domain.nodes, &number);
        }
        let mut state = self.0.state.lock();
        state.domains = domains;
        self.0.put_in_force(&mut state);
        if state.edge.is_some() && !state.has_thread {
            let shared = Arc::clone(&self.0);
            // without the thread, the next edges are known, and rules that are loaded again know more
            state.has_thread = runtime::spawn("weir-rules".into(), move || follow(shared)).is_ok();
        }
        self.0.changed.notify_one();
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

// === impl TimedRules ===

impl TimedRules {
    fn now(&self) -> Timestamp {
        self.clock.now().shifted(self.limiter.store().clock_offset())
    }

    fn put_in_force(&self, state: &mut TimedState) {
        state.edge = put_in_force(&mut state.domains, self.now());
        self.limiter.load(RuleSet::new(&state.domains, self.hasher));
        if state.edge.is_none() {
            state.domains = Vec::new();
        }
    }

    /// Returns the pause before the next edge; none once the rules are dropped.
    fn follow_edge(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        if state.edge.is_some_and(|edge| edge <= self.now()) {
            self.put_in_force(&mut state);
        }
        (!state.is_over).then(|| pause_before(state.edge, self.now()))
    }
}

/// Returns when the rules are dropped.
async fn follow(shared: Arc<TimedRules>) {
    while let Some(pause) = shared.follow_edge() {
        // at the edge, or earlier
        let _ = timeout(pause, shared.changed.notified()).await;
    }
}
