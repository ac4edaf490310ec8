//! The service, put together: what starts and stops, and in which order.
//!
//! Start: rules, limiter, listeners, doors; so that whoever is let in finds everything there. Stop: health fails, and
//! the doors go on for a moment; then they take no more, and what is open ends or is cut; the stats go last.

mod rules;
mod sweep;

use std::{error::Error, fmt, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use self::rules::Rules;
use crate::{
    Limiter,
    clock::{Clock, SystemClock},
    config::ConfigErrors,
    door::{
        grpc::{self, BindError, BoundTo, Listener, bind_tcp},
        http,
    },
    observe::{Health, Stats, health::Reason, statsd},
    settings::Settings,
    store::MemoryStore,
};

/// Time for what was cut to notice, before it is no longer waited for.
const CUT_MARGIN: Duration = Duration::from_secs(1);

/// A service that listens, but does not answer yet.
pub struct App {
    settings: Settings,
    clock: Arc<dyn Clock>,
    limiter: Arc<Limiter<MemoryStore>>,
    stats: Arc<Stats>,
    health: Health,
    rules: Rules,
    grpc: Listener,
    http: TcpListener,
    debug: TcpListener,
    prometheus: Option<TcpListener>,
    addresses: Addresses,
}

/// Where a service listens in truth: with the ports that were free, where any was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC door.
    pub grpc: BoundTo,
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
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        let stats = Arc::new(Stats::default());
        let health = Health::new();
        let store = MemoryStore::new(settings.max_counters);
        let limiter = Arc::new(Limiter::new(store, Arc::clone(&stats), settings.limiter.clone()));
        stats.watch(&limiter);
        let clocked = Arc::clone(&clock);
        let rules = Rules::new(&settings, Arc::clone(&limiter), Arc::clone(&stats), health.clone(), clocked);
        rules.load_first().await.map_err(AppError::Rules)?;

        let grpc = Listener::bind(&settings.grpc.address).await?;
        let http = bind_tcp(settings.http).await?;
        let debug = bind_tcp(settings.debug).await?;
        let prometheus = match &settings.prometheus {
            Some(prometheus) => Some(bind_tcp(prometheus.address).await?),
            None => None,
        };
        let addresses = Addresses {
            grpc: grpc.address()?,
            http: http.local_addr()?,
            debug: debug.local_addr()?,
            prometheus: prometheus.as_ref().map(TcpListener::local_addr).transpose()?,
        };
        Ok(Self {
            settings,
            clock,
            limiter,
            stats,
            health,
            rules,
            grpc,
            http,
            debug,
            prometheus,
            addresses,
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
        self.rules.reload()
    }

    /// Serves until `shutdown`, then stops as the settings say.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), AppError> {
        tracing::info!(addresses = %self.addresses, "listening");
        let stop = self.settings.stop;
        let health = self.health.clone();
        let (closing, closed) = watch::channel(false);
        let (ending, ended) = watch::channel(false);

        let mut helpers = JoinSet::new();
        helpers.spawn(sweep::run(Arc::clone(&self.limiter), Arc::clone(&self.clock)));
        let mut reporters = JoinSet::new();
        if let Some(settings) = self.settings.statsd.clone() {
            reporters.spawn(statsd::run(settings, Arc::clone(&self.stats), turned(ended)));
        }
        let rules = self.rules.clone();
        helpers.spawn(async move { rules.follow().await });
        let mut doors = self.open(closed).await?;

        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            ended = doors.join_next() => Err(premature(ended)),
            ended = helpers.join_next() => Err(premature(ended.map(|ended| ended.map(|()| Ok(()))))),
        };
        tracing::info!("stopping");
        health.fail(Reason::Stopping);
        if outcome.is_ok() {
            sleep(stop.delay).await;
        }
        closing.send_replace(true);
        drain(doors, stop.timeout + CUT_MARGIN).await;
        ending.send_replace(true);
        drain(reporters, CUT_MARGIN).await;
        helpers.shutdown().await;
        outcome
    }

    /// Opens every door, until `closed` turns true.
    async fn open(self, closed: watch::Receiver<bool>) -> Result<JoinSet<io::Result<()>>, AppError> {
        let mut doors = JoinSet::new();
        let service =
            grpc::Service::new(Arc::clone(&self.limiter), Arc::clone(&self.clock), &self.stats);
        let life = grpc::Life {
            age: self.settings.grpc.max_age,
            grace: self.settings.grpc.max_age_grace,
        };
        let server = grpc::Server::new(service, self.health.subscribe(), life).await?;
        let (listener, until, within) = (self.grpc, turned(closed.clone()), self.settings.stop.timeout);
        doors.spawn(async move {
            server.serve(listener, until, within).await;
            Ok(())
        });
        let context = || http::Context {
            limiter: Arc::clone(&self.limiter),
            stats: Arc::clone(&self.stats),
            clock: Arc::clone(&self.clock),
            health: self.health.clone(),
            time_unit: self.settings.time_unit,
        };
        doors.spawn(http::serve(self.http, http::router(context()), turned(closed.clone())));
        doors.spawn(http::serve(self.debug, http::debug_router(context()), turned(closed.clone())));
        if let (Some(listener), Some(prometheus)) = (self.prometheus, self.settings.prometheus) {
            let router = http::metrics_router(&self.stats, prometheus.path, self.settings.time_unit);
            doors.spawn(http::serve(listener, router, turned(closed)));
        }
        Ok(doors)
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
fn premature(ended: Option<Result<io::Result<()>, tokio::task::JoinError>>) -> AppError {
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
