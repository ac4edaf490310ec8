use std::{error::Error, io, time::Duration};

use tokio::task::JoinError;
use weir_config::ConfigErrors;
use weir_disk::DiskError;
use weir_net::tls::TlsError;
use weir_server::{grpc, http::SecretFileError, net::BindError};

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("cannot load the rules\n{0}\n(FORCE_START_WITHOUT_INITIAL_CONFIG=true starts without rules)")]
    Rules(ConfigErrors),
    #[error("cannot load the defaults of WEIR_XDS_DEFAULTS\n{0}")]
    Defaults(ConfigErrors),
    #[error("{setting}")]
    Bind { setting: &'static str, source: BindError },
    #[error("cannot determine a listener's address")]
    Address(#[from] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("cannot use the data directory (WEIR_DATA_DIR): {0}")]
    Disk(#[from] DiskError),
    #[error("cannot set up TLS {of}")]
    Tls {
        /// Of what.
        of: String,
        source: TlsError,
    },
    #[error("cannot connect to redis within {within:?} (REDIS_STARTUP_MAX_ELAPSED_TIME): {reason}")]
    NoRedis {
        within: Duration,
        /// The servers without a connection, and their errors.
        reason: String,
    },
    #[error(transparent)]
    Tokens(#[from] SecretFileError),
    #[error(transparent)]
    Grpc(#[from] grpc::ServerError),
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
