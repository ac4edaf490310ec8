//! The mapping of errors to gRPC statuses.

use tonic::Status;

use crate::{connections::TooManyBytes, request::MessageError};
use weir_limiter::LimitError;

/// Unknown, as in envoyproxy/ratelimit, since callers may depend on it; others for bounds and rules of weir's own.
pub(super) fn of_limit_error(error: &LimitError) -> Status {
    match error {
        LimitError::NoName => Status::unimplemented(error.to_string()),
        LimitError::TooManyPatterns(_) => Status::resource_exhausted(error.to_string()),
        _ => Status::unknown(error.to_string()),
    }
}

/// Errors of the caller, which a retry does not change. gRPC reports a malformed message as Internal. The reference
/// panics at an invalid override; here it is `InvalidArgument`. Too many parts are like a message that is too large.
impl From<MessageError> for Status {
    fn from(error: MessageError) -> Self {
        match &error {
            MessageError::Malformed(_) => Self::internal(error.to_string()),
            MessageError::OverrideUnit { .. } => Self::invalid_argument(error.to_string()),
            MessageError::TooLarge(_) => Self::resource_exhausted(error.to_string()),
        }
    }
}

/// Maps a bound on what a connection holds, which a later retry may not meet.
impl From<TooManyBytes> for Status {
    fn from(error: TooManyBytes) -> Self {
        Self::resource_exhausted(error.to_string())
    }
}
