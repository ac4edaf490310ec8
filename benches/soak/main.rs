//! Runs weir for a long time while its Redis restarts every minute, and prints what a long time could show: memory that
//! grows, hits above a limit, hits that Redis did not count, slow decisions and errors.
//!
//! `make soak` runs it; `cargo bench --bench soak -- --help` lists the options. `docs/performance.md` explains the
//! output.

mod load;
mod model;
mod observed;
mod options;
mod report;

use weir_benches::histogram;
use weir_testing::{child, redis_server::Server};

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser as _;

use self::{child::Serving, load::Load, observed::Observed, options::Options, report::Report};

/// How long Redis stays away.
const OUTAGE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let options = Options::parse();
    let redis = Server::start();
    let rules = model::rules();
    let url = format!("127.0.0.1:{}", redis.port());
    let directory = rules.path().to_str().expect("a path in UTF-8");
    let weirs: Vec<Serving> =
        (0..options.instances).map(|_| Serving::start(directory, &[("REDIS_URL", &url)])).collect();
    let ended = Arc::new(AtomicBool::new(false));
    let restarting = thread::spawn({
        let (ended, every) = (Arc::clone(&ended), options.restart());
        move || restart(redis, every, &ended)
    });
    let load = Load::start(&weirs, &options);
    let mut report = Report::new(&options);
    let begun = Instant::now();
    while begun.elapsed() < options.time() {
        thread::sleep(options.interval().min(options.time().saturating_sub(begun.elapsed())));
        report.add(begun.elapsed(), &load.take(), Observed::of(&weirs));
    }
    let rest = load.stop();
    // its last syncs
    thread::sleep(Duration::from_secs(1));
    report.add(begun.elapsed(), &rest, Observed::of(&weirs));
    ended.store(true, Ordering::Relaxed);
    let restarts = restarting.join().expect("redis-server is restarted without a panic");
    report.finish(restarts)
}

/// Kills Redis `every` so often, and starts it again without its data after the [`OUTAGE`]. Returns how often.
fn restart(mut redis: Server, every: Duration, ended: &AtomicBool) -> u32 {
    let mut restarts = 0;
    let mut last = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
        if last.elapsed() >= every {
            redis.kill();
            thread::sleep(OUTAGE);
            redis.restart();
            (last, restarts) = (Instant::now(), restarts + 1);
        }
    }
    restarts
}
