//! `weir simulate`: what each way of coordination makes of a limit, before it is put to use.

use std::{
    fs,
    io::{self, IsTerminal as _, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::{
    config, limit,
    limit::{Bucket, Coordination, Period, Refill, RuleCoordination, Tier},
    settings,
    simulate::{
        Instance, Outcome, Scenario, ScenarioError, Series, SimulationMetrics, Skew, chart, run, table,
    },
    store::{
        coordinated::{self, Coordinated},
        simulated::{Network, SimulatedRemote},
    },
};

/// Steps in which a chart is drawn: as many as it has pixels, or so.
const STEPS: u32 = 800;

/// Characters of the progress bar.
const BAR: usize = 30;

/// What to simulate.
#[derive(Args, Clone, Debug)]
pub struct Simulate {
    /// Instances of weir that share the limit
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub instances: usize,
    /// Requests that the limit admits in each period
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// The limit's period, such as 500ms, 10s, 1m or 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_period)]
    pub period: Period,
    /// How the period is laid over time
    #[arg(long, value_name = "NAME", default_value = "fixed_window")]
    pub algorithm: Algorithm,
    /// Of a token bucket: the tokens that it holds when full [default: the limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,
    /// Requests that come, as a multiple of the limit
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub load: f64,
    /// How requests are spread over the instances
    #[arg(long, value_name = "HOW", default_value = "even")]
    pub skew: Spread,
    /// The time from a call of the store to its reply
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = parse_time)]
    pub round_trip: Duration,
    /// Up to so much more, evenly, for each call
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    pub jitter: Duration,
    /// The instances' clocks are wrong by up to so much, either way
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    pub clock_skew: Duration,
    /// How often instances tell each other their counts
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_interval)]
    pub sync_interval: Duration,
    /// Without `interval`'s early words about counters that are about to be used up, to see what they gain
    #[arg(long)]
    pub no_early_sync: bool,
    /// For how many periods requests come
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub windows: u32,
    /// Where chance comes from: the same seed is the same simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Draw what was admitted over time into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Algorithms, as they are typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Algorithm {
    /// At most the limit in each window.
    FixedWindow,
    /// At most the limit in any period.
    SlidingWindow,
    /// A burst, and the limit in each period.
    TokenBucket,
}

/// How requests are spread, as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Spread {
    /// As many to each.
    Even,
    /// Half as many to the second as to the first, a third to the third, and so on.
    Zipf,
}

/// Why there is no simulation.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// It makes no sense.
    #[error("cannot simulate this")]
    Scenario(#[from] ScenarioError),
    /// A burst, but no bucket.
    #[error("only a token bucket has a burst: add --algorithm token_bucket, or leave --burst out")]
    Burst,
    /// The machine does not let it run.
    #[error("cannot run the simulation")]
    Run(#[source] io::Error),
    /// What came of it cannot be printed.
    #[error("cannot print what came of it")]
    Print(#[source] io::Error),
    /// The chart cannot be written.
    #[error("cannot write {}", .path.display())]
    Svg {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn parse_period(text: &str) -> Result<Period, &'static str> {
    config::parse_period(text).ok_or(config::PERIOD_RIGHT)
}

fn parse_time(text: &str) -> Result<Duration, &'static str> {
    settings::parse_duration(text)
}

fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).and_then(|time| if time.is_zero() { Err("it must be longer than 0") } else { Ok(time) })
}

/// Simulates what `args` say, and prints what came of it to `out`. The progress is shown on standard error, if that is a
/// terminal.
pub fn simulate(args: &Simulate, out: &mut impl Write) -> Result<(), SimulateError> {
    let scenario = args.scenario()?;
    scenario.check()?;
    // who named a wrong place is to hear of it before the work, and not after it
    let svg = match &args.svg {
        Some(path) => Some((path, fs::File::create(path).map_err(svg_error(path))?)),
        None => None,
    };
    let mut ways = Vec::new();
    let part = 1.0 / f64::from(u8::try_from(Coordination::ALL.len()).unwrap_or(1));
    let mut before = 0.0;
    for way in Coordination::ALL {
        let mut progress = Progress::new(way.name());
        let outcome = args
            .run(&scenario, way, |done| progress.show(before + part * done))
            .map_err(SimulateError::Run)?;
        progress.end();
        before += part;
        let series = Series::of(&scenario, &outcome, STEPS);
        ways.push((way.name(), SimulationMetrics::of(&scenario, &outcome), series));
    }
    args.print(&scenario, &ways, out).map_err(SimulateError::Print)?;
    if let Some((path, mut file)) = svg {
        file.write_all(chart(&scenario, &ways).as_bytes()).map_err(svg_error(path))?;
    }
    Ok(())
}

fn svg_error(path: &Path) -> impl FnOnce(io::Error) -> SimulateError {
    |source| SimulateError::Svg { path: path.to_owned(), source }
}

impl Simulate {
    fn scenario(&self) -> Result<Scenario, SimulateError> {
        let burst = self.burst.unwrap_or(self.limit);
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket => {
                limit::Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false })
            }
            _ if self.burst.is_some() => return Err(SimulateError::Burst),
            Algorithm::FixedWindow => limit::Algorithm::FixedWindow,
            Algorithm::SlidingWindow => limit::Algorithm::SlidingWindow,
        };
        Ok(Scenario {
            instances: self.instances,
            tier: Tier { requests: self.limit, period: self.period, algorithm },
            load: self.load,
            skew: match self.skew {
                Spread::Even => Skew::Even,
                Spread::Zipf => Skew::Zipf,
            },
            network: Network { round_trip: self.round_trip, jitter: self.jitter, ..Network::default() },
            clock_skew: period(self.clock_skew),
            windows: self.windows,
            seed: self.seed,
        })
    }

    /// One way, on the very code that serves.
    fn run(&self, scenario: &Scenario, way: Coordination, progress: impl FnMut(f64)) -> io::Result<Outcome> {
        let rules = scenario.rules(RuleCoordination { mode: Some(way), ..RuleCoordination::default() });
        let sync_interval = period(self.sync_interval);
        let make = |Instance { number, remote, clock }| -> Coordinated<SimulatedRemote> {
            let instance = format!("simulated-{number}");
            let settings = coordinated::CoordinationSettings {
                sync_interval,
                early_sync: !self.no_early_sync,
                instance,
                max_counters: 1_024,
                ..coordinated::CoordinationSettings::default()
            };
            Coordinated::new(remote, Arc::new(clock), settings)
        };
        run(scenario, &rules, make, |store| store.coordination_metrics().fallback.get(), progress)
    }

    fn print(
        &self,
        scenario: &Scenario,
        ways: &[(&str, SimulationMetrics, Series)],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let plural = if scenario.instances == 1 { "" } else { "s" };
        let spread = match self.skew {
            Spread::Even => "evenly",
            Spread::Zipf => "by Zipf's law",
        };
        let Self { round_trip, sync_interval, .. } = self;
        let early = if self.no_early_sync { ", none early" } else { "" };
        writeln!(
            out,
            "{} instance{plural}, {}, {} times the limit offered, spread {spread}\n\
             {round_trip:?} round trip, {sync_interval:?} between syncs{early}, seed {}\n",
            scenario.instances, scenario.tier, scenario.load, scenario.seed,
        )?;
        let rows: Vec<(&str, SimulationMetrics)> =
            ways.iter().map(|(name, figures, _)| (*name, figures.clone())).collect();
        write!(out, "{}", table(&rows))
    }
}

fn period(duration: Duration) -> Period {
    Period::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// How far it is, for who watches.
struct Progress {
    what: &'static str,
    watched: bool,
    /// Percents that are shown; none at first.
    shown: Option<u32>,
}

impl Progress {
    fn new(what: &'static str) -> Self {
        Self { what, watched: io::stderr().is_terminal(), shown: None }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percents")]
    fn show(&mut self, done: f64) {
        let percents = (done.clamp(0.0, 1.0) * 100.0) as u32;
        if self.watched && self.shown != Some(percents) {
            self.shown = Some(percents);
            let full = BAR * percents as usize / 100;
            let bar = format!("{:-<BAR$}", "#".repeat(full));
            // nothing is lost with it
            let _ = write!(io::stderr(), "\r[{bar}] {percents:>3} % {:<9}", self.what);
        }
    }

    /// Leaves nothing behind.
    fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:1$}\r", "", BAR + 20);
        }
    }
}
