//! Tests the simulation on stores with known results.

#![expect(clippy::cast_precision_loss, reason = "small numbers, compared roughly")]

use std::time::Duration;

use weir::{
    limit::{
        Algorithm, Bucket, Decision, Hits, LimitCheck, Period, Refill, Reservation, ReservationRequest,
        RuleCoordination, Scope, Tier, Timestamp,
    },
    simulate::{
        Arrivals, Instance, Scenario, Series, SimulationMetrics, SimulationOutcome, Skew, chart, run,
    },
    store::{
        Decisions, MemoryStore, Store, StoreError, TakeOptions,
        remote::{Command, Op, Remote as _, Target},
        simulated::Network,
    },
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
            Command { target: target.into(), at: now, op: Op::Take { hits: check.hits.0 } }
        });
        let replies = self.0.remote.call(commands.collect()).await;
        let replies = replies.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let decision = |(check, reply): (&LimitCheck<'_>, _)| {
            let reply: weir::store::remote::Reply = reply;
            Decision {
                tier: 0,
                over: reply.granted < check.hits.0,
                before: check.hits,
                remaining: 0,
                reset: Period::default(),
                cached: false,
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
        tier: Tier { requests: 200, period: Period::from_secs(1), algorithm },
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

#[test]
fn the_chart_marks_requests_admitted_above_the_limit() {
    let scenario = scenario(Algorithm::FixedWindow);
    let simulated = |outcome: SimulationOutcome| {
        let series = Series::of(&scenario, &outcome, 100);
        (SimulationMetrics::of(&scenario, &outcome), series)
    };
    let ((metrics, series), (exact, kept)) =
        (simulated(uncoordinated(&scenario)), simulated(store_only(&scenario)));
    assert_eq!(series.points.iter().map(|(_, admitted)| *admitted).max(), Some(600));
    assert_eq!(kept.points.iter().map(|(_, admitted)| *admitted).max(), Some(200));
    let svg = chart(&scenario, &[("local", metrics, series), ("strict", exact, kept)]);
    // one of each in the legend; one of the two panels shows requests above the limit
    assert_eq!((svg.matches("class=\"over\"").count(), svg.matches("class=\"admitted\"").count()), (2, 3));
    assert!(svg.contains(">local<") && svg.contains(">strict<") && svg.contains("worst overshoot +200 %"));
}
