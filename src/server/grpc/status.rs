//! The mapping of errors to gRPC statuses.

use tonic::Status;

use super::decode::DecodeError;
use crate::LimitError;

/// Maps every error to Unknown with the error's text, like envoyproxy/ratelimit: callers may depend on the code.
impl From<LimitError> for Status {
    fn from(error: LimitError) -> Self {
        Self::unknown(error.to_string())
    }
}

/// Maps errors of the caller, which a retry does not change. Every implementation of gRPC reports a malformed message as
/// Internal. An invalid override has no code in the reference, which panics; it is `InvalidArgument` here.
impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Self {
        match &error {
            DecodeError::Malformed { .. } => Self::internal(error.to_string()),
            DecodeError::Conversion(_) => Self::invalid_argument(error.to_string()),
        }
    }
}
