//! The lifecycle of the service: the order in which its parts start and stop.
//!
//! Start: rules, limiter, listeners, servers, so that the first request finds everything ready. Stop: health fails
//! while the servers continue for `StopSettings::delay`; then they accept no more connections, callers that wait are
//! rejected, and open requests end or are aborted; then the store flushes its counts, and traces are sent; the stats go
//! last, to StatsD and to the collector of metrics.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::future::join;
use tokio::{sync::watch, task::JoinSet, time::sleep};
use weir_client::StoreThread;
use weir_export::{
    otlp::{self, ExportThread},
    prometheus::MetricNames,
    statsd, trace,
};
use weir_limiter::{Limiter, ReportedRejections, WaiterThread};
use weir_observe::Stats;
use weir_recording::RecordingOrder;
use weir_remotes::RemoteSettings;
use weir_server::{Health, RejectionLogger, health::Reason};
use weir_sources::{DirectorySource, RuleSource, xds::XdsSource};
use weir_store::{
    Store as _,
    clock::{Clock, SystemClock},
};

use super::{
    AppContext,
    addresses::Addresses,
    clock::ClockSteps,
    error::AppError,
    expiry::CertificateExpiry,
    metric_names::metric_names,
    reload::Reload,
    rules::Rules,
    servers::{ListeningServers, load_certificates},
    shutdown::{drain, until_true},
    store, store_state, sweep,
    timezones::TimezoneDatabaseInfo,
};
use crate::settings::Settings;

/// How much longer than its own timeout a task may take to end, before it is aborted.
const MARGIN: Duration = Duration::from_secs(3);

/// A service whose listeners are bound and that does not accept connections yet.
pub struct App {
    context: AppContext,
    reload: Reload,
    follow_rules: Pin<Box<dyn Future<Output = ()> + Send>>,
    servers: ListeningServers,
    expiry: Arc<CertificateExpiry>,
    addresses: Addresses,
    settings: Settings,
    store_thread: Option<StoreThread>,
    exporter: Option<ExportThread>,
}

impl App {
    pub async fn bind(settings: Settings) -> Result<Self, AppError> {
        Box::pin(Self::bind_with(settings, Arc::new(SystemClock))).await
    }

    pub async fn bind_with(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, AppError> {
        if let Some(xds) = settings.rules.xds.clone() {
            let source = XdsSource::start(xds).map_err(AppError::Defaults)?;
            return Self::bind_with_source(settings, clock, source).await;
        }
        let source = DirectorySource::new(&settings.rules.dir, settings.rules.files.clone());
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
        // before anything that may wait
        let certificates = load_certificates(&settings).await?;
        let stats = Arc::new(Stats::default());
        if settings.dots_are_replaced {
            stats.replace_dots();
        }
        let server = certificates.as_ref().map(|(certificates, _)| Arc::clone(certificates));
        let expiry = Arc::new(CertificateExpiry::new(&settings, server));
        stats.register(&expiry);
        let (store, store_thread) = store::open(&settings, &clock).await?;
        if let Some(room) = store.wait_room() {
            room.set_bounds(settings.waits);
        }
        let is_sampled = settings.limiter.reported_rejections == ReportedRejections::Sampled;
        let rejections = RejectionLogger::new(settings.log.values, is_sampled);
        let limiter = Limiter::new(store, Arc::clone(&stats), settings.limiter.clone());
        let limiter = Arc::new(limiter.with_rejection_log(Arc::new(rejections)));
        stats.register(&limiter);
        if let Some(keep) = settings.limiter.recording.keep {
            limiter.recorder().start(RecordingOrder { keep, ..RecordingOrder::default() }, clock.now());
        }
        let metric_names = metric_names(&settings);
        if let MetricNames::Mapped(mapper) = &metric_names
            && let Some(refinement) = mapper.refinement()
        {
            // before the servers make the histograms
            stats.refine(refinement);
        }
        let headers = settings.response_headers.clone();
        let started = settings.trace.clone().map(|settings| trace::start(settings, &stats));
        let (tracer, exporter) = started.transpose().map_err(AppError::Thread)?.unzip();
        let health = Health::new();
        let audit = Arc::default();
        let context = AppContext { limiter, stats, clock, health, headers, tracer, metric_names, audit };
        source.register(&context.stats);
        let mut rules = Rules::new(source, &settings, context.clone());
        rules.load_first().await.map_err(AppError::Rules)?;
        if settings.health_needs_store {
            context.health.fail(Reason::Store);
        }
        let within = settings.shared.as_ref().and_then(RemoteSettings::connect_within);
        store_state::first_connection(context.limiter.store(), within).await?;
        let (reload, follow_rules) = (rules.reload(), Box::pin(rules.follow()));

        let servers = ListeningServers::bind(&settings, certificates).await?;
        let addresses = servers.addresses()?;
        Ok(Self {
            context,
            reload,
            follow_rules,
            servers,
            expiry,
            addresses,
            settings,
            store_thread,
            exporter,
        })
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), AppError> {
        tracing::info!(addresses = %self.addresses, "listening");
        let timezones = Arc::new(TimezoneDatabaseInfo);
        self.context.stats.register(&timezones);
        let (close_servers, closed) = watch::channel(false);
        let (end_reporters, reporters_end) = watch::channel(false);
        let mut servers = self.servers.serve(&self.settings, &self.context, &closed).await?;
        let AppContext { limiter, clock, stats, health, metric_names, .. } = self.context;
        let health_needs_store = self.settings.health_needs_store;
        let waiters = WaiterThread::start(&limiter, Arc::clone(&clock)).map_err(AppError::Thread)?;
        let stopped = Arc::clone(&clock);
        // dropped last
        let _store_thread = self.store_thread;
        let mut background = JoinSet::new();
        let clock_steps = Arc::<ClockSteps>::default();
        stats.register(&clock_steps);
        background.spawn(clock_steps.follow(Arc::clone(&limiter), Arc::clone(&clock)));
        background.spawn({
            let (limiter, clock) = (Arc::clone(&limiter), Arc::clone(&clock));
            async move { limiter.follow_announcements(&*clock).await }
        });
        background.spawn(sweep::run(Arc::clone(&limiter), clock));
        background.spawn(sweep::forget_names(Arc::clone(&stats)));
        background.spawn(store_state::follow(Arc::clone(&limiter), health.clone(), health_needs_store));
        background.spawn(self.follow_rules);
        background.spawn(self.expiry.follow());
        let start = |settings| otlp::start_metrics(settings, Arc::clone(&stats), metric_names);
        let metrics = self.settings.otlp_metrics.map(start).transpose().map_err(AppError::Thread)?;
        let mut reporters = JoinSet::new();
        if let Some(settings) = self.settings.statsd {
            reporters.spawn(statsd::run(settings, stats, until_true(reporters_end)));
        }

        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            ended = servers.join_next() => Err(AppError::ended_early(ended)),
            ended = background.join_next() => Err(AppError::ended_early(ended.map(|ended| ended.map(Ok)))),
        };
        tracing::info!("stopping");
        health.fail(Reason::Stopping);
        if outcome.is_ok() {
            sleep(self.settings.stop.delay).await;
        }
        close_servers.send_replace(true);
        // their calls would not end before their limits let them
        limiter.close_waiters(stopped.now());
        drain(servers, self.settings.stop.timeout + MARGIN).await;
        // after the last decision: flushes counts and returns leases
        let flush_traces = async {
            if let Some(exporter) = self.exporter {
                exporter.close().await;
            }
        };
        join(limiter.store().close(), flush_traces).await;
        end_reporters.send_replace(true);
        let flush_metrics = async {
            if let Some(metrics) = metrics {
                metrics.close().await;
            }
        };
        join(drain(reporters, MARGIN), flush_metrics).await;
        background.shutdown().await;
        drop(waiters);
        outcome
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}
