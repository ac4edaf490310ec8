//! Which coordination mode to choose, by what was simulated: what each costs, and what it can exceed.

use std::fmt::Write as _;

use weir_limit::Coordination;

use super::{
    Scenario, SimulationMetrics,
    scenario::significant,
    table::{millis, percent},
};

/// The overshoot up to which a mode that does not wait is suggested.
const SMALL_OVERSHOOT: f64 = 0.1;

/// Says which of `modes` to choose: for most limits, to never exceed the limit, and to never wait.
pub fn suggest(scenario: &Scenario, modes: &[(Coordination, SimulationMetrics)]) -> String {
    let find = |mode| modes.iter().find(|(name, _)| *name == mode);
    // among those that never exceed the limit, the one whose decisions wait the least, and then the one with the fewest
    // calls
    let exact = modes.iter().filter(|(mode, metrics)| is_exact(*mode, scenario) && metrics.overshoot <= 0.0);
    let exact =
        exact.min_by(|(_, a), (_, b)| a.waited.total_cmp(&b.waited).then(a.calls.total_cmp(&b.calls)));
    let fits = |metrics: &SimulationMetrics| metrics.overshoot <= SMALL_OVERSHOOT && metrics.fallback < 0.01;
    let general = find(Coordination::Auto).filter(|(_, metrics)| fits(metrics)).or(exact);
    let quick = modes.iter().filter(|(mode, metrics)| {
        metrics.waited == 0.0 && (mode.is_coordinated() || is_exact(*mode, scenario))
    });
    let quick = quick.min_by(|(_, a), (_, b)| a.overshoot.total_cmp(&b.overshoot));
    let mut text = String::new();
    for (what, chosen) in
        [("suggested", general), ("never above the limit", exact), ("no request may wait", quick)]
    {
        match chosen {
            Some((mode, metrics)) => write_mode(&mut text, what, *mode, metrics, scenario),
            None => {
                // writing to a string cannot fail
                let _ = writeln!(text, "{what}: none of the simulated modes");
            }
        }
    }
    text
}

/// Whether `mode` never exceeds the limit, while the store keeps its data.
fn is_exact(mode: Coordination, scenario: &Scenario) -> bool {
    let mode = mode.of_limit(scenario.tier.capacity().into(), scenario.instances);
    mode.is_exact() || scenario.instances == 1
}

fn write_mode(
    text: &mut String,
    what: &str,
    mode: Coordination,
    metrics: &SimulationMetrics,
    scenario: &Scenario,
) {
    let waits = if metrics.waited > 0.0 {
        let (typical, longest) = (millis(metrics.typical_wait), millis(metrics.longest_wait));
        format!(
            "{} of the decisions wait, {typical} typically and {longest} at most",
            percent(metrics.waited)
        )
    } else {
        "no decision waits".to_owned()
    };
    let most = scenario.instances;
    let exceeds = match mode {
        _ if is_exact(mode, scenario) => "nothing, while the store replies and keeps its data".to_owned(),
        mode if !mode.is_coordinated() => format!("{most} times the limit in all"),
        _ if metrics.overshoot > 0.0 => format!(
            "{} more than the limit in the worst period here; more with longer round trips",
            percent(metrics.overshoot)
        ),
        _ => "the limit by what arrives within two round trips; here nothing".to_owned(),
    };
    let calls = significant(metrics.calls * scenario.rate());
    // writing to a string cannot fail
    let _ = writeln!(
        text,
        "{what}: coordination: {}\n  costs: {waits}; {calls} store calls a second\n  can exceed: {exceeds}",
        mode.name()
    );
    if metrics.rejected_early > 0.001 {
        let _ = writeln!(text, "  rejects {} of the requests early", percent(metrics.rejected_early));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Arrivals, Skew};
    use weir_coordinate::simulated::Network;
    use weir_limit::{Period, Tier};

    fn scenario(instances: usize, requests: u32) -> Scenario {
        Scenario {
            instances,
            keys: 1,
            tier: Tier::fixed_window(requests, Period::from_secs(1)),
            load: 5.0,
            arrivals: Arrivals::Random,
            skew: Skew::Even,
            network: Network::default(),
            clock_skew: Period::default(),
            windows: 10,
            seed: 1,
        }
    }

    fn metrics(overshoot: f64, calls: f64, waited: f64) -> SimulationMetrics {
        let wait = if waited > 0.0 { Period::from_millis(2) } else { Period::default() };
        SimulationMetrics {
            overshoot,
            used: 1.0,
            rejected_early: 0.0,
            calls,
            waited,
            typical_wait: wait,
            longest_wait: wait,
            fallback: 0.0,
            undecided: 0.0,
        }
    }

    fn suggested(scenario: &Scenario, as_auto: SimulationMetrics) -> Vec<String> {
        let modes = [
            (Coordination::Auto, as_auto),
            (Coordination::Local, metrics(9.0, 0.0, 0.0)),
            (Coordination::Interval, metrics(0.03, 0.01, 0.0)),
            (Coordination::Lease, metrics(0.0, 0.02, 0.02)),
            (Coordination::Strict, metrics(0.0, 0.5, 1.0)),
        ];
        suggest(scenario, &modes).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_large_limit_is_suggested_what_hardly_waits() {
        let lines = suggested(&scenario(10, 1_000), metrics(0.03, 0.01, 0.0));
        assert_eq!(
            lines,
            [
                "suggested: coordination: auto",
                "  costs: no decision waits; 50 store calls a second",
                "  can exceed: 3 % more than the limit in the worst period here; more with longer round trips",
                "never above the limit: coordination: lease",
                "  costs: 2 % of the decisions wait, 2 ms typically and 2 ms at most; 100 store calls a second",
                "  can exceed: nothing, while the store replies and keeps its data",
                "no request may wait: coordination: auto",
                "  costs: no decision waits; 50 store calls a second",
                "  can exceed: 3 % more than the limit in the worst period here; more with longer round trips",
            ]
        );
    }

    #[test]
    fn what_exceeds_a_limit_by_much_is_not_suggested() {
        let lines = suggested(&scenario(10, 1_000), metrics(0.4, 0.01, 0.001));
        assert_eq!(lines[0], "suggested: coordination: lease");
        assert_eq!(lines[6], "no request may wait: coordination: interval");
    }

    #[test]
    fn auto_is_exact_for_a_small_limit() {
        let lines = suggested(&scenario(10, 400), metrics(0.0, 0.02, 0.01));
        assert_eq!(lines[3], "never above the limit: coordination: auto");
        assert_eq!(lines[5], "  can exceed: nothing, while the store replies and keeps its data");
    }

    #[test]
    fn nothing_is_suggested_that_was_not_simulated() {
        let only = [(Coordination::Local, metrics(9.0, 0.0, 0.0))];
        let text = suggest(&scenario(10, 1_000), &only);
        assert_eq!(text.matches("none of the simulated modes").count(), 3, "{text}");
    }
}
