//! The simulation itself, on stores of which it is known what must come out.

#![expect(clippy::cast_precision_loss, reason = "small numbers, compared roughly")]

use std::time::Duration;

use weir::{
    limit::{
        Algorithm, Bucket, Decision, Hits, LimitCheck, Period, Refill, Reservation, ReservationRequest,
        RuleCoordination, Scope, Tier, Timestamp,
    },
    simulate::{Instance, Outcome, Scenario, Series, SimulationMetrics, Skew, chart, run},
    store::{
        Decisions, MemoryStore, Store, StoreError,
        remote::{Command, Op, Remote as _, Target},
        simulated::Network,
    },
};

/// LimitChecks the simulated store about everything.
struct Asking(Instance);

impl Store for Asking {
    async fn take(
        &self,
        asks: &[LimitCheck<'_>],
        _scope: Scope,
        now: Timestamp,
    ) -> Result<Decisions, StoreError> {
        let commands = asks.iter().map(|ask| {
            let tiers = ask.tiers().into();
            let target = Target {
                path: "simulated_key_value_".into(),
                tiers,
                over_limit_policy: ask.over_limit_policy(),
            };
            Command { target: target.into(), at: now, op: Op::Take { hits: ask.hits.0 } }
        });
        let replies = self.0.remote.call(commands.collect()).await;
        let replies = replies.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let taken = |(ask, reply): (&LimitCheck<'_>, _)| {
            let reply: weir::store::remote::Reply = reply;
            Decision {
                tier: 0,
                over: reply.granted < ask.hits.0,
                before: ask.hits,
                remaining: 0,
                reset: Period::default(),
                cached: false,
            }
        };
        Ok(asks.iter().zip(replies.replies.into_iter().flatten()).map(taken).collect())
    }

    async fn reserve(
        &self,
        _: &LimitCheck<'_>,
        _: ReservationRequest,
        _: Timestamp,
    ) -> Result<Reservation, StoreError> {
        Err(StoreError::Unavailable("it only takes".to_owned()))
    }

    async fn release(
        &self,
        _: &LimitCheck<'_>,
        _: Reservation,
        _: Hits,
        _: Timestamp,
    ) -> Result<(), StoreError> {
        Err(StoreError::Unavailable("it only takes".to_owned()))
    }
}

fn scenario(algorithm: Algorithm) -> Scenario {
    Scenario {
        instances: 3,
        tier: Tier { requests: 200, period: Period::from_secs(1), algorithm },
        load: 4.0,
        skew: Skew::Even,
        network: Network::default(),
        clock_skew: Period::default(),
        windows: 5,
        seed: 7,
    }
}

fn asking(scenario: &Scenario) -> Outcome {
    run(scenario, &scenario.rules(RuleCoordination::default()), Asking, |_| 0, |_| {}).expect("it runs")
}

fn apart(scenario: &Scenario) -> Outcome {
    let rules = scenario.rules(RuleCoordination::default());
    run(scenario, &rules, |_| MemoryStore::new(10), |_| 0, |_| {}).expect("it runs")
}

fn near(is: f64, should_be: f64, within: f64) {
    assert!((is - should_be).abs() <= within, "{is}, not {should_be}");
}

const BUCKET: Algorithm =
    Algorithm::TokenBucket(Bucket { burst: 100, refill: Refill::Continuous, strict: false });

#[test]
fn one_store_for_all_keeps_the_limit_and_every_decision_waits() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, BUCKET] {
        let scenario = scenario(algorithm);
        let outcome = asking(&scenario);
        let figures = SimulationMetrics::of(&scenario, &outcome);
        assert!(figures.overshoot <= 0.0, "{algorithm:?}: {figures:?}");
        assert!(figures.used > 0.9, "{algorithm:?}: {figures:?}");
        assert_eq!((figures.calls, figures.waited, figures.undecided), (1.0, 1.0, 0.0));
        assert_eq!(figures.typical_wait, Period::from_millis(2));
        near(outcome.decisions.len() as f64, 4_000.0, 300.0);
    }
}

#[test]
fn instances_that_do_not_know_of_each_other_admit_the_limit_each() {
    let fixed = scenario(Algorithm::FixedWindow);
    let figures = SimulationMetrics::of(&fixed, &apart(&fixed));
    near(figures.overshoot, 2.0, 0.01);
    assert_eq!((figures.calls, figures.waited, figures.used), (0.0, 0.0, 1.0));
    let sliding = scenario(Algorithm::SlidingWindow);
    near(SimulationMetrics::of(&sliding, &apart(&sliding)).overshoot, 2.0, 0.05);
    let bucket = scenario(BUCKET);
    // three times the burst, and what flows into two further buckets during the five seconds
    near(SimulationMetrics::of(&bucket, &apart(&bucket)).overshoot, 2.0 + 2.0 * 200.0 * 5.0 / 100.0, 1.0);
    // a limit that is never reached is not exceeded
    let idle = Scenario { load: 0.1, ..scenario(Algorithm::FixedWindow) };
    assert!(SimulationMetrics::of(&idle, &apart(&idle)).overshoot < -0.8);
}

#[test]
fn the_same_seed_is_the_same_simulation() {
    let scenario = Scenario {
        network: Network { jitter: Duration::from_millis(5), lost_replies: 0.01, ..Network::default() },
        clock_skew: Period::from_millis(100),
        skew: Skew::Zipf,
        ..scenario(Algorithm::FixedWindow)
    };
    let first = asking(&scenario);
    assert_eq!(first, asking(&scenario));
    assert!(SimulationMetrics::of(&scenario, &first).undecided > 0.001);
    assert_ne!(first, asking(&Scenario { seed: 8, ..scenario }));
}

#[test]
fn progress_goes_from_none_to_all() {
    let scenario = scenario(Algorithm::FixedWindow);
    let mut told = Vec::new();
    let rules = scenario.rules(RuleCoordination::default());
    run(&scenario, &rules, |_| MemoryStore::new(10), |_| 0, |done| told.push(done)).expect("it runs");
    assert!(told.is_sorted() && told[0] < 0.01 && told.last() == Some(&1.0));
}

#[test]
fn the_chart_shows_what_was_admitted_above_the_limit() {
    let scenario = scenario(Algorithm::FixedWindow);
    let way = |outcome: Outcome| {
        let series = Series::of(&scenario, &outcome, 100);
        (SimulationMetrics::of(&scenario, &outcome), series)
    };
    let ((figures, series), (exact, kept)) = (way(apart(&scenario)), way(asking(&scenario)));
    assert_eq!(series.points.iter().map(|(_, admitted)| *admitted).max(), Some(600));
    assert_eq!(kept.points.iter().map(|(_, admitted)| *admitted).max(), Some(200));
    let svg = chart(&scenario, &[("local", figures, series), ("strict", exact, kept)]);
    // one in the legend of each, and one panel of the two that has something above the limit
    assert_eq!((svg.matches("class=\"over\"").count(), svg.matches("class=\"admitted\"").count()), (2, 3));
    assert!(svg.contains(">local<") && svg.contains(">strict<") && svg.contains("worst overshoot +200 %"));
}
