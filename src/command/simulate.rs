//! `weir simulate`: compares the coordination modes for a limit before it is deployed.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedRemote},
};
use weir_limit::{AlgorithmKind, Coordination, Period, RuleCoordination, Tier};

use super::{
    error::{CommandResult, failed},
    lines::write_line,
    progress::run_all,
    simulate_rule::{DescriptorToSimulate, SimulatedRule},
    simulate_share::SimulateShare,
    simulate_wait::simulate_waiting,
};
use crate::{
    settings,
    simulate::{Arrivals, Instance, Scenario, SimulationMetrics, Skew, legend, run, suggest, table},
};

pub(super) const UNPRINTED: &str = "cannot print the results";

const BURST: &str = "only a token bucket has a burst: add --algorithm token_bucket, or leave --burst out";

const LONGEST_WAIT: Duration = Duration::from_hours(1);

const MAX_DEFAULT_KEYS: f64 = 400.0;

/// More are simulated only if one key has more: those of five modes take a second.
const MAX_DEFAULT_REQUESTS: f64 = 80_000.0;

/// The parameters of the simulation.
#[derive(Args, Clone, Debug)]
pub struct Simulate {
    /// Instances of weir that share the limit
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub instances: usize,
    /// Coordination modes to simulate, separated by commas [default: all but split]
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = parse_mode)]
    pub coordination: Vec<Coordination>,
    /// Keys, each with the limit for itself; requests are for random keys [default: 400, or fewer for 80000 requests;
    /// with --wait, or for a rule with one counter, 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: Option<u32>,
    /// Requests that the limit admits in each period
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// The limit's period, such as 500ms, 10s, 1m or 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_period)]
    pub period: Period,
    /// Algorithm of the limit
    #[arg(long, value_name = "NAME", default_value = "fixed_window", value_parser = algorithms())]
    pub algorithm: AlgorithmKind,
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
    pub skew: Skew,
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
    /// Number of periods during which requests arrive
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub windows: u32,
    /// Seed of the random number generator: equal seeds give equal results
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Say which coordination mode to choose, what it costs, and what it can exceed
    #[arg(long)]
    pub suggest: bool,
    /// The members of a pool, and how they share the limit
    #[command(flatten)]
    pub share: SimulateShare,
}

/// The modes that are compared unless others are named: those that share a counter, and none.
const COMPARED: [Coordination; 5] = [
    Coordination::Auto,
    Coordination::Local,
    Coordination::Interval,
    Coordination::Lease,
    Coordination::Strict,
];

struct Compared<'a> {
    args: &'a Simulate,
    rule: Option<&'a SimulatedRule>,
}

pub(super) fn parse_period(text: &str) -> Result<Period, &'static str> {
    weir_config::parse_period(text).ok_or(weir_config::PERIOD_RIGHT)
}

fn parse_mode(text: &str) -> Result<Coordination, String> {
    Coordination::parse(text).ok_or_else(|| format!("write {}", Coordination::NAMES))
}

fn parse_time(text: &str) -> Result<Duration, &'static str> {
    settings::parse_duration(text)
}

/// `WEIR_MAX_WAIT` has the same bound.
fn parse_wait(text: &str) -> Result<Duration, &'static str> {
    parse_time(text)
        .and_then(|time| if time > LONGEST_WAIT { Err("callers wait for 1h at most") } else { Ok(time) })
}

/// Parses the name of an algorithm.
fn algorithms() -> impl TypedValueParser<Value = AlgorithmKind> {
    let known = AlgorithmKind::ALL.map(|kind| PossibleValue::new(kind.name()).help(kind.summary()));
    PossibleValuesParser::new(known).map(|name| AlgorithmKind::parse(&name).unwrap_or_default())
}

fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).and_then(|time| if time.is_zero() { Err("it must be longer than 0") } else { Ok(time) })
}

/// Simulates the limit of `args`, or of `descriptor` if there is one. Shows the progress on standard error.
pub fn simulate(
    args: &Simulate,
    descriptor: Option<DescriptorToSimulate<'_>>,
    out: &mut impl Write,
) -> CommandResult<()> {
    if let Some(demands) = args.share.demands()? {
        return args.share.simulate(&demands, (args.limit, args.period), out);
    }
    let rule = descriptor.map(DescriptorToSimulate::rule).transpose()?;
    let whole = args.scenario(rule.as_ref())?;
    whole.check().map_err(failed("cannot simulate this"))?;
    let compared = Compared { args, rule: rule.as_ref() };
    let chosen = compared.modes();
    let scenario = whole.shortened(chosen.len() + usize::from(args.wait.is_some()));
    for note in [compared.rule_line(), whole.shortened_to(&scenario)].into_iter().flatten() {
        write_line!(out, "{note}").map_err(failed(UNPRINTED))?;
    }
    match args.wait {
        Some(max_wait) => compared.simulate_waiting(&scenario, &chosen, max_wait, out),
        None => compared.simulate(&scenario, &chosen, out),
    }
}

impl Simulate {
    fn scenario(&self, rule: Option<&SimulatedRule>) -> CommandResult<Scenario> {
        let tier = match rule {
            Some(rule) => rule.tier.clone(),
            None => self.tier()?,
        };
        let load = self.load(&tier);
        let has_one_key = self.wait.is_some() || rule.is_some_and(|rule| rule.has_one_counter);
        let default_keys = || if has_one_key { 1 } else { self.default_keys(&tier) };
        Ok(Scenario {
            instances: self.instances,
            keys: self.keys.unwrap_or_else(default_keys) as usize,
            tier,
            load,
            arrivals: self.arrivals,
            skew: self.skew,
            network: Network { round_trip: self.round_trip, jitter: self.jitter, ..Network::default() },
            clock_skew: self.clock_skew.into(),
            windows: self.windows,
            seed: self.seed,
        })
    }

    fn tier(&self) -> CommandResult<Tier> {
        if self.burst.is_some() && !self.algorithm.refills() {
            return Err(BURST.into());
        }
        let algorithm = self.algorithm.for_limit(self.limit);
        let tier = Tier::new(self.limit, self.period, algorithm);
        Ok(tier.with_limits(self.limit, self.burst.unwrap_or(self.limit)))
    }

    /// The offered requests, as a multiple of the limit.
    fn load(&self, tier: &Tier) -> f64 {
        let seconds = Duration::from_nanos(tier.period.as_nanos()).as_secs_f64();
        self.rate.map_or(self.load, |rate| rate * seconds / f64::from(tier.requests))
    }

    /// As many as can be simulated in a second or two.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limited to a small number")]
    fn default_keys(&self, tier: &Tier) -> u32 {
        let requests = f64::from(tier.requests) * self.load(tier) * f64::from(self.windows);
        (MAX_DEFAULT_REQUESTS / requests).clamp(1.0, MAX_DEFAULT_KEYS) as u32
    }
}

// === impl Compared ===

impl Compared<'_> {
    fn modes(&self) -> Vec<Coordination> {
        if !self.args.coordination.is_empty() {
            return self.args.coordination.clone();
        }
        let of_rule = self.rule.and_then(|rule| rule.coordination.mode);
        let of_rule = of_rule.filter(|mode| !COMPARED.contains(mode));
        COMPARED.into_iter().chain(of_rule).collect()
    }

    fn rule_line(&self) -> Option<String> {
        let SimulatedRule { name, coordination, .. } = self.rule?;
        let mode =
            coordination.mode.map_or_else(String::new, |mode| format!(", coordination: {}", mode.name()));
        Some(format!("rule {name}{mode}"))
    }

    fn coordination_of(&self, mode: Coordination) -> RuleCoordination {
        let of_rule = self.rule.map(|rule| rule.coordination).unwrap_or_default();
        RuleCoordination { mode: Some(mode), split_between: None, ..of_rule }
    }

    /// Runs the code of the service.
    fn simulate(
        &self,
        scenario: &Scenario,
        chosen: &[Coordination],
        out: &mut impl Write,
    ) -> CommandResult<()> {
        let simulated = run_all(chosen, |&mode, progress| {
            let rules = scenario.rules(self.coordination_of(mode));
            let make = |instance| self.store(scenario, instance);
            let fallbacks = |store: &Coordinated<_>| store.coordination_metrics().decisions.fallback.get();
            let outcome = run(scenario, &rules, make, fallbacks, progress)?;
            Ok((mode, SimulationMetrics::of(scenario, &outcome)))
        });
        let modes = simulated
            .into_iter()
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed("cannot run the simulation"))?;
        self.print(scenario, &modes, out).map_err(failed(UNPRINTED))
    }

    fn simulate_waiting(
        &self,
        scenario: &Scenario,
        chosen: &[Coordination],
        max_wait: Duration,
        out: &mut impl Write,
    ) -> CommandResult<()> {
        let make = |instance| self.store(scenario, instance);
        let chosen: Vec<RuleCoordination> = chosen.iter().map(|mode| self.coordination_of(*mode)).collect();
        let (max_wait, round_trip) = ((max_wait, max_wait.into()), self.args.round_trip);
        let text = simulate_waiting(scenario, max_wait, round_trip, &chosen, make);
        let text = text.map_err(failed("cannot run the simulation"))?;
        write!(out, "{text}").map_err(failed(UNPRINTED))
    }

    fn store(
        &self,
        scenario: &Scenario,
        Instance { number, remote, clock }: Instance,
    ) -> Coordinated<SimulatedRemote> {
        let defaults = CoordinationSettings::default();
        let settings = CoordinationSettings {
            sync_interval: self.args.sync_interval.into(),
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
        modes: &[(Coordination, SimulationMetrics)],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Simulate { round_trip, suggest: suggests, .. } = self.args;
        let of_rule = self.rule.and_then(|rule| rule.coordination.sync_interval);
        let sync_interval = of_rule.map_or(self.args.sync_interval, Duration::from);
        writeln!(
            out,
            "{}\n{round_trip:?} round trip, {sync_interval:?} between syncs, seed {}\n",
            scenario.title(),
            scenario.seed,
        )?;
        let rows: Vec<(&str, SimulationMetrics)> =
            modes.iter().map(|(mode, metrics)| (mode.name(), metrics.clone())).collect();
        write!(out, "{}\n{}", table(&rows), legend())?;
        if *suggests {
            write!(out, "\n{}", suggest(scenario, modes))?;
        }
        Ok(())
    }
}
