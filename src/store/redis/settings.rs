//! What Redis there is, and how it is spoken to: resolved, and safe to print.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

/// A Redis that counts are shared through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where counts are kept.
    pub main: Endpoint,
    /// `REDIS_PERSECOND`: where those of limits by the second are kept, if elsewhere.
    pub per_second: Option<Endpoint>,
    /// `CACHE_KEY_PREFIX`: what every key begins with.
    pub prefix: Box<str>,
    /// `EXPIRATION_JITTER_MAX_SECONDS`: a key outlives its use by up to so many seconds, this number excluded, so that
    /// not all keys of a window expire at once.
    pub jitter_seconds: u64,
    /// How long to wait before trying again to connect.
    pub backoff: Backoff,
    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`: without a connection the service is not healthy.
    pub health_needs_connection: bool,
}

/// One Redis, however many servers it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is.
    pub place: Place,
    /// `REDIS_AUTH`, or of the URL.
    pub auth: Option<Auth>,
    /// `REDIS_TLS`, or of the URL.
    pub tls: Option<Tls>,
    /// The number of the database, of the URL; always 0 in a cluster.
    pub database: i64,
    /// `REDIS_TIMEOUT`: within this every command is answered, and every connection made, or given up.
    pub timeout: Duration,
}

/// Where a Redis is: `REDIS_TYPE` and `REDIS_URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One server.
    Single(Address),
    /// Wherever the sentinels say that the master is.
    Sentinel {
        /// What they call it.
        master: String,
        /// At least one.
        sentinels: Vec<Address>,
        /// `REDIS_SENTINEL_AUTH`.
        auth: Option<Auth>,
    },
    /// A cluster, known by some of its nodes: at least one.
    Cluster(Vec<Address>),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// On a port.
    Tcp(Arc<str>, u16),
    /// On a unix socket.
    Unix(PathBuf),
}

/// Who weir says that it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// None is Redis' default user.
    pub user: Option<String>,
    /// Never printed.
    pub password: String,
}

/// How a connection is encrypted. The files are read for every connection anew, so that they can be renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `REDIS_TLS_CACERT`: who may have signed the server's certificate, beside those that the system trusts.
    pub ca: Option<PathBuf>,
    /// `REDIS_TLS_CLIENT_CERT` and `REDIS_TLS_CLIENT_KEY`.
    pub client: Option<(PathBuf, PathBuf)>,
    /// `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION`: the certificate may be for another name.
    pub any_name: bool,
}

/// How long to wait before trying again: twice as long each time, and up to a quarter less, so that not all instances try
/// at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// `REDIS_STARTUP_INITIAL_INTERVAL`: after the first failure.
    pub initial: Duration,
    /// `REDIS_STARTUP_MAX_INTERVAL`: at most.
    pub max: Duration,
}

// === impl RedisSettings ===

impl RedisSettings {
    /// One server at `address`, and everything else as it is without a word.
    #[must_use]
    pub fn single(address: Address) -> Self {
        Self {
            main: Endpoint::new(Place::Single(address)),
            per_second: None,
            prefix: Box::default(),
            jitter_seconds: 300,
            backoff: Backoff::default(),
            health_needs_connection: false,
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The Redis at `place`, without authentication and TLS.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place, auth: None, tls: None, database: 0, timeout: Duration::from_secs(10) }
    }
}

// === impl Address ===

impl Address {
    /// The port of a host.
    #[must_use]
    pub fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

// === impl Auth ===

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("user", &self.user).finish_non_exhaustive()
    }
}

// === impl Backoff ===

impl Backoff {
    /// How long to wait after so many failures in a row, at least one; `draw` is any random number.
    pub(super) fn wait(self, failures: u32, draw: u64) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let longest = doubled.min(self.max);
        // 16 bits are plenty to tell instances apart
        let share = u32::try_from(draw & 0xffff).unwrap_or_default();
        longest.saturating_sub(longest / 4 * share / 0x1_0000)
    }
}

/// Short, for every try is cheap and every failed decision is not.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(50), max: Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(1, 0), Duration::from_millis(50));
        assert_eq!(backoff.wait(3, 0), Duration::from_millis(200));
        assert_eq!(backoff.wait(u32::MAX, 0), Duration::from_secs(1));
        for draw in [1, 0xffff, u64::MAX] {
            let wait = backoff.wait(9, draw);
            assert!(wait > Duration::from_millis(749) && wait < Duration::from_secs(1), "{wait:?}");
        }
    }

    #[test]
    fn passwords_are_not_printed() {
        let auth = Auth { user: Some("weir".into()), password: "s3cret".into() };
        let endpoint =
            Endpoint { auth: Some(auth), ..Endpoint::new(Place::Single(Address::tcp("redis", 6379))) };
        let printed = format!("{endpoint:?}");
        assert!(printed.contains("weir") && !printed.contains("s3cret"), "{printed}");
    }
}
