//! What the system, or weir itself, reports about its memory, and how long health checks take.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::target::{Target, get};

/// The time between two measurements.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long the memory of ended connections may take to be free.
const AFTER: Duration = Duration::from_secs(3);

/// What was observed, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) before: u64,
    pub(crate) peak: u64,
    pub(crate) after: u64,
    /// The slowest health check; none if one failed.
    pub(crate) slowest: Option<Duration>,
}

/// A thread that observes a weir.
pub(crate) struct Watch {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Option<Duration>)>,
    before: u64,
}

impl Watch {
    pub(crate) fn start(target: &Target) -> Self {
        let before = resident(target.pid(), &target.http).expect("weir runs, and reports its memory");
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, pid, http) = (Arc::clone(&ended), target.pid(), target.http.clone());
        let thread = thread::spawn(move || {
            let (mut peak, mut slowest) = (before, Some(Duration::ZERO));
            while !stop.load(Ordering::Relaxed) {
                // it may have no connection left for this one
                peak = peak.max(resident(pid, &http).unwrap_or_default());
                let begun = Instant::now();
                let is_healthy = get(&http, "/healthcheck").is_ok_and(|page| page.starts_with("HTTP/1.1 "));
                slowest = slowest.filter(|_| is_healthy).map(|time| time.max(begun.elapsed()));
                thread::sleep(INTERVAL);
            }
            (peak, slowest)
        });
        Self { ended, thread, before }
    }

    /// Ends the observation. What the attack held has been dropped.
    pub(crate) fn stop(self, target: &Target) -> Seen {
        thread::sleep(AFTER);
        self.ended.store(true, Ordering::Relaxed);
        let (sampled, slowest) = self.thread.join().expect("it does not panic");
        let peak = target.pid().and_then(|pid| status(pid, "VmHWM:")).unwrap_or_default();
        let after = resident(target.pid(), &target.http).unwrap_or_default();
        Seen { before: self.before, peak: sampled.max(peak), after, slowest }
    }
}

/// Returns the resident memory: of a process of this machine, or else as the metrics at `http` report it.
fn resident(pid: Option<u32>, http: &str) -> Option<u64> {
    if let Some(pid) = pid {
        return status(pid, "VmRSS:");
    }
    let page = get(http, "/metrics").ok()?;
    let line = page.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "))?;
    line.trim().parse().ok()
}

fn status(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix(field)?.strip_suffix("kB"))?;
    kilobytes.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
