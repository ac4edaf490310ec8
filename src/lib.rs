//! weir is a rate limiter for service meshes: an Envoy-compatible rate limit service, and a library with the same
//! limits.
//!
//! A request passes through these modules:
//!
//! ```text
//! server  decodes a protocol into a `limit::Request`
//! limiter finds the rule of each descriptor, has the store decide, records stats
//! limit   is the pure core: rules, algorithms, decisions; no I/O and no clock
//! store   holds the counts: in memory, or in memory in front of Redis
//! server  encodes the `limit::Verdict`
//! ```
//!
//! The [`guide`] shows the library in one page.
//!
//! # Features
//!
//! Without its default features the crate is a library for programs that limit requests in their own process.
//!
//! | feature | adds |
//! | --- | --- |
//! | none | [`limit`], [`Limiter`], [`store::MemoryStore`], [`clock`] |
//! | `yaml` | `config`: rules written in YAML |
//! | `client` | `client`: acquires hits of limits, and waits for them; implies `yaml` |
//! | `tower` | `client::LimitLayer`, which limits a client built with tower; implies `client` |
//! | `coordinated` | `store::coordinated`: counts shared by many instances |
//! | `simulated` | `store::simulated`: a shared store in memory, for simulations and tests; implies `coordinated` |
//! | `redis` | `store::redis`: Redis as the shared store; implies `coordinated` |
//! | `memcached` | `store::memcached`: Memcached as the shared store; implies `coordinated` |
//! | `disk` | `store::disk`: counters in memory and on this instance's disk |
//! | `dns` | the number of instances from DNS, for [`client`]; implies `client` |
//! | `server` (default) | everything that the program `weir` does; implies all others |

#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod command;
#[cfg(feature = "yaml")]
pub mod config;
#[cfg(all(feature = "server", any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "server")]
pub mod grpc_client;
#[cfg(feature = "client")]
pub mod guide;
mod limiter;
#[cfg(feature = "server")]
pub mod net;
pub mod observe;
#[cfg(feature = "server")]
pub mod otlp;
#[cfg(feature = "server")]
pub mod proto;
#[cfg(any(feature = "dns", feature = "remote", feature = "disk"))]
mod runtime;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod settings;
#[cfg(feature = "server")]
pub mod simulate;
#[cfg(feature = "yaml")]
mod spelling;
pub mod store;
#[cfg(feature = "remote")]
pub mod tls;
#[cfg(feature = "server")]
pub mod trace;
#[cfg(feature = "coordinated")]
mod wakeup;
#[cfg(feature = "server")]
pub mod xds;

pub use limiter::{
    AcquireError, Acquired, DecisionSettings, Key, KeyDecision, LimitError, Limiter, Rejection, RejectionLog,
    ReportedRejections, WaiterThread,
};
pub use weir_limit as limit;
