//! Why hits were not acquired.

use std::time::Duration;

use weir_limit::line::Rejection;
use weir_limiter as limiter;

/// Why hits were not acquired. None were taken.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// They cannot be taken in time.
    #[error("the limit leaves no room in time; retry after {retry_after:?}")]
    Timeout {
        /// The `max_wait` with which the call would have been kept, if nobody else leaves the line.
        retry_after: Duration,
    },
    /// They are more than the limit ever admits at once.
    #[error("the hits are more than the limit ever admits at once")]
    Never,
    /// As many callers wait as may.
    #[error("too many callers wait; retry after {retry_after:?}")]
    Full {
        /// As of [`AcquireError::Timeout`].
        retry_after: Duration,
    },
    /// The limiter was closed.
    #[error("the limiter was closed")]
    Closed,
    /// The counters are not in this process. [`Limiter::acquire`](super::Limiter::acquire) with a wait of zero asks.
    #[error("the counters are not in this process: acquire with a wait of zero, which asks their store")]
    MustAsk,
    /// The call is wrong: its domain or its entries are empty, or several limits apply.
    #[error(transparent)]
    Invalid(limiter::AcquireError),
}

// === impl AcquireError ===

impl AcquireError {
    /// Returns the wait after which the hits would be taken, if there is one.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Timeout { retry_after } | Self::Full { retry_after } => Some(*retry_after),
            Self::Never | Self::Closed | Self::MustAsk | Self::Invalid(_) => None,
        }
    }
}

impl From<Rejection> for AcquireError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Timeout { retry_after } => Self::Timeout { retry_after: retry_after.into() },
            Rejection::Full { retry_after } => Self::Full { retry_after: retry_after.into() },
            Rejection::Never => Self::Never,
            Rejection::Closed => Self::Closed,
        }
    }
}
