//! What a slow limit costs: the calls to the store for each decision.

use std::sync::Arc;

use weir::simulate::{Arrivals, Scenario, SimulationMetrics, Skew, run};
use weir_coordinate::{Coordinated, CoordinationSettings, simulated::Network};
use weir_limit::{Coordination, Period, RuleCoordination, Tier};

/// Returns what three instances that share 1,000 requests an hour do in two hours, under this `load`, 1.0 being the limit.
fn slow(mode: Coordination, load: f64) -> SimulationMetrics {
    let scenario = Scenario {
        instances: 3,
        keys: 1,
        tier: Tier::fixed_window(1_000, Period::from_secs(3_600)),
        load,
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

/// `auto` counts such a limit by `interval`: a hit that changes nothing soon waits for the next ones. `lease` asks again
/// for most hits of a limit that is nearly used up.
#[test]
fn a_slow_limit_makes_few_calls() {
    let bounds = [(Coordination::Auto, 0.25), (Coordination::Lease, 0.8), (Coordination::Strict, 1.02)];
    for (mode, most) in bounds {
        let calls = slow(mode, 1.0).calls;
        assert!(calls > 0.0 && calls <= most, "{mode:?}: {calls} calls a decision");
        let SimulationMetrics { overshoot, used, calls, .. } = slow(mode, 2.0);
        assert!(calls <= most, "{mode:?}, overloaded: {calls} calls a decision");
        assert!(overshoot <= 0.01 && used >= 0.99, "{mode:?}: {overshoot} above the limit, {used} used");
    }
}
