//! Why attempts to reach the collector fail.

use parking_lot::Mutex;

use weir_observe::text::shortened;

const MAX_TEXT: usize = 500;

/// The reason of the last failure. OpenTelemetry's exporters do not tell it, so the connections put it here.
pub(crate) type Cause = Mutex<Option<String>>;

/// Bounds the messages about a collector that cannot be reached: there is one until exports succeed again.
#[derive(Debug)]
pub(crate) struct FailureLog {
    /// What is sent, such as `traces`.
    signal: &'static str,
    is_failing: bool,
}

// === impl FailureLog ===

impl FailureLog {
    pub(crate) fn new(signal: &'static str) -> Self {
        Self { signal, is_failing: false }
    }

    pub(crate) fn failed(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let error = &*shortened(error, MAX_TEXT);
            tracing::warn!(error, "cannot send {} to the collector; decisions continue", self.signal);
        }
    }

    pub(crate) fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_failing) {
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
            FailureLog::new("traces").failed(&"y".repeat(1 << 20));
        });
        let log = String::from_utf8(captured.0.lock().clone()).expect("text");
        assert!(log.contains("yyy") && log.len() < 1_500, "{}", log.len());
    }
}
