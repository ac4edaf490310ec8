//! The address of a server, and the wait before connecting to it again.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A host and a port.
    Tcp(Arc<str>, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The wait before connecting again. It doubles with each failure, less up to a quarter at random, to spread instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure; for Redis `REDIS_STARTUP_INITIAL_INTERVAL`.
    pub initial: Duration,
    /// The longest wait; for Redis `REDIS_STARTUP_MAX_INTERVAL`.
    pub max: Duration,
}

// === impl Address ===

impl Address {
    /// Returns the address of a host and a port.
    #[must_use]
    pub fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }

    /// Parses `host`, `host:port` or `[::1]:port`, with the port `default`.
    #[must_use]
    pub fn parse(text: &str, default: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed.split_once(']')?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port > 0))?;
        let plain = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@,".contains(c));
        plain.then(|| Self::tcp(host, port))
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

// === impl Backoff ===

impl Backoff {
    /// `failures` in a row, at least one. `random` is a random number.
    pub(super) fn wait(self, failures: u32, random: u64) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let longest = doubled.min(self.max);
        // 16 bits spread instances well enough
        let share = u32::try_from(random & 0xffff).unwrap_or_default();
        longest.saturating_sub(longest / 4 * share / 0x1_0000)
    }
}

/// Short waits, because an attempt to connect costs little and every decision without the store is less exact.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(50), max: Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(1, 0), Duration::from_millis(50));
        assert_eq!(backoff.wait(3, 0), Duration::from_millis(200));
        assert_eq!(backoff.wait(u32::MAX, 0), Duration::from_secs(1));
        for random in [1, 0xffff, u64::MAX] {
            let wait = backoff.wait(9, random);
            assert!(wait > Duration::from_millis(749) && wait < Duration::from_secs(1), "{wait:?}");
        }
    }
}
