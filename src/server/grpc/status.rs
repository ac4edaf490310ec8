//! The mapping of errors to gRPC statuses.

use tonic::Status;

use super::decode::DecodeError;
use crate::{LimitError, server::connections::TooManyBytes};

/// Maps every error to Unknown with the error's text, like envoyproxy/ratelimit: callers may depend on the code. A
/// request that exceeds a bound of weir's own is like one with too many parts.
impl From<LimitError> for Status {
    fn from(error: LimitError) -> Self {
        match error {
            LimitError::TooManyPatterns(_) => Self::resource_exhausted(error.to_string()),
            _ => Self::unknown(error.to_string()),
        }
    }
}

/// Maps errors of the caller, which a retry does not change. Every implementation of gRPC reports a malformed message
/// as Internal. An invalid override has no code in the reference, which panics; it is `InvalidArgument` here. A request
/// with too many parts is like a message that is too large.
impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Self {
        match &error {
            DecodeError::Malformed(_) => Self::internal(error.to_string()),
            DecodeError::Conversion(_) => Self::invalid_argument(error.to_string()),
            DecodeError::TooLarge(_) => Self::resource_exhausted(error.to_string()),
        }
    }
}

/// Maps a bound on what a connection holds, which a later retry may not meet.
impl From<TooManyBytes> for Status {
    fn from(error: TooManyBytes) -> Self {
        Self::resource_exhausted(error.to_string())
    }
}
