//! Runs several jobs at once, and shows on standard error how far they are.

use std::{
    io::{self, IsTerminal as _, Write as _},
    panic::resume_unwind,
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

const BAR: usize = 30;

/// What is done sooner shows no progress.
const PATIENCE: Duration = Duration::from_secs(1);

const LOOK: Duration = Duration::from_millis(20);

/// The time between two lines about the progress, where no bar can be drawn.
const LINES: Duration = Duration::from_secs(10);

const PARTS: f64 = 10_000.0;

/// A bar on a terminal, and otherwise a line now and then.
struct ProgressBar {
    is_terminal: bool,
    next: Instant,
    shown: Option<u32>,
}

/// Runs each in a thread of its own. Returns the results in the order of the jobs. `run` reports the share that it has
/// completed, 0 to 1, which is shown on standard error after a second.
pub(super) fn run_all<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J, &dyn Fn(f64)) -> R + Sync) -> Vec<R> {
    let completed: Vec<AtomicU32> = jobs.iter().map(|_| AtomicU32::new(0)).collect();
    let (run, mut progress) = (&run, ProgressBar::new());
    thread::scope(|scope| {
        let start = |(job, parts)| {
            scope
                .spawn(move || run(job, &|share| AtomicU32::store(parts, in_parts(share), Ordering::Relaxed)))
        };
        let in_all = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        let threads: Vec<_> = jobs.iter().zip(&completed).map(start).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            let parts: f64 = completed.iter().map(|parts| f64::from(parts.load(Ordering::Relaxed))).sum();
            progress.show(parts / PARTS / f64::from(in_all));
            thread::sleep(LOOK);
        }
        progress.end();
        let result =
            |thread: ScopedJoinHandle<'_, R>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().map(result).collect()
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 10,000")]
fn in_parts(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * PARTS) as u32
}

// === impl ProgressBar ===

impl ProgressBar {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), next: Instant::now() + PATIENCE, shown: None }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
    fn show(&mut self, share: f64) {
        let percentage = (share.clamp(0.0, 1.0) * 100.0) as u32;
        let now = Instant::now();
        if now < self.next || self.shown == Some(percentage) {
            return;
        }
        // progress is optional, so a failed write is ignored
        if self.is_terminal {
            self.shown = Some(percentage);
            let full = BAR * percentage as usize / 100;
            let _ = write!(io::stderr(), "\r[{:-<BAR$}] {percentage:>3} %", "#".repeat(full));
        } else {
            self.next = now + LINES;
            let _ = writeln!(io::stderr(), "{percentage} % done");
        }
    }

    fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:1$}\r", "", BAR + 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let squares = run_all(&jobs, |job, progress| {
            progress(0.5);
            job * job
        });
        assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        assert!(run_all(&[] as &[u64], |job, _| *job).is_empty());
    }
}
