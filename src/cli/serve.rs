//! `weir serve`: resolves the settings, starts the service, and handles signals.

use std::{error::Error, io, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Level;
use weir::{
    app::{App, Reload},
    settings::{Flags, ServiceEnvironment, Settings},
};
use weir_export::log::{self, LogFormat};

use super::arguments::warn_of_ignored;

/// Lines have at most 80 characters, since a wrapped line loses its indentation.
pub(super) const HELP: &str = "\
Environment variables, with their defaults. A flag takes precedence over its
variable. All variables of envoyproxy/ratelimit are recognized.
  Rules      RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY (config),
             RUNTIME_IGNOREDOTFILES, MERGE_DOMAIN_CONFIG,
             FORCE_START_WITHOUT_INITIAL_CONFIG,
             HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
  xDS        CONFIG_TYPE (FILE; or GRPC_XDS_SOTW),
             CONFIG_GRPC_XDS_SERVER_URL (localhost:18000), _NODE_ID (default),
             _NODE_METADATA, _CLIENT_ADDITIONAL_HEADERS, _SERVER_USE_TLS,
             _SERVER_TLS_CACERT, _SERVER_TLS_SAN, _CLIENT_TLS_CERT,
             _CLIENT_TLS_KEY, _SERVER_CONNECT_RETRY_INTERVAL (3s);
             XDS_CLIENT_BACKOFF_INITIAL_INTERVAL (10s), _MAX_INTERVAL (60s),
             _RANDOM_FACTOR (0.5), _JITTER (true);
             XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES (4 MiB);
             WEIR_XDS_ALGORITHM, WEIR_XDS_DEFAULTS (for rules that come so),
             WEIR_XDS_RESPONSE_TIMEOUT (30s)
  Listening  HOST, PORT, DEBUG_HOST, DEBUG_PORT, GRPC_HOST, GRPC_PORT, GRPC_UDS,
             GRPC_MAX_CONNECTION_AGE (24h), GRPC_MAX_CONNECTION_AGE_GRACE (1h),
             WEIR_JSON (on; or off, loopback: who may use /json. Off if
             clients of gRPC need certificates),
             WEIR_WORKERS (gRPC threads; one per core)
  TLS        GRPC_SERVER_USE_TLS, GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY,
             GRPC_CLIENT_TLS_CACERT (clients need a certificate),
             GRPC_CLIENT_TLS_SAN (DNS names or URIs, of which they need one)
  Redis port WEIR_REDIS_PORT (off; true: 9049) serves Redis' protocol:
             WEIR_REDIS_HOST, WEIR_REDIS_AUTH (password, or user:password),
             WEIR_REDIS_TLS (as gRPC), WEIR_REDIS_RESET (false)
  Replies    SHADOW_MODE, QUOTA_MODE, RESPONSE_DYNAMIC_METADATA,
             LIMIT_RESPONSE_HEADERS_ENABLED, LIMIT_LIMIT_HEADER,
             LIMIT_REMAINING_HEADER, LIMIT_RESET_HEADER,
             WEIR_RESPONSE_HEADERS (any of reference, x-ratelimit, ietf,
             retry-after), STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT,
             NEAR_LIMIT_RATIO (0.8),
             WEIR_RULE_METADATA (false; true: rejections name their rule)
  Stats      USE_STATSD, STATSD_HOST, STATSD_PORT (8125), STATSD_PROTOCOL (tcp),
             USE_DOG_STATSD, USE_DOG_STATSD_MOGRIFIERS,
             DOG_STATSD_MOGRIFIER_*, EXTRA_TAGS, STATS_FLUSH_INTERVAL (10s),
             WEIR_STATSD_GAUGES (false; true: StatsD gets gauges, too),
             DISABLE_STATS, USE_PROMETHEUS, PROMETHEUS_ADDR (:9090),
             PROMETHEUS_PATH (/metrics), PROMETHEUS_MAPPER_YAML,
             PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS
  Log        LOG_LEVEL (warn), LOG_FORMAT (text),
             WEIR_LOG_REJECTIONS (sampled: the first of each rule and minute; or
             off, all), WEIR_LOG_VALUES (false; true: with descriptors' values),
             WEIR_HOT_KEYS (shown; or off, masked: values on the page /hot)
  Store      BACKEND_TYPE (redis if REDIS_URL is set; or memcache if
             MEMCACHE_HOST_PORT or MEMCACHE_SRV is set; or disk if
             WEIR_DATA_DIR is set; else memory),
             WEIR_MAX_COUNTERS (500000), WEIR_MAX_COUNTER_BYTES (128MiB),
             CACHE_KEY_PREFIX,
             EXPIRATION_JITTER_MAX_SECONDS (300),
             WEIR_UNAMBIGUOUS_KEYS (false; true: no keys of the reference),
             REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
  Limits     WEIR_MAX_CONNECTIONS (4096), WEIR_MAX_BUFFERED_BYTES (96MiB),
             WEIR_MAX_DESCRIPTORS (10000), WEIR_MAX_ENTRIES (50000),
             WEIR_REQUEST_TIMEOUT (30s), WEIR_SEND_TIMEOUT (20s),
             WEIR_MAX_WAIT (60s), WEIR_MAX_WAITERS (1000000),
             WEIR_MAX_WAITERS_PER_KEY (100000)
  Redis      REDIS_URL, REDIS_TYPE (SINGLE; or SENTINEL, CLUSTER),
             REDIS_SOCKET_TYPE (tcp), REDIS_AUTH, REDIS_SENTINEL_AUTH,
             REDIS_TIMEOUT (10s), REDIS_TLS, REDIS_TLS_CACERT,
             REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY,
             REDIS_TLS_SKIP_HOSTNAME_VERIFICATION,
             REDIS_STARTUP_INITIAL_INTERVAL (50ms),
             REDIS_STARTUP_MAX_INTERVAL (1s),
             REDIS_STARTUP_MAX_ELAPSED_TIME (0: start without Redis; else exit
             if there is no connection within this), REDIS_PERSECOND, and with
             it REDIS_PERSECOND_URL, _TYPE, _SOCKET_TYPE, _AUTH,
             _SENTINEL_AUTH, _TIMEOUT, _TLS
  Memcached  MEMCACHE_HOST_PORT (one:11211,two:11211), or MEMCACHE_SRV and
             MEMCACHE_SRV_REFRESH (0: never); MEMCACHE_TLS,
             MEMCACHE_TLS_CACERT, MEMCACHE_TLS_CLIENT_CERT,
             MEMCACHE_TLS_CLIENT_KEY, MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
  Disk       WEIR_DATA_DIR (the directory), WEIR_DISK_SYNC (interval; or
             always, os), WEIR_DISK_DAMAGE (refuse; or continue),
             WEIR_DISK_MAX_BYTES (no limit); WEIR_SYNC_INTERVAL,
             WEIR_DECISION_BUDGET, WEIR_ON_STORE_FAILURE as below
  Instances  WEIR_COORDINATION (auto; or local, interval, lease, strict,
             split),
             WEIR_SYNC_INTERVAL (100ms), WEIR_DECISION_BUDGET (15ms),
             WEIR_ON_STORE_FAILURE (local; or allow, deny),
             LOCAL_CACHE_SIZE_IN_BYTES (0 disables the cache, any other size
             enables it)
  Stopping   WEIR_STOP_DELAY (1s), WEIR_STOP_TIMEOUT (30s)

Signals:
  SIGTERM, SIGINT  stop gracefully; a second one stops immediately
  SIGHUP           reload the rules

Examples:
  weir                                     serve the rules of ./config
  weir serve --config /etc/weir --log-level info
  REDIS_URL=redis:6379 weir serve          share the counts through Redis
  WEIR_DATA_DIR=/var/lib/weir weir serve   keep the counts across restarts
  weir check /etc/weir
  weir call --domain shop hello=world";

pub(super) fn run(flags: &Flags, ignored: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let settings = Settings::resolve(flags, &ServiceEnvironment::read()?)?;
    log::init(&settings.log.level, settings.log.format)?;
    warn_of_ignored(ignored);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(settings));
    // nothing is left to do but work that cannot be cancelled, such as a look-up of a name
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(settings: Settings) -> Result<(), Box<dyn Error>> {
    let format = settings.log.format;
    // first, so that a signal during the start stops the service gracefully
    let mut signals = Signals::new()?;
    let app = tokio::select! {
        app = App::bind(settings) => app?,
        // the start may wait for Redis
        () = signals.stop() => return Ok(()),
    };
    // at every log level: users and scripts need the addresses
    let addresses = app.addresses();
    log::print(format, Level::INFO, "listening", &addresses.named());
    let shutdown = signals.until_stop(app.reload(), format);
    app.run(shutdown).await?;
    Ok(())
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Reloads the rules on each SIGHUP, until SIGTERM or SIGINT. A second one of those exits immediately.
    async fn until_stop(mut self, reload: Reload, format: LogFormat) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                _ = self.hang_up.recv() => reload.now(),
            }
        }
        tokio::spawn(async move {
            self.stop().await;
            log::print(format, Level::INFO, "stopped immediately", &[]);
            std::process::exit(1);
        });
    }
}
