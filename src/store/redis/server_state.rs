//! The state of the connection to one server.

use std::time::Instant;

/// The state of the connection to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The server's address, or the name of the master where sentinels find it.
    pub name: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// The time of the last change of `connected`.
    pub since: Instant,
    /// The last failure.
    pub error: Option<String>,
}
