//! `weir simulate`: compares the coordination modes for a limit before it is deployed.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, ValueEnum};

use super::{
    progress::Progress,
    simulate_share::{ShareError, SimulateShare},
    simulate_wait::{SimulatedWaiting, simulate_waiting},
};

use crate::{
    config, limit,
    limit::{Bucket, Coordination, Period, Refill, RuleCoordination, Tier},
    settings, simulate,
    simulate::{
        Instance, Panel, Scenario, ScenarioError, Series, SimulationMetrics, SimulationOutcome, Skew, chart,
        legend, run, suggest, summary, table,
    },
    store::{
        coordinated::{self, Coordinated},
        simulated::{Network, SimulatedRemote},
    },
};

/// The longest time that callers can wait.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// The number of steps in a chart, about one per pixel.
const STEPS: u32 = 800;

/// The longest window whose parts follow demand.
const LONGEST_FOLLOWED: Period = Period::from_secs(60);

/// The most keys that are simulated by default.
const MAX_DEFAULT_KEYS: f64 = 2_000.0;

/// The most requests that are simulated by default, unless one key has more.
const MAX_DEFAULT_REQUESTS: f64 = 500_000.0;

/// The parameters of the simulation.
#[derive(Args, Clone, Debug)]
pub struct Simulate {
    /// Instances of weir that share the limit
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub instances: usize,
    /// Coordination modes to simulate, separated by commas [default: all but split]
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = parse_mode)]
    pub coordination: Vec<Coordination>,
    /// Keys, each with the limit for itself; requests are for random keys [default: 2000, or fewer for 500000 requests;
    /// with --wait 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: Option<u32>,
    /// Requests that the limit admits in each period
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// The limit's period, such as 500ms, 10s, 1m or 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_period)]
    pub period: Period,
    /// Algorithm of the limit
    #[arg(long, value_name = "NAME", default_value = "fixed_window")]
    pub algorithm: Algorithm,
    /// Tokens in a full token bucket [default: the limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,
    /// Offered requests of each key, as a multiple of the limit
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub load: f64,
    /// Offered requests of each key a second, in place of --load
    #[arg(long, value_name = "N", conflicts_with = "load")]
    pub rate: Option<f64>,
    /// When requests arrive
    #[arg(long, value_name = "WHEN", default_value = "random")]
    pub arrivals: Arrivals,
    /// Simulate callers that wait for up to this time, at most 1h, 60s if none is given, as consumers of another API do
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "60s", value_parser = parse_wait,
        conflicts_with_all = ["suggest", "share"])]
    pub wait: Option<Duration>,
    /// How requests are spread over the instances
    #[arg(long, value_name = "HOW", default_value = "even")]
    pub skew: Spread,
    /// How instances divide the limit; with --coordination split
    #[arg(long, value_name = "HOW", default_value = "even")]
    pub split: Division,
    /// Time from a call to the store until its reply
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = parse_time)]
    pub round_trip: Duration,
    /// Random time added to each call, evenly distributed from 0 to this
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    pub jitter: Duration,
    /// Largest error of the instances' clocks, in either direction
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    pub clock_skew: Duration,
    /// Time between two syncs of an instance's counts
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_interval)]
    pub sync_interval: Duration,
    /// Disable `interval`'s early syncs of counters near their limit, to compare
    #[arg(long)]
    pub no_early_sync: bool,
    /// Number of periods during which requests arrive
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub windows: u32,
    /// Seed of the random number generator: equal seeds give equal results
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Say which coordination mode to choose, what it costs, and what it can exceed
    #[arg(long)]
    pub suggest: bool,
    /// Write a chart of the admitted requests over time to this SVG file; with --keys 1 or --share
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The members of a pool, and how they share the limit
    #[command(flatten)]
    pub share: SimulateShare,
}

/// The algorithms by their names on the command line.
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

/// The times of requests, by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independently of each other.
    Random,
    /// All requests of a key and a period at the same time.
    AtOnce,
    /// In equal gaps.
    Steady,
    /// Three times as often as on average in the middle fifth of the time, and half as often before and after.
    Peak,
}

/// The modes that are compared unless others are named: those that share a counter, and none.
const COMPARED: [Coordination; 5] = [
    Coordination::Auto,
    Coordination::Local,
    Coordination::Interval,
    Coordination::Lease,
    Coordination::Strict,
];

/// The distributions of requests over the instances, by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Spread {
    /// Each instance gets an equal share.
    Even,
    /// The second gets half as many as the first, the third a third, and so on.
    Zipf,
    /// A tenth of the instances gets 90 %; others get it in the second half of the time.
    Moving,
}

/// The ways to divide a limit under `split`, by their names on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Division {
    /// Each instance has an equal part.
    Even,
    /// Parts follow demand.
    ByDemand,
}

/// The reason why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The scenario is invalid.
    #[error("cannot simulate this")]
    Scenario(#[from] ScenarioError),
    /// A burst is set, but the algorithm is not the token bucket.
    #[error("only a token bucket has a burst: add --algorithm token_bucket, or leave --burst out")]
    Burst,
    /// Parts cannot follow demand for this limit, or in these modes.
    #[error(
        "parts follow demand under --coordination split alone, of one fixed window of whole milliseconds, at most a \
         minute: leave --split by_demand out, or change the others"
    )]
    Division,
    /// A chart of several keys.
    #[error("a chart shows one key: add --keys 1, or leave --svg out")]
    Chart,
    /// A pool cannot be simulated.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The runtime cannot be created.
    #[error("cannot run the simulation")]
    Run(#[source] io::Error),
    /// The results cannot be printed.
    #[error("cannot print the results")]
    Print(#[source] io::Error),
    /// The chart cannot be written.
    #[error("cannot write {}", .path.display())]
    Svg {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn parse_period(text: &str) -> Result<Period, &'static str> {
    config::parse_period(text).ok_or(config::PERIOD_RIGHT)
}

fn parse_mode(text: &str) -> Result<Coordination, String> {
    Coordination::parse(text).ok_or_else(|| format!("write {}", Coordination::NAMES))
}

fn parse_time(text: &str) -> Result<Duration, &'static str> {
    settings::parse_duration(text)
}

/// Parses a time that callers may wait, which `WEIR_MAX_WAIT` bounds.
fn parse_wait(text: &str) -> Result<Duration, &'static str> {
    parse_time(text)
        .and_then(|time| if time > LONGEST_WAIT { Err("callers wait for 1h at most") } else { Ok(time) })
}

fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).and_then(|time| if time.is_zero() { Err("it must be longer than 0") } else { Ok(time) })
}

/// Runs the simulation of `args` and prints the results to `out`. Shows the progress on standard error if that is a
/// terminal.
pub fn simulate(args: &Simulate, out: &mut impl Write) -> Result<(), SimulateError> {
    if let Some(demands) = args.share.demands()? {
        args.share.simulate(&demands, (args.limit, args.period), args.svg.as_deref(), out)?;
        return Ok(());
    }
    let scenario = args.scenario()?;
    if args.wait.is_some() { scenario.check_waiting() } else { scenario.check() }?;
    if scenario.keys > 1 && args.svg.is_some() {
        return Err(SimulateError::Chart);
    }
    // opened first, so that an invalid path fails before the simulation, not after it
    let svg = match &args.svg {
        Some(path) => Some((path, fs::File::create(path).map_err(svg_error(path))?)),
        None => None,
    };
    let chosen = if args.coordination.is_empty() { &COMPARED[..] } else { &args.coordination };
    args.check_division(chosen)?;
    if let Some(max_wait) = args.wait {
        let make = |instance| args.store(&scenario, instance);
        let chosen: Vec<RuleCoordination> = chosen.iter().map(|mode| args.coordination_of(*mode)).collect();
        let (max_wait, round_trip) = ((max_wait, period(max_wait)), args.round_trip);
        let simulated = simulate_waiting(&scenario, max_wait, round_trip, &chosen, make, STEPS);
        let SimulatedWaiting { title, text, panels } = simulated.map_err(SimulateError::Run)?;
        write!(out, "{text}").map_err(SimulateError::Print)?;
        if let Some((path, mut file)) = svg {
            file.write_all(chart(&scenario, &title, &panels).as_bytes()).map_err(svg_error(path))?;
        }
        return Ok(());
    }
    let mut modes = Vec::new();
    let part = 1.0 / f64::from(u8::try_from(chosen.len()).unwrap_or(u8::MAX));
    let mut completed = 0.0;
    for &mode in chosen {
        let mut progress = Progress::new(mode.name());
        let outcome = args
            .run(&scenario, mode, |done| progress.show(completed + part * done))
            .map_err(SimulateError::Run)?;
        progress.end();
        completed += part;
        let series = Series::of(&scenario, &outcome, STEPS);
        modes.push((mode, SimulationMetrics::of(&scenario, &outcome), series));
    }
    args.print(&scenario, &modes, out).map_err(SimulateError::Print)?;
    if let Some((path, mut file)) = svg {
        let panel = |(mode, metrics, series): (Coordination, SimulationMetrics, Series)| Panel {
            name: mode.name().to_owned(),
            summary: summary(&metrics),
            series,
        };
        let panels: Vec<Panel> = modes.into_iter().map(panel).collect();
        file.write_all(chart(&scenario, &scenario.title(), &panels).as_bytes()).map_err(svg_error(path))?;
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
            keys: self.keys.unwrap_or_else(|| self.default_keys()) as usize,
            tier: Tier { requests: self.limit, period: self.period, algorithm },
            load: self.load(),
            arrivals: match self.arrivals {
                Arrivals::Random => simulate::Arrivals::Random,
                Arrivals::AtOnce => simulate::Arrivals::AtOnce,
                Arrivals::Steady => simulate::Arrivals::Steady,
                Arrivals::Peak => simulate::Arrivals::Peak,
            },
            skew: match self.skew {
                Spread::Even => Skew::Even,
                Spread::Zipf => Skew::Zipf,
                Spread::Moving => Skew::Moving,
            },
            network: Network { round_trip: self.round_trip, jitter: self.jitter, ..Network::default() },
            clock_skew: period(self.clock_skew),
            windows: self.windows,
            seed: self.seed,
        })
    }

    /// Returns the offered requests, as a multiple of the limit.
    fn load(&self) -> f64 {
        let seconds = Duration::from_nanos(self.period.as_nanos()).as_secs_f64();
        self.rate.map_or(self.load, |rate| rate * seconds / f64::from(self.limit))
    }

    /// Returns as many keys as can be simulated in a few seconds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limited to a small number")]
    fn default_keys(&self) -> u32 {
        if self.wait.is_some() {
            return 1;
        }
        let requests = f64::from(self.limit) * self.load() * f64::from(self.windows);
        (MAX_DEFAULT_REQUESTS / requests).clamp(1.0, MAX_DEFAULT_KEYS) as u32
    }

    /// Checks that parts can follow demand in the `chosen` modes, if they are to.
    fn check_division(&self, chosen: &[Coordination]) -> Result<(), SimulateError> {
        let is_window = matches!(self.algorithm, Algorithm::FixedWindow);
        let is_short = self.period <= LONGEST_FOLLOWED && self.period.as_nanos().is_multiple_of(1_000_000);
        let is_split = chosen.contains(&Coordination::Split);
        if self.split == Division::ByDemand && !(is_window && is_short && is_split) {
            return Err(SimulateError::Division);
        }
        Ok(())
    }

    /// Returns how the limit is coordinated in this mode.
    fn coordination_of(&self, mode: Coordination) -> RuleCoordination {
        let follows_demand = mode == Coordination::Split && self.split == Division::ByDemand;
        RuleCoordination { mode: Some(mode), follows_demand, ..RuleCoordination::default() }
    }

    /// Simulates one mode, with the code that the service runs.
    fn run(
        &self,
        scenario: &Scenario,
        mode: Coordination,
        progress: impl FnMut(f64),
    ) -> io::Result<SimulationOutcome> {
        let rules = scenario.rules(self.coordination_of(mode));
        let make = |instance| self.store(scenario, instance);
        run(scenario, &rules, make, |store| store.coordination_metrics().decisions.fallback.get(), progress)
    }

    /// Opens the store of an instance.
    fn store(
        &self,
        scenario: &Scenario,
        Instance { number, remote, clock }: Instance,
    ) -> Coordinated<SimulatedRemote> {
        let defaults = coordinated::CoordinationSettings::default();
        let settings = coordinated::CoordinationSettings {
            sync_interval: period(self.sync_interval),
            early_sync: !self.no_early_sync,
            instance: format!("simulated-{number}"),
            max_counters: 2 * scenario.keys.max(512),
            heartbeat: scenario.rarer(defaults.heartbeat),
            sweep: scenario.rarer(defaults.sweep),
            ..defaults
        };
        Coordinated::new(remote, Arc::new(clock), settings)
    }

    fn print(
        &self,
        scenario: &Scenario,
        modes: &[(Coordination, SimulationMetrics, Series)],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Self { round_trip, sync_interval, .. } = self;
        let early = if self.no_early_sync { ", none early" } else { "" };
        writeln!(
            out,
            "{}\n{round_trip:?} round trip, {sync_interval:?} between syncs{early}, seed {}\n",
            scenario.title(),
            scenario.seed,
        )?;
        let rows: Vec<(&str, SimulationMetrics)> =
            modes.iter().map(|(mode, metrics, _)| (mode.name(), metrics.clone())).collect();
        write!(out, "{}\n{}", table(&rows), legend())?;
        if self.suggest {
            let modes: Vec<_> = modes.iter().map(|(mode, metrics, _)| (*mode, metrics.clone())).collect();
            write!(out, "\n{}", suggest(scenario, &modes))?;
        }
        Ok(())
    }
}

fn period(duration: Duration) -> Period {
    Period::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
