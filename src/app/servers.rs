//! Every door: first all of them are bound, so that what is wrong with one is known before another lets somebody in.

use std::{io, time::Duration};

use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::{Addresses, AppError, Context, turned};
use crate::{
    server::{
        grpc::{self, BindError, Listener, bind_tcp},
        http,
    },
    settings::Settings,
};

/// The doors, bound but closed.
pub(super) struct Servers {
    grpc: Listener,
    http: TcpListener,
    debug: TcpListener,
    /// With the path of the page.
    prometheus: Option<(TcpListener, String)>,
    life: grpc::ConnectionAge,
    /// Threads that serve gRPC.
    threads: usize,
    /// How long gRPC requests may take to end after the doors were closed.
    drain: Duration,
}

impl Servers {
    /// Binds every listener.
    pub(super) async fn bind(settings: &Settings) -> Result<Self, BindError> {
        let prometheus = match &settings.prometheus {
            Some(prometheus) => Some((bind_tcp(prometheus.address).await?, prometheus.path.clone())),
            None => None,
        };
        Ok(Self {
            grpc: Listener::bind(&settings.grpc.address).await?,
            http: bind_tcp(settings.http).await?,
            debug: bind_tcp(settings.debug).await?,
            prometheus,
            life: grpc::ConnectionAge { age: settings.grpc.max_age, grace: settings.grpc.max_age_grace },
            threads: settings.grpc.threads,
            drain: settings.stop.timeout,
        })
    }

    /// Where they are.
    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        let prometheus = self.prometheus.as_ref().map(|(listener, _)| listener.local_addr());
        Ok(Addresses {
            grpc: self.grpc.address()?,
            http: self.http.local_addr()?,
            debug: self.debug.local_addr()?,
            prometheus: prometheus.transpose()?,
        })
    }

    /// Opens them, until `closed` turns true. Each task ends when its door has let out everybody.
    pub(super) async fn open(
        self,
        context: &Context,
        closed: &watch::Receiver<bool>,
    ) -> Result<JoinSet<io::Result<()>>, AppError> {
        let until = || turned(closed.clone());
        let Context { limiter, clock, stats, headers, .. } = context;
        let service = grpc::Service::new(limiter.clone(), clock.clone(), stats, headers.clone());
        let server = grpc::Server::new(service, context.health.subscribe(), self.life, self.threads).await?;

        let mut servers = JoinSet::new();
        let (listener, stop, drain) = (self.grpc, until(), self.drain);
        servers.spawn(server.serve(listener, stop, drain));
        servers.spawn(http::serve(self.http, http::router(context), until()));
        servers.spawn(http::serve(self.debug, http::debug_router(context), until()));
        if let Some((listener, path)) = self.prometheus {
            let router = http::metrics_router(&context.stats, path, context.time_unit);
            servers.spawn(http::serve(listener, router, until()));
        }
        Ok(servers)
    }
}
