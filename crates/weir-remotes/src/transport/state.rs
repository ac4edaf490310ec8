use std::time::Instant;

use weir_observe::text::shortened;

const MAX_TEXT: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The server's address, or the name of the master where sentinels find it.
    pub name: String,
    pub connected: bool,
    /// The time of the last change of `connected`.
    pub since: Instant,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStates {
    /// One for each known server; none in a cluster whose slots are not known yet.
    pub servers: Vec<ServerState>,
    /// The error of the last look-up, while the servers of a cluster are not known.
    pub error: Option<String>,
    /// Whether the service is healthy with one of them: `on_store_failure` decides for the keys of the others.
    pub one_is_enough: bool,
}

// === impl ConnectionStates ===

impl ConnectionStates {
    pub fn is_connected(&self) -> bool {
        self.error.is_none() && !self.servers.is_empty() && self.servers.iter().all(|server| server.connected)
    }

    pub fn has_failed(&self) -> bool {
        self.error.is_some() || self.servers.iter().any(|server| !server.connected && server.error.is_some())
    }

    /// Returns the servers without a connection and their errors, for people: at most 1,000 characters.
    pub fn failures(&self) -> String {
        let of_server = |server: &ServerState| match &server.error {
            Some(error) if error.starts_with(&server.name) => error.clone(),
            Some(error) => format!("{}: {error}", server.name),
            None => format!("{}: no connection yet", server.name),
        };
        let servers = self.servers.iter().filter(|server| !server.connected).map(of_server);
        // the first look-up of a cluster
        let unknown =
            (self.servers.is_empty() && self.error.is_none()).then(|| "no server has replied yet".to_owned());
        let failures = servers.chain(self.error.clone()).chain(unknown).collect::<Vec<_>>().join("; ");
        shortened(&failures, MAX_TEXT).into_owned()
    }
}
