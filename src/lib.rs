//! The program `weir`: its command line, its settings, and what they start. The parts are crates of their own, whose
//! names here are those of their subjects.

pub mod app;
pub mod command;
#[cfg(any(all(test, debug_assertions), fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod settings;
pub mod simulate;

pub use weir_limit as limit;
pub use weir_limiter::{self as limiter, *};

pub use weir_client as client;
pub use weir_proto as proto;
pub use weir_server as server;
pub use weir_server::net;
pub use weir_sources::xds;

pub use weir_export::{otlp, trace};
pub use weir_net::{grpc_client, tls};
pub use weir_store::clock;

/// Rule files.
pub mod config {
    pub use weir_config::*;
    pub use weir_sources::{DirectorySource, RuleSource, Watch};
}

/// What weir counts, and how that is shown.
pub mod observe {
    pub use weir_export::{log, prometheus, snapshot, statsd};
    pub use weir_observe::*;
    pub use weir_server::health::{self, Health};
}

/// The stores.
pub mod store {
    pub use weir_client::{AnyStore, StoreThread};
    pub use weir_coordinate as coordinated;
    pub use weir_coordinate::simulated;
    pub use weir_disk as disk;
    pub use weir_net::dns;
    pub use weir_remotes::{AnyRemote, memcached, redis};
    pub use weir_store::*;
}
