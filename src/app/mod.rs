//! The service, put together: what starts and stops, and in which order.
//!
//! Start: rules, limiter, listeners, doors; so that whoever is let in finds everything there. Stop: health fails, and
//! the doors go on for a moment; then they take no more, and what is open ends or is cut; the stats go last.

mod rules;
mod servers;
mod store;
mod store_state;
mod sweep;

use std::{error::Error, fmt, future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};

use self::{rules::Rules, servers::Servers, store::StoreThread};
use crate::{
    Limiter,
    clock::{Clock, SystemClock},
    config::{self, ConfigErrors, DirectorySource, RuleSource},
    net::{BindError, BoundAddress},
    observe::{Health, Stats, health::Reason, statsd},
    server::{grpc, http},
    settings::{Settings, StopSettings},
    store::{AnyStore, redis::TlsError},
};

/// Time for what was cut to notice, and for the last stats to be sent, before neither is waited for any longer.
const MARGIN: Duration = Duration::from_secs(3);

/// A service that listens, but does not answer yet.
pub struct App {
    context: Context,
    reload: Reload,
    /// Follows the source of the rules; polled once the service runs.
    follow_rules: Pin<Box<dyn Future<Output = ()> + Send>>,
    servers: Servers,
    addresses: Addresses,
    statsd: Option<statsd::StatsdSettings>,
    health_needs_store: bool,
    stop: StopSettings,
    store_thread: Option<StoreThread>,
}

/// What every door is about.
type Context = http::Context<AnyStore>;

/// Where a service listens in truth: with the ports that were free, where any was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC door.
    pub grpc: BoundAddress,
    /// The HTTP door.
    pub http: SocketAddr,
    /// The debug pages.
    pub debug: SocketAddr,
    /// The port for Prometheus alone.
    pub prometheus: Option<SocketAddr>,
}

/// Reads the rules again, whether or not a change was seen.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

/// Why a service did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The first rules are bad.
    #[error("the rules cannot be loaded; FORCE_START_WITHOUT_INITIAL_CONFIG=true starts without them\n{0}")]
    Rules(ConfigErrors),
    /// There is no listening where it was asked for.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A listener does not tell its address.
    #[error("cannot tell where it listens")]
    Address(#[from] io::Error),
    /// The system gives no thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// What TLS to Redis needs is not in order.
    #[error("cannot speak TLS to redis")]
    Tls(#[from] TlsError),
    /// The gRPC services cannot be built.
    #[error(transparent)]
    Grpc(#[from] grpc::ServerError),
    /// A door or a helper ended before it was told to.
    #[error("a part of the service ended")]
    Ended(#[source] Box<dyn Error + Send + Sync>),
}

// === impl App ===

impl App {
    /// Loads the rules and binds every listener.
    pub async fn bind(settings: Settings) -> Result<Self, AppError> {
        Self::bind_with(settings, Arc::new(SystemClock)).await
    }

    /// As [`App::bind`], with decisions as of the time that `clock` shows.
    pub async fn bind_with(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, AppError> {
        let options = config::Options {
            merge_domains: settings.rules.merge_domains,
            ignore_dotfiles: settings.rules.ignore_dotfiles,
        };
        let source = DirectorySource::new(&settings.rules.dir, options);
        Self::bind_with_source(settings, clock, source).await
    }

    /// Like [`App::bind_with`], with the rules of `source` instead of the settings' directory.
    pub async fn bind_with_source(
        settings: Settings,
        clock: Arc<dyn Clock>,
        source: impl RuleSource,
    ) -> Result<Self, AppError> {
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        let stats = Arc::new(Stats::default());
        let (store, store_thread) = store::open(&settings, &clock).await?;
        let limiter = Arc::new(Limiter::new(store, Arc::clone(&stats), settings.limiter.clone()));
        stats.register(&limiter);
        let time_unit = settings.time_unit;
        let headers = settings.response_headers.clone();
        let context = Context { limiter, stats, clock, health: Health::new(), headers, time_unit };
        let mut rules = Rules::new(source, &settings, context.clone());
        rules.load_first().await.map_err(AppError::Rules)?;
        let (reload, follow_rules) = (rules.reload(), Box::pin(rules.follow()));

        let servers = Servers::bind(&settings).await?;
        let addresses = servers.addresses()?;
        let Settings { statsd, stop, redis, .. } = settings;
        let health_needs_store = redis.is_some_and(|redis| redis.health_needs_connection);
        Ok(Self {
            context,
            reload,
            follow_rules,
            servers,
            addresses,
            statsd,
            health_needs_store,
            stop,
            store_thread,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// A handle to have the rules read again.
    #[must_use]
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Serves until `shutdown`, then stops as the settings say.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), AppError> {
        tracing::info!(addresses = %self.addresses, "listening");
        let (closing, closed) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let mut servers = self.servers.serve(&self.context, &closed).await?;
        let Context { limiter, clock, stats, health, .. } = self.context;
        // the last to go
        let _store_thread = self.store_thread;
        let mut helpers = JoinSet::new();
        let store = Arc::clone(&limiter);
        helpers.spawn(sweep::run(limiter, clock));
        helpers.spawn(store_state::follow(Arc::clone(&store), health.clone(), self.health_needs_store));
        helpers.spawn(self.follow_rules);
        let mut reporters = JoinSet::new();
        if let Some(settings) = self.statsd {
            reporters.spawn(statsd::run(settings, stats, turned(ended)));
        }

        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            ended = servers.join_next() => Err(premature(ended)),
            ended = helpers.join_next() => Err(premature(ended.map(|ended| ended.map(Ok)))),
        };
        tracing::info!("stopping");
        health.fail(Reason::Stopping);
        if outcome.is_ok() {
            sleep(self.stop.delay).await;
        }
        closing.send_replace(true);
        drain(servers, self.stop.timeout + MARGIN).await;
        // no more decisions are made: what the others have to know of them goes out
        store.store().close().await;
        ending.send_replace(true);
        drain(reporters, MARGIN).await;
        helpers.shutdown().await;
        outcome
    }
}

/// Waits until `flag` is true, or nobody is left who could make it so.
async fn turned(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|turned| *turned).await;
}

/// Waits for all of `tasks` to end, but not for longer than `within`.
async fn drain<T: 'static>(mut tasks: JoinSet<T>, within: Duration) {
    if timeout(within, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!(tasks = tasks.len(), "parts of the service were cut, for they did not end");
        tasks.shutdown().await;
    }
}

/// What to tell of a task that ended before it was told to.
fn premature(ended: Option<Result<io::Result<()>, JoinError>>) -> AppError {
    AppError::Ended(match ended {
        Some(Ok(Err(error))) => error.into(),
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => "it was not told to".into(),
    })
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

// === impl Addresses ===

/// `grpc=… http=… debug=…`, for people and for scripts.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grpc={} http={} debug={}", self.grpc, self.http, self.debug)?;
        match self.prometheus {
            Some(address) => write!(f, " prometheus={address}"),
            None => Ok(()),
        }
    }
}
