//! The one place that turns errors into gRPC statuses.

use tonic::Status;

use crate::{LimitError, door::wire::WireError};

/// Unknown, with the error's text: the reference hands its errors to gRPC as they are, which calls them so, and what
/// callers do about a code must not change.
impl From<LimitError> for Status {
    fn from(error: LimitError) -> Self {
        Self::unknown(error.to_string())
    }
}

/// The caller's own doing, and the same again if it tries again. The reference has no code for these: it falls over.
impl From<WireError> for Status {
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}
