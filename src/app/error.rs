//! Errors that end the service.

use std::{error::Error, io, time::Duration};

use tokio::task::JoinError;
use weir_config::ConfigErrors;
use weir_disk::DiskError;
use weir_net::tls::TlsError;
use weir_server::{grpc, net::BindError};

/// Why a service did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The initial rules are invalid.
    #[error("cannot load the rules\n{0}\n(FORCE_START_WITHOUT_INITIAL_CONFIG=true starts without rules)")]
    Rules(ConfigErrors),
    /// The defaults for rules from a control plane are invalid.
    #[error("cannot load the defaults of WEIR_XDS_DEFAULTS\n{0}")]
    Defaults(ConfigErrors),
    /// An address cannot be bound.
    #[error("{setting}")]
    Bind {
        /// Where the address comes from.
        setting: &'static str,
        /// The error.
        source: BindError,
    },
    /// The system does not know a listener's address.
    #[error("cannot determine a listener's address")]
    Address(#[from] io::Error),
    /// The system cannot start a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The data on disk cannot be used.
    #[error("cannot use the data directory (WEIR_DATA_DIR): {0}")]
    Disk(#[from] DiskError),
    /// The TLS settings of the gRPC server or the shared store are invalid.
    #[error("cannot set up TLS {of}")]
    Tls {
        /// Of what.
        of: String,
        /// The error.
        source: TlsError,
    },
    /// Redis cannot be reached within `REDIS_STARTUP_MAX_ELAPSED_TIME`.
    #[error("cannot connect to redis within {within:?} (REDIS_STARTUP_MAX_ELAPSED_TIME): {reason}")]
    NoRedis {
        /// The time.
        within: Duration,
        /// The servers without a connection, and their errors.
        reason: String,
    },
    /// The gRPC server cannot be built.
    #[error(transparent)]
    Grpc(#[from] grpc::ServerError),
    /// A server or a background task ended before the shutdown.
    #[error("a server or background task ended unexpectedly")]
    Ended(#[source] Box<dyn Error + Send + Sync>),
}

impl AppError {
    pub(super) fn ended_early(ended: Option<Result<io::Result<()>, JoinError>>) -> Self {
        Self::Ended(match ended {
            Some(Ok(Err(error))) => error.into(),
            Some(Err(error)) => error.into(),
            Some(Ok(Ok(()))) | None => "it returned before the shutdown".into(),
        })
    }
}
