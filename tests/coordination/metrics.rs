//! What a way costs, as `weir simulate` tells it and the documentation has it. There is no load and no clock of a machine in
//! it: the same figures come out everywhere.

use std::sync::Arc;

use weir::{
    limit::{Algorithm, Coordination, Period, RuleCoordination, Tier},
    simulate::{Instance, Scenario, SimulationMetrics, Skew, run},
    store::{
        coordinated::{Coordinated, CoordinationSettings},
        simulated::{Network, SimulatedRemote},
    },
};

/// Three fixed windows of `limit` in `seconds`.
fn scenario(instances: usize, limit: u32, seconds: u64, load: f64, skew: Skew) -> Scenario {
    let period = Period::from_secs(seconds);
    Scenario {
        instances,
        tier: Tier { requests: limit, period, algorithm: Algorithm::FixedWindow },
        load,
        skew,
        network: Network::default(),
        clock_skew: Period::default(),
        windows: 3,
        seed: 3,
    }
}

/// What came of it.
fn figures(scenario: &Scenario, mode: Coordination) -> SimulationMetrics {
    let rules = scenario.rules(RuleCoordination { mode: Some(mode), ..RuleCoordination::default() });
    let make = |Instance { number, remote, clock }| -> Coordinated<SimulatedRemote> {
        let settings =
            CoordinationSettings { instance: format!("i{number}"), ..CoordinationSettings::default() };
        Coordinated::new(remote, Arc::new(clock), settings)
    };
    let outcome = run(scenario, &rules, make, |store| store.coordination_metrics().fallback.get(), |_| {});
    SimulationMetrics::of(scenario, &outcome.expect("it runs"))
}

#[test]
fn leases_of_fixed_windows_cost_little_however_many_share_them() {
    // calls a decision, and the share of decisions that wait: a little more than what comes out
    for (instances, limit, seconds, load, skew, calls, waited) in [
        (3, 1_000, 1, 2.0, Skew::Even, 0.018, 0.02),
        (3, 1_000, 1, 2.0, Skew::Zipf, 0.02, 0.02),
        (10, 1_000, 1, 10.0, Skew::Even, 0.010, 0.015),
        (10, 1_000, 1, 10.0, Skew::Zipf, 0.012, 0.02),
        (10, 1_000, 10, 2.0, Skew::Even, 0.058, 0.02),
        (10, 1_000, 10, 2.0, Skew::Zipf, 0.075, 0.02),
        (96, 10_000, 1, 2.0, Skew::Even, 0.056, 0.027),
    ] {
        let figures = figures(&scenario(instances, limit, seconds, load, skew), Coordination::Lease);
        let told =
            format!("{instances} instances, {limit} in {seconds} s, {load} times, {skew:?}: {figures:?}");
        assert!(figures.overshoot <= 0.0 && figures.used >= 0.994 && figures.fallback == 0.0, "{told}");
        assert!(figures.calls <= calls && figures.waited <= waited, "{told}");
    }
}

#[test]
fn the_first_window_of_a_key_slips_by_little_even_if_it_is_gone_in_no_time() {
    for (seed, skew) in [(1, Skew::Even), (2, Skew::Even), (3, Skew::Zipf), (4, Skew::Zipf)] {
        let scenario = Scenario { windows: 1, seed, ..scenario(10, 1_000, 1, 10.0, skew) };
        let figures = figures(&scenario, Coordination::Interval);
        // 4 or 5 % come out; in the time of two words alone 40 of 1,000 come
        assert!(figures.overshoot <= 0.1, "{skew:?}: {figures:?}");
        assert!(figures.calls <= 0.015 && figures.waited == 0.0, "{skew:?}: {figures:?}");
    }
}
