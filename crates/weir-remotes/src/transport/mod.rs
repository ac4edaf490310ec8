//! What the clients of shared stores have in common: connections that are made and remade in the background, and the
//! calls that wait to be sent on them. A [`RemoteProtocol`] says how to connect, and what is sent.
//!
//! A `server` is the handle of one server. It queues calls (`queue`), of which background ones are bounded
//! (`background`), for the `worker` that owns the connection.

mod background;
mod backoff;
mod metrics;
mod protocol;
mod queue;
mod server;
mod state;
mod stream;
mod worker;

pub use self::{
    backoff::Backoff,
    state::{ConnectionStates, ServerState},
};
pub(super) use self::{
    metrics::{TransportMetrics, metrics_of},
    protocol::{Connection, RemoteProtocol, malformed_reply},
    server::ServerConnection,
    stream::{connect_stream, within},
};
