//! The output: a line for each interval, and a summary.

use std::{process::ExitCode, time::Duration};

use super::{
    histogram::Histogram,
    load::Taken,
    model::{Counts, MODES},
    observed::Observed,
    options::Options,
};

const MIB: u64 = 1 << 20;

/// What was printed so far, for the summary.
pub(crate) struct Report {
    interval: Duration,
    /// Resident memory at the end of each interval.
    resident: Vec<u64>,
    latencies: Histogram,
    slowest: Duration,
    requests: u64,
    errors: u64,
    counts: Counts,
    last: Observed,
}

// === impl Report ===

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        println!("{options:?}");
        println!(
            "{:>6} {:>8} {:>8} {:>8} {:>9} {:>11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}",
            "s",
            "RSS, MB",
            "admitted",
            "rejected",
            "p99, ms",
            "slowest, ms",
            "fallback",
            "lost",
            "unknown",
            "evicted",
            "overshoot",
            "errors"
        );
        Self {
            interval: options.interval(),
            resident: Vec::new(),
            latencies: Histogram::new(),
            slowest: Duration::ZERO,
            requests: 0,
            errors: 0,
            counts: Counts::default(),
            last: Observed::default(),
        }
    }

    /// Prints the line of an interval that ends `at` after the start. All counts are of the interval.
    pub(crate) fn add(&mut self, at: Duration, taken: &Taken, now: Observed) {
        let overshoot = |counts: &Counts| counts.overshoot.iter().sum::<u64>();
        println!(
            "{:>6} {:>8} {:>8} {:>8} {:>9.1} {:>11.1} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}",
            at.as_secs(),
            now.resident / MIB,
            taken.admitted,
            taken.rejected,
            millis(taken.latencies.at(990)),
            millis(taken.slowest),
            now.fallback - self.last.fallback,
            now.lost - self.last.lost,
            now.unknown - self.last.unknown,
            now.evicted - self.last.evicted,
            overshoot(&taken.counts) - overshoot(&self.counts),
            taken.errors
        );
        if let Some(error) = &taken.error {
            println!("       an error: {error}");
        }
        self.resident.push(now.resident);
        self.latencies.merge(&taken.latencies);
        self.slowest = self.slowest.max(taken.slowest);
        self.requests += taken.admitted + taken.rejected + taken.errors;
        self.errors += taken.errors;
        (self.counts, self.last) = (taken.counts, now);
    }

    /// Prints the summary. Fails if there were errors.
    pub(crate) fn finish(&self, restarts: u32) -> ExitCode {
        println!();
        println!("{} requests, {} errors, {restarts} restarts of Redis", self.requests, self.errors);
        let share = |part: u64| 100.0 * number(part) / number(self.counts.admitted.max(1));
        for (index, mode) in MODES.iter().enumerate() {
            let (over, most) = (self.counts.overshoot[index], self.counts.most[index]);
            println!(
                "{mode}: {over} hits above a limit, {:.3} % of all admitted; {most} at most in one window",
                share(over)
            );
        }
        println!(
            "{} hits lost, {} unknown, {} evicted",
            self.last.lost, self.last.unknown, self.last.evicted
        );
        println!("p99 {:.1} ms, slowest {:.1} ms", millis(self.latencies.at(990)), millis(self.slowest));
        // the keys of the first minute fill the tables: the second half shows whether memory still grows
        let half = self.resident.len() / 2;
        let most = |part: &[u64]| part.iter().max().copied().unwrap_or_default() / MIB;
        println!(
            "RSS: at most {} MB in the first half, {} MB in the second, read every {:?}",
            most(&self.resident[..half]),
            most(&self.resident[half..]),
            self.interval
        );
        if self.errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "for a percentage")]
fn number(count: u64) -> f64 {
    count as f64
}
