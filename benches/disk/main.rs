//! Measures the store on disk: `cargo bench --bench disk -- --buckets 10000000 --seconds 60`.
//!
//! It fills a directory with buckets, and prints bytes on disk, memory, the time of a clean start and of one after a
//! kill, the CPU and the latency of a rate of updates, and what the removal of expired buckets costs. `--dir` sets
//! where.

mod machine;
mod work;

use std::{
    env,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use weir_limit::{Period, Timestamp};
use weir_store::clock::ManualClock;

use self::{
    machine::{Cpu, allocated, resident},
    work::{SHORT_SHARE, Work, fill, hot_in_memory, open},
};

/// The time of the clock at first, in seconds since the epoch.
const BEGIN: u64 = 1_700_000_000;

/// The options of the command line.
struct Options {
    buckets: u64,
    seconds: u64,
    rate: u64,
    dir: PathBuf,
    /// Only updates the buckets of `dir`, until the process is killed.
    is_load: bool,
}

fn options() -> Options {
    let mut options =
        Options { buckets: 200_000, seconds: 5, rate: 20_000, dir: env::temp_dir(), is_load: false };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value");
        match &*argument {
            "--buckets" => options.buckets = value().parse().expect("a number"),
            "--seconds" => options.seconds = value().parse().expect("a number"),
            "--rate" => options.rate = value().parse().expect("a number"),
            "--dir" => options.dir = value().into(),
            "--load" => options.is_load = true,
            // cargo passes it
            "--bench" => {}
            other => panic!("unknown option {other}"),
        }
    }
    options
}

/// Updates the buckets in another process, which it kills after the time of the options.
fn kill_under_load(dir: &Path, options: &Options) {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--load", "--buckets", &options.buckets.to_string(), "--rate", &options.rate.to_string()]);
    let mut load =
        command.arg("--dir").arg(dir).stdout(Stdio::piped()).spawn().expect("it can be started again");
    let mut line = String::new();
    BufReader::new(load.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "loading\n");
    thread::sleep(Duration::from_secs(options.seconds));
    load.kill().expect("it runs");
    load.wait().expect("it has ended");
}

fn main() {
    let options = options();
    if options.is_load {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(BEGIN)));
        let work = Work::new(open(&options.dir, &clock), options.buckets, options.rate);
        println!("loading");
        // it is killed before
        work.run(Duration::from_mins(10), &clock);
        return;
    }
    let temporary = tempfile::tempdir_in(&options.dir).expect("a directory");
    let dir = temporary.path().join("data");
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(BEGIN)));
    let buckets = options.buckets;
    println!("{buckets} buckets, {} updates/s for {} s", options.rate, options.seconds);

    let begun = Instant::now();
    fill(&dir, buckets, &clock);
    println!("filled in {:.1?}", begun.elapsed());
    let begun = Instant::now();
    let limiter = open(&dir, &clock);
    let work = Work::new(limiter, buckets, options.rate);
    work.one(0, &clock);
    println!("clean start to the first answer: {:.2?}", begun.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "it is printed")]
    let per_bucket = allocated(&dir) as f64 / buckets as f64;
    println!("bytes on disk a bucket: {per_bucket:.1}");

    // until the check and the count in the background have ended, they would be measured too
    work.wait_for_survey(buckets);
    println!("resident before updates: {} MiB", resident() >> 20);
    let (memory, disk) = (hot_in_memory(&clock), work.hot(&clock));
    println!(
        "a decision with its request about a counter in memory: {memory:?} in the memory store, {disk:?} here"
    );
    // at first none of them is in memory; the second time shows the load that lasts, to compare with that while tables
    // are merged
    for at_first in [true, false] {
        let (cpu, begun) = (Cpu::now(), Instant::now());
        let latency = work.run(Duration::from_secs(options.seconds), &clock);
        let spent = Cpu::now().since(&cpu, begun.elapsed());
        println!("{}: {latency}", if at_first { "updates" } else { "the same again" });
        println!(
            "CPU of the threads of the disk: {:.3} of a core; of all threads: {:.3}",
            spent.disk, spent.all
        );
        println!("resident afterwards: {} MiB", resident() >> 20);
    }

    drop(work);
    kill_under_load(&dir, &options);
    let begun = Instant::now();
    let work = Work::new(open(&dir, &clock), buckets, options.rate);
    work.one(0, &clock);
    println!("start after a kill under load to the first answer: {:.2?}", begun.elapsed());
    work.wait_for_survey(buckets);

    // the short limits end
    clock.advance(Period::from_secs(7_200));
    let (before, cpu, begun) = (allocated(&dir), Cpu::now(), Instant::now());
    let expected = buckets * SHORT_SHARE / 100;
    let latency =
        work.run_until(&clock, || work.removed() * 10 >= expected * 9 || begun.elapsed().as_secs() > 300);
    let took = begun.elapsed();
    let spent = Cpu::now().since(&cpu, took);
    println!(
        "{SHORT_SHARE} % expired: {} removed in {took:.1?} with {:.1} s of CPU; {} MiB became {} MiB",
        work.removed(),
        spent.disk * took.as_secs_f64(),
        before >> 20,
        allocated(&dir) >> 20,
    );
    println!("updates while tables are merged: {latency}");
    let begun = Instant::now();
    drop(work);
    println!("clean stop: {:.1?}", begun.elapsed());
}
