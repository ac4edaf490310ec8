//! The state that all operations share.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{http::StatusCode, response::Response};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use weir_limit::{Origin, Period, Rule, RuleSet, Timestamp};
use weir_store::Store;

use super::{
    answer::{answer, hex},
    fleet::{self, KnownFleet},
    problem::Problem,
    stream::Hub,
    time,
    traffic::{InstanceTraffic, LOOK},
};
use crate::{
    bounds::RequestBounds,
    health::Reason,
    http::{context::ServiceContext, json::JsonApi},
};

/// How often the other instances are told of this one, in seconds.
const REPORT: u64 = 2;

/// How often calendars are compared with those of the other instances, in seconds.
const COMPARE: u64 = 600;

/// The large answers that are made at a time: others wait, since decisions come first.
const TURNS: usize = 2;

/// What the operations know of this process beside its [`ServiceContext`].
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// The name of this instance, unique in its fleet.
    pub instance: String,
    pub bounds: RequestBounds,
    /// How rule files are read.
    pub options: weir_config::Options,
    /// The rule files; none if the rules are not from files.
    pub files: Option<ShownFiles>,
}

/// Reads the rule files: their names and texts, or why there are none.
#[derive(Clone)]
pub struct ShownFiles(pub Arc<ReadFiles>);

type ReadFiles = dyn Fn() -> Result<Vec<(String, String)>, String> + Send + Sync;

pub(super) struct AdminApi<S> {
    pub(super) context: ServiceContext<S>,
    pub(super) facts: ProcessFacts,
    pub(super) traffic: InstanceTraffic,
    pub(super) hub: Hub,
    pub(super) since: Timestamp,
    /// Decodes the bodies of `/json`.
    pub(super) requests: JsonApi<S>,
    turns: Arc<Semaphore>,
    /// Of the rules of a generation.
    digest: Mutex<Option<(u64, String)>>,
}

// === impl AdminApi ===

impl<S: Store> AdminApi<S> {
    /// Follows the counters of `context` for as long as it lives, if it is made within a runtime.
    pub(super) fn new(context: &ServiceContext<S>, facts: ProcessFacts) -> Arc<Self> {
        let api = Arc::new(Self {
            requests: JsonApi::new(context.clone(), facts.bounds),
            context: context.clone(),
            facts,
            traffic: InstanceTraffic::default(),
            hub: Hub::default(),
            since: context.clock.now(),
            turns: Arc::new(Semaphore::new(TURNS)),
            digest: Mutex::default(),
        });
        api.look();
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(Self::follow(Arc::downgrade(&api))));
        }
        api
    }

    /// Once a second: rates, and the events of those who listen.
    async fn follow(api: Weak<Self>) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            ticks.tick().await;
            let Some(api) = api.upgrade() else { return };
            if api.context.health.reasons().contains(&Reason::Stopping) {
                return api.hub.close();
            }
            let is_shared = api.context.limiter.store().shared_counts().store.is_some();
            if is_shared && tick % COMPARE == 10 {
                fleet::compare_calendars(&api).await;
            }
            let topics = api.hub.asked();
            let reports = tick % REPORT == 0 && is_shared;
            if tick % LOOK != 0 && topics.is_empty() && !reports {
                continue;
            }
            // once a second at most, while somebody asks
            let needs_fleet = topics.iter().any(|topic| topic.is_of_fleet());
            let fleet = if needs_fleet { KnownFleet::read(&api).await.ok().flatten() } else { None };
            let is_asked = !topics.is_empty();
            let made = spawn_blocking(move || {
                // all counters are read: reports alone have those of the last look
                if is_asked || tick % LOOK == 0 {
                    api.look();
                }
                if reports {
                    fleet::report(&api);
                }
                for topic in topics {
                    api.hub.send(topic, &api.event(topic, fleet.as_ref()).to_string());
                }
            });
            if let Err(error) = made.await {
                tracing::error!(%error, "cannot make the events of the admin API");
            }
        }
    }

    /// Brings the rates up to date.
    pub(super) fn look(&self) {
        let shared = self.context.limiter.store().shared_counts().store;
        self.traffic.look(&self.context.stats, shared, self.context.clock.uptime(), self.now());
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    pub(super) fn uptime(&self) -> Period {
        self.context.clock.uptime()
    }

    /// Makes an answer on a thread that serves no connections.
    pub(super) async fn aside(
        self: Arc<Self>,
        make: impl FnOnce(&Self) -> Value + Send + 'static,
    ) -> Result<Response, Problem> {
        let broken =
            || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "The answer cannot be made; see the log.");
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| broken())?;
        let rendered = spawn_blocking(move || {
            let _turn = turn;
            self.look();
            answer(&make(&self))
        });
        rendered.await.map_err(|error| {
            tracing::error!(%error, "cannot answer at the admin API");
            broken()
        })
    }

    pub(super) fn rules_json(&self) -> Value {
        let stats = &self.context.stats;
        let generation = self.context.limiter.generation();
        let loaded_at = stats.config_loaded_at.get();
        json!({
            "generation": generation,
            "digest": self.digest(generation),
            "loaded_at": (loaded_at > 0).then(|| time::text(Timestamp::from_secs(loaded_at))),
            "count": self.context.limiter.rules(|rules| rules.rules().len()).unwrap_or_default(),
            "is_rejected": stats.config_rejected.get() == 1,
        })
    }

    fn digest(&self, generation: u64) -> String {
        let mut known = self.digest.lock();
        if let Some((of, digest)) = known.as_ref()
            && *of == generation
        {
            return digest.clone();
        }
        let digest = self.context.limiter.rules(digest).unwrap_or_default();
        *known = Some((generation, digest.clone()));
        digest
    }
}

/// Sixteen hexadecimal digits, which are equal where the rules are.
fn digest(rules: &RuleSet) -> String {
    let mut context = Context::new(&SHA256);
    for compiled in rules.rules() {
        // instances may have the same rules in other folders
        let rule = Rule { origin: Origin::default(), ..compiled.rule.clone() };
        context.update(format!("{} {rule:?}\n", compiled.path).as_bytes());
    }
    hex(&context.finish().as_ref()[..8])
}

impl std::fmt::Debug for ShownFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShownFiles(…)")
    }
}
