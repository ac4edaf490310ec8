use std::{path::PathBuf, time::Duration};

use tokio_rustls::rustls::pki_types::ServerName;

use weir_config::RuleDefaults;
use weir_net::{Address, tls::ClientTls};

#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// `CONFIG_GRPC_XDS_SERVER_URL`: the control plane.
    pub server: Address,
    /// `CONFIG_GRPC_XDS_SERVER_USE_TLS` and its files.
    pub tls: Option<XdsTls>,
    /// `CONFIG_GRPC_XDS_NODE_ID`: how the control plane knows this service.
    pub node_id: String,
    /// `CONFIG_GRPC_XDS_NODE_METADATA`: further names and values for it.
    pub node_metadata: Vec<(String, String)>,
    /// `CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS`: names and values of headers, valid ones.
    pub headers: Vec<(String, String)>,
    /// `CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL`: the wait after the first failure to connect.
    pub connect_retry: Duration,
    pub backoff: XdsBackoff,
    /// `WEIR_XDS_RESPONSE_TIMEOUT`: how long a control plane may take to send response headers, and to read a request,
    /// before the stream is opened again; and to send the first rules, before a warning.
    pub response_timeout: Duration,
    /// `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`: the largest message, in bytes. It also bounds the memory of its rules.
    pub max_message: usize,
    /// `MERGE_DOMAIN_CONFIG`: merges the descriptors of resources with the same domain, in the order of their names.
    pub merge_domains: bool,
    /// `WEIR_XDS_ALGORITHM`: defaults for the rules.
    pub defaults: RuleDefaults,
    /// `WEIR_XDS_DEFAULTS`: a file with further defaults, which is watched.
    pub defaults_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct XdsTls {
    /// The files, which are read again for each connection.
    pub files: ClientTls,
    /// `CONFIG_GRPC_XDS_SERVER_TLS_SAN`: the name in the server's certificate, if it is not the host of the server.
    pub server_name: Option<ServerName<'static>>,
}

/// The wait before a client connects again. It doubles with each failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XdsBackoff {
    /// `XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`: the first wait.
    pub initial: Duration,
    /// `XDS_CLIENT_BACKOFF_MAX_INTERVAL`: the longest wait.
    pub max: Duration,
    /// `XDS_CLIENT_BACKOFF_RANDOM_FACTOR`: how much waits vary, from 0 to 1; 0 without `XDS_CLIENT_BACKOFF_JITTER`.
    pub jitter: f64,
}

// === impl XdsBackoff ===

impl XdsBackoff {
    /// After `failures` in a row, at least one. `first` is the wait after one failure, before jitter.
    pub(super) fn wait(&self, first: Duration, failures: u32) -> Duration {
        self.wait_with(first, failures, fastrand::f64())
    }

    fn wait_with(&self, first: Duration, failures: u32, random: f64) -> Duration {
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.max);
        doubled.mul_f64(1.0 + self.jitter * (2.0 * random - 1.0)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_spread() {
        let seconds = Duration::from_secs;
        let backoff = XdsBackoff { initial: seconds(10), max: Duration::from_mins(1), jitter: 0.5 };
        let exact = XdsBackoff { jitter: 0.0, ..backoff };
        for (failures, expected) in [(1, 10), (2, 20), (3, 40), (4, 60), (u32::MAX, 60)] {
            assert_eq!(exact.wait(seconds(10), failures), seconds(expected));
        }
        assert_eq!(backoff.wait_with(seconds(10), 1, 0.0), seconds(5));
        assert_eq!(backoff.wait_with(seconds(10), 1, 1.0), seconds(15));
        assert_eq!(backoff.wait_with(seconds(10), 9, 1.0), seconds(60));
        let waits: Vec<Duration> = (0..50).map(|_| backoff.wait(seconds(10), 1)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
