//! What a slow limit costs: the calls to the store for each decision.

use std::sync::Arc;

use weir::{
    limit::{Algorithm, Coordination, Period, RuleCoordination, Tier},
    simulate::{Arrivals, Scenario, SimulationMetrics, Skew, run},
    store::{
        coordinated::{Coordinated, CoordinationSettings},
        simulated::Network,
    },
};

/// Returns what three instances that share 1,000 requests an hour do in two hours, under a load of the limit.
fn slow(mode: Coordination) -> SimulationMetrics {
    let scenario = Scenario {
        instances: 3,
        keys: 1,
        tier: Tier { requests: 1_000, period: Period::from_secs(3_600), algorithm: Algorithm::FixedWindow },
        load: 1.0,
        arrivals: Arrivals::Random,
        skew: Skew::Even,
        network: Network::default(),
        clock_skew: Period::default(),
        windows: 2,
        seed: 1,
    };
    let rules = scenario.rules(RuleCoordination { mode: Some(mode), ..RuleCoordination::default() });
    let make = |instance: weir::simulate::Instance| {
        let settings = CoordinationSettings {
            instance: format!("i{}", instance.number),
            max_counters: 64,
            ..CoordinationSettings::default()
        };
        Coordinated::new(instance.remote, Arc::new(instance.clock), settings)
    };
    let outcome = run(&scenario, &rules, make, |_| 0, |_| {}).expect("a runtime");
    SimulationMetrics::of(&scenario, &outcome)
}

/// The bounds are what each mode needs at present. `auto` counts such a limit by `interval`, and reports nearly each hit
/// alone, and `lease` asks again for most hits of a limit that is nearly used up. The aim is a quarter of a call: a hit that
/// changes nothing soon may wait for the next ones.
#[test]
fn a_slow_limit_makes_no_more_calls_than_before() {
    let bounds = [(Coordination::Auto, 1.0), (Coordination::Lease, 0.8), (Coordination::Strict, 1.02)];
    let measured = bounds.map(|(mode, most)| (mode, slow(mode).calls, most));
    for (mode, calls, most) in measured {
        assert!(calls > 0.0 && calls <= most, "{mode:?}: {calls} calls a decision, of {measured:?}");
    }
}
