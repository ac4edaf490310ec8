//! Tests the simulation on stores with known results.

#![expect(clippy::cast_precision_loss, reason = "small numbers, compared roughly")]

use std::time::Duration;

use weir::simulate::{
    Arrivals, Instance, Scenario, SimulatedDecision, SimulationMetrics, SimulationOutcome, Skew, WaitMetrics,
    WaitingOutcome, run, run_waiting, wait_table,
};
use weir_coordinate::{Coordinated, CoordinationSettings, simulated::Network};
use weir_limit::{
    Algorithm, Bucket, Coordination, Decision, Hits, LimitCheck, Period, Refill, Reservation,
    ReservationRequest, RuleCoordination, Scope, Tier, Timestamp,
};
use weir_store::{
    Decisions, MemoryStore, Store, StoreError, TakeOptions,
    remote::{Command, Exchange, Remote as _, Target},
};

/// Sends every check to the simulated store.
struct StoreOnly(Instance);

impl Store for StoreOnly {
    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        _: Scope,
        now: Timestamp,
        _: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        let commands = checks.iter().map(|check| {
            let target = Target {
                path: "simulated|key=value".into(),
                tiers: check.shared_tiers(),
                over_limit_policy: check.over_limit_policy(),
            };
            let exchange = Exchange::of_try(check.hits.0, check.over_limit_policy());
            Command { target: target.into(), at: now, exchange }
        });
        let replies = self.0.remote.call(commands.collect()).await;
        let replies = replies.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let decision = |(check, reply): (&LimitCheck<'_>, _)| {
            let reply: weir_store::remote::Reply = reply;
            Decision {
                tier: 0,
                over: reply.taken.iter().all(|taken| *taken == 0),
                before: check.hits,
                remaining: 0,
                reset: Period::default(),
                basis: weir_limit::Basis::Counters,
                share: None,
            }
        };
        Ok(checks.iter().zip(replies.replies.into_iter().flatten()).map(decision).collect())
    }

    async fn reserve(
        &self,
        _: &LimitCheck<'_>,
        _: ReservationRequest,
        _: Timestamp,
    ) -> Result<Reservation, StoreError> {
        Err(StoreError::Unavailable("this store only takes hits".to_owned()))
    }

    async fn release(
        &self,
        _: &LimitCheck<'_>,
        _: Reservation,
        _: Hits,
        _: Timestamp,
    ) -> Result<(), StoreError> {
        Err(StoreError::Unavailable("this store only takes hits".to_owned()))
    }
}

fn scenario(algorithm: Algorithm) -> Scenario {
    Scenario {
        instances: 3,
        keys: 1,
        tier: Tier::new(200, Period::from_secs(1), algorithm),
        load: 4.0,
        arrivals: Arrivals::Random,
        skew: Skew::Even,
        network: Network::default(),
        clock_skew: Period::default(),
        windows: 5,
        seed: 7,
    }
}

fn store_only(scenario: &Scenario) -> SimulationOutcome {
    run(scenario, &scenario.rules(RuleCoordination::default()), StoreOnly, |_| 0, |_| {}).expect("a runtime")
}

fn uncoordinated(scenario: &Scenario) -> SimulationOutcome {
    let rules = scenario.rules(RuleCoordination::default());
    run(scenario, &rules, |_| MemoryStore::new(10), |_| 0, |_| {}).expect("a runtime")
}

fn assert_near(actual: f64, expected: f64, tolerance: f64) {
    assert!((actual - expected).abs() <= tolerance, "{actual}, not {expected}");
}

const BUCKET: Algorithm =
    Algorithm::TokenBucket(Bucket { burst: 100, refill: Refill::Continuous, strict: false });

#[test]
fn a_store_that_decides_for_all_never_exceeds_the_limit_and_every_decision_waits() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, BUCKET] {
        let scenario = scenario(algorithm);
        let outcome = store_only(&scenario);
        let metrics = SimulationMetrics::of(&scenario, &outcome);
        assert!(metrics.overshoot <= 0.0, "{algorithm:?}: {metrics:?}");
        assert!(metrics.used > 0.9, "{algorithm:?}: {metrics:?}");
        assert_eq!((metrics.calls, metrics.waited, metrics.undecided), (1.0, 1.0, 0.0));
        assert_eq!(metrics.typical_wait, Period::from_millis(2));
        assert_near(outcome.decisions.len() as f64, 4_000.0, 300.0);
    }
}

#[test]
fn instances_without_coordination_each_admit_the_whole_limit() {
    let fixed = scenario(Algorithm::FixedWindow);
    let metrics = SimulationMetrics::of(&fixed, &uncoordinated(&fixed));
    assert_near(metrics.overshoot, 2.0, 0.01);
    assert_eq!((metrics.calls, metrics.waited, metrics.used), (0.0, 0.0, 1.0));
    let sliding = scenario(Algorithm::SlidingWindow);
    assert_near(SimulationMetrics::of(&sliding, &uncoordinated(&sliding)).overshoot, 2.0, 0.05);
    let bucket = scenario(BUCKET);
    // three times the burst, and the inflow of two further buckets during the five seconds
    assert_near(
        SimulationMetrics::of(&bucket, &uncoordinated(&bucket)).overshoot,
        2.0 + 2.0 * 200.0 * 5.0 / 100.0,
        1.0,
    );
    // a limit that is never reached is not exceeded
    let idle = Scenario { load: 0.1, ..scenario(Algorithm::FixedWindow) };
    assert!(SimulationMetrics::of(&idle, &uncoordinated(&idle)).overshoot < -0.8);
}

#[test]
fn equal_seeds_give_equal_simulations() {
    let scenario = Scenario {
        network: Network { jitter: Duration::from_millis(5), lost_replies: 0.01, ..Network::default() },
        clock_skew: Period::from_millis(100),
        skew: Skew::Zipf,
        ..scenario(Algorithm::FixedWindow)
    };
    let first = store_only(&scenario);
    assert_eq!(first, store_only(&scenario));
    assert!(SimulationMetrics::of(&scenario, &first).undecided > 0.001);
    assert_ne!(first, store_only(&Scenario { seed: 8, ..scenario }));
}

#[test]
fn progress_is_reported_from_zero_to_one() {
    let scenario = scenario(Algorithm::FixedWindow);
    let mut reported = Vec::new();
    let rules = scenario.rules(RuleCoordination::default());
    run(&scenario, &rules, |_| MemoryStore::new(10), |_| 0, |done| reported.push(done)).expect("a runtime");
    assert!(reported.is_sorted() && reported[0] < 0.01 && reported.last() == Some(&1.0));
}

const WAIT: Period = Period::from_secs(2);

/// One line for all callers.
fn one_line(scenario: &Scenario, max_wait: Period) -> WaitingOutcome {
    let scenario = Scenario { instances: 1, ..scenario.clone() };
    let rules = || scenario.rule_set(RuleCoordination::default());
    run_waiting(&scenario, max_wait, rules, |_| MemoryStore::new(10), |_| 0, |_| {}).expect("a runtime")
}

/// A line at each instance.
fn fleet(scenario: &Scenario, mode: Coordination, max_wait: Period) -> WaitingOutcome {
    coordinated(scenario, RuleCoordination { mode: Some(mode), ..RuleCoordination::default() }, max_wait)
}

/// A line at each instance, coordinated in this way.
fn coordinated(scenario: &Scenario, coordination: RuleCoordination, max_wait: Period) -> WaitingOutcome {
    let rules = || scenario.rule_set(coordination);
    let make = |Instance { number, remote, clock }| {
        let settings =
            CoordinationSettings { instance: format!("i{number}"), ..CoordinationSettings::default() };
        Coordinated::new(remote, std::sync::Arc::new(clock), settings)
    };
    run_waiting(scenario, max_wait, rules, make, |_| 0, |_| {}).expect("a runtime")
}

/// Compares the lines of all instances with one for all.
fn lines(scenario: &Scenario, mode: Coordination) -> WaitMetrics {
    WaitMetrics::of(scenario, WAIT, &fleet(scenario, mode, WAIT), &one_line(scenario, WAIT))
}

#[test]
fn one_line_admits_the_limit_in_each_window_and_rejects_who_cannot_be_served_in_time() {
    let scenario = Scenario {
        instances: 1,
        load: 2.0,
        arrivals: Arrivals::Steady,
        windows: 8,
        ..scenario(Algorithm::FixedWindow)
    };
    let outcome = one_line(&scenario, WAIT);
    let metrics = WaitMetrics::of(&scenario, WAIT, &outcome, &outcome);
    assert_eq!((metrics.overshoot, metrics.used, metrics.calls), (0.0, 1.0, 0.0));
    // 3,200 come; 1,600 are admitted in eight windows, and what the line then has in the next two
    assert_eq!(outcome.simulated.decisions.len(), 3_200);
    assert_near(metrics.rejected, 1_200.0 / 3_200.0, 0.01);
    // nobody waits for longer than the longest wait, and most wait nearly as long
    assert!(metrics.p99 <= WAIT && metrics.p50 > Period::from_secs(1), "{metrics:?}");
    let low = Scenario { load: 0.5, ..scenario };
    let outcome = one_line(&low, WAIT);
    let metrics = WaitMetrics::of(&low, WAIT, &outcome, &outcome);
    assert_eq!((metrics.rejected, metrics.p99), (0.0, Period::default()));
}

/// Every instance has waiters at the start of each window, and they do not all ask at once.
#[test]
fn the_lines_of_96_instances_use_the_limit_and_exceed_nothing() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        let tier = Tier { requests: 2_000, ..scenario(Algorithm::FixedWindow).tier };
        let scenario = Scenario { instances: 96, tier, load: 1.5, ..scenario(Algorithm::FixedWindow) };
        let metrics = lines(&scenario, mode);
        assert!(metrics.overshoot <= 0.0 && metrics.used >= 0.98, "{mode:?}: {metrics:?}");
        // 96, if all of them asked at once; those of a sixth of them, and some that ask again
        assert!(metrics.calls_at_start <= 30, "{mode:?}: {metrics:?}");
        assert!(metrics.rejected < 0.35 && metrics.p99 <= WAIT, "{mode:?}: {metrics:?}");
    }
}

/// Runs lines of 96 instances at `rate` calls a second that the limit admits, in windows of `millis`: the higher the
/// rate, the shorter they are.
fn check_rate(modes: &[Coordination], rate: u32, millis: u32, windows: u32) {
    let limit = rate / 1_000 * millis;
    let tier = Tier::fixed_window(limit, Period::from_millis(millis.into()));
    let scenario = Scenario { instances: 96, tier, load: 1.3, windows, ..scenario(Algorithm::FixedWindow) };
    let best = one_line(&scenario, WAIT);
    for mode in modes {
        let metrics = WaitMetrics::of(&scenario, WAIT, &fleet(&scenario, *mode, WAIT), &best);
        assert!(metrics.overshoot <= 0.0, "{mode:?}, {rate} a second: {metrics:?}");
        // what the division leaves over belongs to nobody
        let divided = if *mode == Coordination::Split { limit / 96 * 96 } else { limit };
        let least = 0.98 * f64::from(divided) / f64::from(limit);
        assert!(metrics.used >= least && metrics.p99 <= WAIT, "{mode:?}, {rate} a second: {metrics:?}");
        assert!(*mode != Coordination::Split || metrics.calls == 0.0, "{metrics:?}");
        // instances spread their first calls over a tenth of a window, at most over 60 ms
        assert!(millis < 600 || metrics.calls_at_start <= 30, "{mode:?}, {rate} a second: {metrics:?}");
    }
}

#[test]
fn fleets_use_2_000_calls_a_second() {
    check_rate(&[Coordination::Split, Coordination::Lease], 2_000, 1_000, 5);
}

#[test]
fn fleets_use_20_000_calls_a_second() {
    check_rate(&[Coordination::Lease], 20_000, 1_000, 3);
}

#[test]
fn fleets_use_200_000_calls_a_second() {
    check_rate(&[Coordination::Split, Coordination::Lease], 200_000, 50, 2);
}

#[test]
fn fleets_use_2_000_000_calls_a_second() {
    // the store is not asked, so a window may be as short as some ticks of the timer
    check_rate(&[Coordination::Split], 2_000_000, 5, 3);
    // some round trips to the store
    check_rate(&[Coordination::Lease], 2_000_000, 30, 2);
}

/// Of 10 calls a second, an instance has one in ten seconds: whoever waits is served, and all of the limit is used.
#[test]
fn callers_of_a_small_limit_wait_for_their_instance() {
    let tier = Tier { requests: 10, ..scenario(Algorithm::FixedWindow).tier };
    let scenario =
        Scenario { instances: 96, tier, load: 2.5, windows: 30, ..scenario(Algorithm::FixedWindow) };
    let wait = Period::from_secs(180);
    let outcome = fleet(&scenario, Coordination::Lease, wait);
    let begin = Timestamp::from_secs(1_700_000_001);
    let counted: Vec<usize> = (0..30)
        .map(|second| {
            let end = begin.after(Period::from_secs(second + 1));
            let is_counted = |decision: &&SimulatedDecision| {
                decision.admitted == Some(true) && decision.decided.window_end(scenario.tier.period) == end
            };
            outcome.simulated.decisions.iter().filter(is_counted).count()
        })
        .collect();
    assert!(counted.iter().all(|calls| *calls <= 10), "{counted:?}");
    // later on, all have callers
    assert!(counted[18..].iter().sum::<usize>() >= 118, "{counted:?}");
    let rejected =
        outcome.simulated.decisions.iter().filter(|decision| decision.admitted != Some(true)).count();
    assert_eq!(rejected, 0);
}

/// The calls of a peak are made later, and none is lost.
#[test]
fn lines_take_a_peak_apart() {
    let scenario =
        Scenario { load: 0.5, arrivals: Arrivals::Peak, windows: 10, ..scenario(Algorithm::FixedWindow) };
    let metrics = lines(&scenario, Coordination::Lease);
    assert!(metrics.overshoot <= 0.0 && metrics.used >= 0.98, "{metrics:?}");
    assert!(metrics.p99 > Period::from_millis(500) && metrics.rejected == 0.0, "{metrics:?}");
}

/// Callers count when they may proceed, not when they came.
#[test]
fn what_a_provider_counts_is_measured() {
    let scenario = Scenario { windows: 2, ..scenario(Algorithm::FixedWindow) };
    let begin = Timestamp::from_secs(1_700_000_000).window_end(scenario.tier.period);
    let at = |millis| begin.after(Period::from_millis(millis));
    let decision = |arrived, decided, admitted| SimulatedDecision {
        key: 0,
        arrived: at(arrived),
        decided: at(decided),
        admitted: Some(admitted),
    };
    let outcome = |admitted: u64, rejected: u64| {
        let admitted = (0..admitted).map(|i| decision(10, 1_000 + i, true));
        let decisions = admitted.chain((0..rejected).map(|_| decision(20, 20, false))).collect();
        let simulated = SimulationOutcome { decisions, calls: 50, fallbacks: 0 };
        WaitingOutcome { simulated, calls_at_start: 7 }
    };
    // the limit is 200: the second window has 250
    let metrics = WaitMetrics::of(&scenario, WAIT, &outcome(250, 250), &outcome(500, 0));
    assert_eq!((metrics.overshoot, metrics.used, metrics.rejected), (0.25, 0.5, 0.5));
    assert_eq!((metrics.p50, metrics.p99), (Period::from_millis(1_114), Period::from_millis(1_237)));
    let text = wait_table(&[("lease", metrics)]);
    let expected = "\
coordination  worst overshoot  used  rejected  waited p50  waited p99  store calls a caller  calls at a start
lease                   +25 %  50 %      50 %       1.1 s       1.2 s                  0.10                 7
";
    assert_eq!(text, expected);
}
