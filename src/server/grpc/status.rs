//! The one place that turns errors into gRPC statuses.

use tonic::Status;

use super::decode::DecodeError;
use crate::LimitError;

/// Unknown, with the error's text: the reference hands its errors to gRPC as they are, which calls them so, and what
/// callers do about a code must not change.
impl From<LimitError> for Status {
    fn from(error: LimitError) -> Self {
        Self::unknown(error.to_string())
    }
}

/// The caller's own doing, and the same again if it tries again. What is no message at all is an internal error to every
/// implementation of gRPC; what asks for what there is not has no code in the reference, which falls over.
impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Self {
        match &error {
            DecodeError::Malformed { .. } => Self::internal(error.to_string()),
            DecodeError::Wire(_) => Self::invalid_argument(error.to_string()),
        }
    }
}
