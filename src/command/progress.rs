//! A progress bar on standard error.

use std::io::{self, IsTerminal as _, Write as _};

/// The width of the progress bar in characters.
const BAR: usize = 30;

/// A progress bar.
pub(super) struct Progress {
    label: &'static str,
    is_terminal: bool,
    /// The percentage shown; none at first.
    shown: Option<u32>,
}

impl Progress {
    pub(super) fn new(label: &'static str) -> Self {
        Self { label, is_terminal: io::stderr().is_terminal(), shown: None }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
    pub(super) fn show(&mut self, done: f64) {
        let percentage = (done.clamp(0.0, 1.0) * 100.0) as u32;
        if self.is_terminal && self.shown != Some(percentage) {
            self.shown = Some(percentage);
            let full = BAR * percentage as usize / 100;
            let bar = format!("{:-<BAR$}", "#".repeat(full));
            // progress is optional, so a failed write is ignored
            let _ = write!(io::stderr(), "\r[{bar}] {percentage:>3} % {:<9}", self.label);
        }
    }

    /// Clears the bar.
    pub(super) fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:1$}\r", "", BAR + 20);
        }
    }
}
