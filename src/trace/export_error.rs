//! Why an export failed.

/// Why an export failed.
#[derive(Debug)]
pub(super) enum ExportError {
    /// Another attempt may succeed.
    Temporary(String),
    /// The collector does not want these spans.
    Final(String),
}

/// What the collector says about spans that it has received.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Those that it has not taken.
    pub(super) rejected: u64,
    /// Its reason, or a warning; empty in most cases.
    pub(super) message: String,
}
