//! Rules that take numbers of instances from DNS: they come into force anew whenever one changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroU16,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::Rules;
use weir_config::names_of_instances;
use weir_limit::{Domain, part::UNKNOWN_INSTANCES};
use weir_net::dns::{DnsInstances, DnsSettings};
use weir_store::{clock::Clock, runtime};

/// A thread follows the DNS names of the rules while there are any, and ends when this is dropped.
pub(crate) struct FollowedRules {
    shared: Arc<SharedRules>,
    clock: Arc<dyn Clock>,
    settings: DnsSettings,
}

/// Shared with the thread.
struct SharedRules {
    rules: Rules,
    state: Mutex<FollowedState>,
    /// Notified if the thread has other names to follow, or must end.
    changed: Notify,
}

#[derive(Default)]
struct FollowedState {
    /// The rules as they are written.
    domains: Vec<Domain>,
    numbers: BTreeMap<Box<str>, NonZeroU16>,
    /// Whether the rules are not in force yet, since a number is missing.
    is_pending: bool,
    has_thread: bool,
    is_over: bool,
}

// === impl FollowedRules ===

impl FollowedRules {
    pub(crate) fn new(rules: Rules, clock: Arc<dyn Clock>, settings: DnsSettings) -> Self {
        let shared = Arc::new(SharedRules { rules, state: Mutex::default(), changed: Notify::new() });
        Self { shared, clock, settings }
    }

    /// Decides by `domains` from now on, or once new names of instances were looked up, within 2 s, and waits for that.
    /// Fails if the system cannot start a thread.
    pub(crate) async fn load_first(&self, domains: Vec<Domain>) -> io::Result<()> {
        let (sender, looked_up) = oneshot::channel();
        self.begin(domains, Some(sender))?;
        // closed at once if there is nothing to look up
        let _ = looked_up.await;
        Ok(())
    }

    /// As [`FollowedRules::load_first`], without the wait. Without a thread, names count as [`UNKNOWN_INSTANCES`].
    pub(crate) fn load(&self, domains: Vec<Domain>) {
        if let Err(error) = self.begin(domains, None) {
            tracing::error!(%error, "cannot start a thread to look up the instances of limits");
            let mut state = self.shared.state.lock();
            state.numbers = state.names().into_iter().map(|name| (name, UNKNOWN_INSTANCES)).collect();
            self.shared.apply(&mut state);
        }
    }

    fn begin(&self, domains: Vec<Domain>, looked_up: Option<oneshot::Sender<()>>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.domains = domains;
        state.is_pending = !state.names().iter().all(|name| state.numbers.contains_key(name));
        if !state.is_pending {
            self.shared.apply(&mut state);
        }
        if state.has_thread {
            self.shared.changed.notify_one();
        } else if state.is_pending {
            let instances = DnsInstances::new(self.settings.clone());
            let (shared, clock) = (Arc::clone(&self.shared), Arc::clone(&self.clock));
            let follow = move || follow(shared, instances, clock, looked_up);
            runtime::spawn("weir-dns".into(), follow)?;
            state.has_thread = true;
        }
        Ok(())
    }
}

impl Drop for FollowedRules {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_one();
    }
}

// === impl SharedRules ===

impl SharedRules {
    /// Applies the numbers of `names`, unless the rules have changed meanwhile and have other names too.
    fn update(&self, names: &BTreeSet<Box<str>>, instances: &DnsInstances) {
        let mut state = self.state.lock();
        let numbers = names.iter().map(|name| (name.clone(), instances.of(name))).collect();
        let has_changed = state.numbers != numbers;
        state.numbers = numbers;
        if (state.is_pending || has_changed) && state.names().is_subset(names) {
            self.apply(&mut state);
        }
    }

    fn apply(&self, state: &mut FollowedState) {
        let of = |name: &str| state.numbers.get(name).copied().unwrap_or(UNKNOWN_INSTANCES);
        self.rules.load(state.domains.clone(), of);
        state.is_pending = false;
    }
}

// === impl FollowedState ===

impl FollowedState {
    fn names(&self) -> BTreeSet<Box<str>> {
        let names = self.domains.iter().flat_map(|domain| names_of_instances(&domain.nodes));
        names.map(|(name, _)| name).collect()
    }
}

/// Returns when the rules are dropped. Tells `looked_up` once the first names are in force.
async fn follow(
    shared: Arc<SharedRules>,
    mut instances: DnsInstances,
    clock: Arc<dyn Clock>,
    mut looked_up: Option<oneshot::Sender<()>>,
) {
    loop {
        let names = {
            let state = shared.state.lock();
            if state.is_over {
                return;
            }
            state.names()
        };
        instances.follow(&names, clock.now()).await;
        shared.update(&names, &instances);
        if let Some(looked_up) = looked_up.take() {
            // the limiter may have been dropped
            let _ = looked_up.send(());
        }
        tokio::select! {
            () = shared.changed.notified() => {}
            () = instances.changed(|| clock.now()) => {}
        }
    }
}
