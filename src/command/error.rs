//! Errors of commands. They are only printed, so all have one type.

use std::error::Error;

pub type CommandResult<T> = Result<T, Box<dyn Error>>;

/// What failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Failure {
    what: String,
    source: Box<dyn Error>,
}

/// Adds to an error what failed because of it.
pub(super) fn failed<E: Into<Box<dyn Error>>>(what: impl Into<String>) -> impl FnOnce(E) -> Box<dyn Error> {
    move |source| Failure { what: what.into(), source: source.into() }.into()
}
