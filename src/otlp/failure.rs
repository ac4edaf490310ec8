//! Why attempts to reach the collector fail.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::observe::text::shortened;

/// The most characters of a collector's text in the log.
const MAX_TEXT: usize = 500;

/// The shortest time between two log messages about failures.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The reason of the last failure. OpenTelemetry's exporters report none for attempts that they repeat, so the
/// connections put it here.
#[derive(Debug, Default)]
pub(crate) struct Cause(Mutex<Option<String>>);

/// Bounds the messages about a collector that cannot be reached.
#[derive(Debug)]
pub(crate) struct FailureLog {
    /// What is sent, such as `traces`.
    signal: &'static str,
    /// The time of the last message; none while exports succeed.
    last: Option<Instant>,
    /// Whether the failure is logged again.
    is_repeated: bool,
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
    /// Returns a log that repeats its message once a minute.
    pub(crate) fn repeated(signal: &'static str) -> Self {
        Self { signal, last: None, is_repeated: true }
    }

    /// Returns a log with one message until exports succeed again.
    pub(crate) fn once(signal: &'static str) -> Self {
        Self { signal, last: None, is_repeated: false }
    }

    /// Logs `error`, unless the log has a recent message.
    pub(crate) fn failed(&mut self, error: &str) {
        let now = Instant::now();
        let is_due = |last| self.is_repeated && now.duration_since(last) >= LOG_INTERVAL;
        if self.last.is_none_or(is_due) {
            self.last = Some(now);
            let error = &*shortened(error, MAX_TEXT);
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

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_text_of_a_collector_is_bounded_in_the_log() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            FailureLog::once("traces").failed(&"y".repeat(1 << 20));
        });
        let log = String::from_utf8(captured.0.lock().clone()).expect("text");
        assert!(log.contains("yyy") && log.len() < 1_500, "{}", log.len());
    }
}
