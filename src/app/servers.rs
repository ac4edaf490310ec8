//! All servers. They are bound before any of them accepts connections, so that an address that cannot be bound fails
//! the start.

use std::{io, net::SocketAddr, sync::Arc};

use futures_util::{Stream, stream};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use weir_config::texts;
use weir_server::{
    Certificates, Connections,
    bounds::{Bounds, RequestBounds},
    grpc,
    http::{
        self,
        admin::{AdminParts, AdminTokens, Permission, ProcessFacts, ShownFiles},
        tenant::TenantTokens,
    },
    net::{ConnectionAge, Listener, bind_tcp, raise_open_files},
    resp,
};
use weir_sources::Watch;

use super::{AppContext, addresses::Addresses, error::AppError, shutdown::until_true};
use crate::settings::{GrpcAddress, ListenAddress, Settings};

/// The bytes of all rule files that the admin API shows.
const MAX_TEXTS: usize = 16 << 20;

/// Open files for everything but connections of clients: listeners, Redis, rules, logs.
const RESERVED_FILES: usize = 256;

pub(super) struct ListeningServers {
    grpc: Listener,
    http: TcpListener,
    debug: TcpListener,
    prometheus: Option<TcpListener>,
    redis: Option<Listener>,
    certificates: Option<WatchedCertificates>,
    tokens: Option<(Arc<AdminTokens>, Watch)>,
    tenants: Option<(Arc<TenantTokens>, Watch)>,
}

pub(super) type WatchedCertificates = (Arc<Certificates>, Watch);

/// gRPC, Redis' protocol and the debug port have the same ones. None if none is encrypted.
pub(super) async fn load_certificates(settings: &Settings) -> Result<Option<WatchedCertificates>, AppError> {
    let redis = settings.redis_port.as_ref().and_then(|redis| redis.tls.as_ref());
    let all = [settings.grpc.tls.as_ref(), redis, settings.debug_tls.as_ref()];
    let Some(tls) = all.into_iter().flatten().next().cloned() else { return Ok(None) };
    // first, so that no change is missed
    let watch = Watch::files(&tls.paths());
    let loaded = Certificates::load(tls).await;
    let certificates = loaded.map_err(|source| AppError::Tls { of: "of the gRPC port".into(), source })?;
    Ok(Some((certificates, watch)))
}

/// None without `WEIR_ADMIN_TOKEN_FILE`.
fn load_tokens(settings: &Settings) -> Result<Option<(Arc<AdminTokens>, Watch)>, AppError> {
    let Some(path) = &settings.admin.token_file else { return Ok(None) };
    // first, so that no change is missed
    let watch = Watch::files(std::slice::from_ref(path));
    Ok(Some((AdminTokens::load(path)?, watch)))
}

/// None without `WEIR_TOKEN_KEY_FILE`.
fn load_tenants(settings: &Settings) -> Result<Option<(Arc<TenantTokens>, Watch)>, AppError> {
    let Some(tenants) = settings.tenants.clone() else { return Ok(None) };
    let watch = Watch::files(&tenants.paths());
    Ok(Some((TenantTokens::load(tenants)?, watch)))
}

impl ListeningServers {
    pub(super) async fn bind(
        settings: &Settings,
        certificates: Option<WatchedCertificates>,
    ) -> Result<Self, AppError> {
        let of = |setting| move |source| AppError::Bind { setting, source };
        let prometheus = match &settings.prometheus {
            Some(prometheus) => {
                Some(bind_tcp(socket_addr(prometheus.address)).await.map_err(of("PROMETHEUS_ADDR"))?)
            }
            None => None,
        };
        let grpc = match &settings.grpc.address {
            GrpcAddress::Tcp(address) => {
                Listener::tcp(socket_addr(*address)).await.map_err(of("GRPC_PORT (--grpc-port)"))?
            }
            GrpcAddress::Unix(path) => Listener::unix(path).await.map_err(of("GRPC_UDS"))?,
        };
        let redis = match &settings.redis_port {
            Some(redis) => {
                Some(Listener::tcp(socket_addr(redis.address)).await.map_err(of("WEIR_REDIS_PORT"))?)
            }
            None => None,
        };
        let http = bind_tcp(socket_addr(settings.http)).await.map_err(of("PORT (--port)"))?;
        let debug = bind_tcp(socket_addr(settings.debug)).await.map_err(of("DEBUG_PORT (--debug-port)"))?;
        let (tokens, tenants) = (load_tokens(settings)?, load_tenants(settings)?);
        Ok(Self { grpc, http, debug, prometheus, redis, certificates, tokens, tenants })
    }

    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        Ok(Addresses {
            grpc: self.grpc.address()?,
            http: self.http.local_addr()?,
            debug: self.debug.local_addr()?,
            prometheus: self.prometheus.as_ref().map(TcpListener::local_addr).transpose()?,
            redis: self.redis.as_ref().map(Listener::address).transpose()?,
        })
    }

    /// Until `closed` becomes true. Each task ends when its server's open requests have ended.
    pub(super) async fn serve(
        self,
        settings: &Settings,
        context: &AppContext,
        closed: &watch::Receiver<bool>,
    ) -> Result<JoinSet<io::Result<()>>, AppError> {
        let until = || until_true(closed.clone());
        let AppContext { limiter, clock, stats, headers, tracer, .. } = context;
        let (bounds, drain) = (within_open_files(settings.bounds), settings.stop.timeout);
        let connections = Arc::new(Connections::new(bounds));
        stats.register(&connections);
        let service = grpc::Service::new(limiter.clone(), clock.clone(), stats, headers.clone())
            .with_bounds(bounds.request, Arc::clone(connections.exceeded()))
            .with_tracer(tracer.clone());
        let health = context.health.subscribe();
        let (age, threads) = (
            ConnectionAge { max: settings.grpc.max_age, grace: settings.grpc.max_age_grace },
            settings.grpc.threads,
        );
        let server = grpc::Server::new(service, health, age, threads, Arc::clone(&connections)).await?;
        let mut servers = JoinSet::new();
        let certificates = self.certificates.map(|(certificates, watch)| {
            stats.register(&certificates);
            let follow = Arc::clone(&certificates).follow(Box::pin(changes(watch)));
            servers.spawn(ended_by(follow, until()));
            certificates
        });
        let tokens = self.tokens.map(|(tokens, watch)| {
            servers.spawn(ended_by(Arc::clone(&tokens).follow(Box::pin(changes(watch))), until()));
            tokens
        });
        let certificates = |encrypts: bool| certificates.clone().filter(|_| encrypts);
        let server = server.with_tls(certificates(settings.grpc.tls.is_some()));
        servers.spawn(server.serve(self.grpc, until(), drain));
        if let (Some(listener), Some(redis)) = (self.redis, &settings.redis_port) {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            let service = resp::Service::new(limiter, clock, stats, redis.service, Arc::clone(&connections));
            let service = service.with_tracer(tracer.clone());
            let server = resp::Server::new(service, threads, certificates(redis.tls.is_some()));
            servers.spawn(server.serve(listener, until(), drain));
        }
        let serve =
            |listener, router, tls| http::serve(listener, router, Arc::clone(&connections), tls, until());
        let pages = http::Pages::new(Arc::clone(connections.exceeded()));
        let tenants = self.tenants.map(|(tenants, watch)| {
            servers.spawn(ended_by(Arc::clone(&tenants).follow(Box::pin(changes(watch))), until()));
            tenants
        });
        let router = http::router(context, bounds.request, settings.json, &pages);
        servers.spawn(serve(self.http, router.merge(http::tenant::router(context, tenants)), None));
        let admin = AdminParts {
            permission: Permission::new(settings.admin.clone(), tokens, clock.clone()),
            facts: facts(settings, bounds.request),
            more: Vec::new(),
        };
        servers.spawn(serve(
            self.debug,
            http::debug_router(context, &pages, admin),
            certificates(settings.debug_tls.is_some()),
        ));
        if let (Some(listener), Some(prometheus)) = (self.prometheus, &settings.prometheus) {
            let path = prometheus.path.clone();
            let router = http::metrics_router(&context.stats, path, context.metric_names.clone(), &pages);
            servers.spawn(serve(listener, router, None));
        }
        Ok(servers)
    }
}

fn facts(settings: &Settings, bounds: RequestBounds) -> ProcessFacts {
    let (path, options) = (settings.rules.dir.clone(), settings.rules.files.clone());
    let read = move || texts(&path, &options, MAX_TEXTS).map_err(|error| error.to_string());
    let files = settings.rules.xds.is_none().then(|| ShownFiles(Arc::new(read)));
    ProcessFacts {
        instance: settings.coordination.instance.clone(),
        bounds,
        options: settings.rules.files.clone(),
        files,
    }
}

fn changes(watch: Watch) -> impl Stream<Item = ()> + Send {
    stream::unfold(watch, async |mut watch| {
        watch.changed().await;
        Some(((), watch))
    })
}

async fn ended_by(follow: impl Future<Output = ()>, until: impl Future<Output = ()>) -> io::Result<()> {
    tokio::select! {
        () = follow => {}
        () = until => {}
    }
    Ok(())
}

/// Raises the limit of open files. `bounds` get no more connections than it has room for.
fn within_open_files(bounds: Bounds) -> Bounds {
    let Some(files) = raise_open_files() else { return bounds };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let connections = files.saturating_sub(RESERVED_FILES).max(files / 2).min(bounds.connections);
    if connections < bounds.connections {
        tracing::info!(
            connections,
            files,
            "fewer connections than WEIR_MAX_CONNECTIONS, because of the limit of open files"
        );
    }
    Bounds { connections, ..bounds }
}

fn socket_addr(address: ListenAddress) -> SocketAddr {
    (address.host, address.port).into()
}
