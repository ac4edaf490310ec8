//! The settings of Redis: resolved, and safe to print.

use std::{fmt, time::Duration};

use super::connection::TLS_NAMES;
use crate::transport::Backoff;
use weir_net::{
    Address,
    tls::{ClientTls, ClientTlsNames},
};
use weir_store::name::KeySettings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// The Redis of all counters that are not in `per_second`.
    pub main: RedisEndpoint,
    /// `REDIS_PERSECOND`: the Redis of limits with a period of one second, if it is another one.
    pub per_second: Option<RedisEndpoint>,
    pub keys: KeySettings,
    pub backoff: Backoff,
    /// `REDIS_STARTUP_MAX_ELAPSED_TIME`: the service must connect within this to start; none to start without.
    pub connect_within: Option<Duration>,
}

/// One Redis, of one server or of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisEndpoint {
    pub topology: Topology,
    /// `REDIS_AUTH`, or from the URL.
    pub auth: Option<Auth>,
    /// `REDIS_TLS`, or from the URL: except for unix sockets. The files are read again for every connection.
    pub tls: Option<ClientTls>,
    /// The database number from the URL; always 0 in a cluster.
    pub database: i64,
    /// `REDIS_TIMEOUT`: the longest time for one command, and for making one connection.
    pub timeout: Duration,
    /// `REDIS_` or `REDIS_PERSECOND_`: begins the names of the variables that it was read from, for messages.
    pub variables: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Server,
    Sentinel,
}

/// The servers of a Redis, and how to find them: `REDIS_TYPE` and `REDIS_URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    Single(Address),
    Sentinel {
        master: String,
        /// The sentinels, at least one.
        sentinels: Vec<Address>,
        /// `REDIS_SENTINEL_AUTH`.
        auth: Option<Auth>,
    },
    /// A cluster, by the addresses of some of its nodes: at least one.
    Cluster(Vec<Address>),
}

#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// The user, or none for Redis' default user.
    pub user: Option<String>,
    /// The password, which `Debug` does not print.
    pub password: String,
}

// === impl RedisSettings ===

impl RedisSettings {
    /// Returns the settings for one server at `address`, with defaults for everything else.
    pub fn single(address: Address) -> Self {
        Self {
            main: RedisEndpoint::new(Topology::Single(address)),
            per_second: None,
            keys: KeySettings::default(),
            backoff: Backoff::default(),
            connect_within: None,
        }
    }

    /// Both have the same files.
    pub(crate) fn tls(&self) -> Option<(&ClientTls, ClientTlsNames)> {
        let mut endpoints = [&self.main].into_iter().chain(&self.per_second);
        endpoints.find_map(|endpoint| Some((endpoint.tls.as_ref()?, TLS_NAMES)))
    }
}

// === impl RedisEndpoint ===

impl RedisEndpoint {
    pub fn new(topology: Topology) -> Self {
        let timeout = Duration::from_secs(10);
        Self { topology, auth: None, tls: None, database: 0, timeout, variables: "REDIS_" }
    }

    pub(super) fn auth(&self, login: Login) -> Option<&Auth> {
        match (login, &self.topology) {
            (Login::Server, _) => self.auth.as_ref(),
            (Login::Sentinel, Topology::Sentinel { auth, .. }) => auth.as_ref(),
            (Login::Sentinel, _) => None,
        }
    }

    /// Adds the variable to correct if the server has refused the credentials or misses some.
    pub(super) fn with_login(&self, error: String, login: Login) -> String {
        const REFUSED: [&str; 5] = [
            "WRONGPASS",
            "NOAUTH",
            // Redis 5, and what the client says with RESP2
            "invalid password",
            "no password is set",
            "Password authentication failed",
        ];
        if !REFUSED.iter().any(|refused| error.contains(refused)) {
            return error;
        }
        let (prefix, auth) = (self.variables, if login == Login::Server { "AUTH" } else { "SENTINEL_AUTH" });
        let right = match self.auth(login) {
            Some(_) => format!("correct {prefix}{auth}, or the user and password in {prefix}URL"),
            None => format!("set {prefix}{auth} to the password, or to user:password"),
        };
        format!("{error} ({right})")
    }
}

// === impl Auth ===

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        let auth = Auth { user: Some("weir".into()), password: "s3cret".into() };
        let endpoint = RedisEndpoint {
            auth: Some(auth),
            ..RedisEndpoint::new(Topology::Single(Address::tcp("redis", 6379)))
        };
        let printed = format!("{endpoint:?}");
        assert!(printed.contains("weir") && !printed.contains("s3cret"), "{printed}");
    }
}
