//! Why attempts to reach the collector fail.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time between two log messages about failures.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The reason of the last failure. OpenTelemetry's exporters report none for attempts that they repeat, so the connections put
/// it here.
#[derive(Debug, Default)]
pub(crate) struct Cause(Mutex<Option<String>>);

/// Bounds the messages about a collector that cannot be reached.
#[derive(Debug)]
pub(crate) struct FailureLog {
    /// What is sent, such as `traces`.
    signal: &'static str,
    /// The time of the last message; none while exports succeed.
    last: Option<Instant>,
}

// === impl Cause ===

impl Cause {
    pub(crate) fn set(&self, cause: String) {
        *self.0.lock() = Some(cause);
    }

    /// Returns the reason, if one was set since the last call.
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

// === impl FailureLog ===

impl FailureLog {
    pub(crate) fn new(signal: &'static str) -> Self {
        Self { signal, last: None }
    }

    /// Logs `error`, at most once a minute.
    pub(crate) fn failed(&mut self, error: &str) {
        let now = Instant::now();
        if self.last.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last = Some(now);
            tracing::warn!(error, "cannot send {} to the collector; decisions continue", self.signal);
        }
    }

    /// Logs that the collector can be reached again, if the log says otherwise.
    pub(crate) fn succeeded(&mut self) {
        if self.last.take().is_some() {
            tracing::warn!("{} are sent to the collector again", self.signal);
        }
    }
}
