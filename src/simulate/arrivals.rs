//! The times at which the requests of a scenario arrive, and their keys.

use weir_coordinate::simulated::Random;

use super::scenario::{Arrivals, Scenario};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SimulatedArrival {
    /// Seconds since the start.
    pub(super) at: f64,
    pub(super) key: u32,
}

/// In the order of their arrival.
pub(super) fn arrivals(scenario: &Scenario, random: Random) -> Box<dyn Iterator<Item = SimulatedArrival>> {
    let end = scenario.end().since(scenario.begin()).as_nanos() as f64 / 1e9;
    match scenario.arrivals {
        Arrivals::Random => Box::new(at_random(scenario.rate(), scenario.keys, end, random)),
        Arrivals::Steady => Box::new(steady(scenario.rate(), scenario.keys, end)),
        Arrivals::Peak => {
            let at_peak = move |arrival: SimulatedArrival| SimulatedArrival {
                at: end * peaked(arrival.at / end),
                ..arrival
            };
            Box::new(at_random(scenario.rate(), scenario.keys, end, random).map(at_peak))
        }
        Arrivals::AtOnce => {
            let each = (f64::from(scenario.tier.requests) * scenario.load).round() as usize;
            let (keys, windows, period) =
                (scenario.keys, scenario.windows, scenario.tier.period.as_nanos() as f64 / 1e9);
            Box::new(at_once(each, keys, windows, period, random))
        }
    }
}

fn at_random(rate: f64, keys: usize, end: f64, mut random: Random) -> impl Iterator<Item = SimulatedArrival> {
    let mut at = 0.0;
    std::iter::from_fn(move || {
        at += random.exponential(1.0 / rate);
        // one key needs no random number
        let key = if keys == 1 { 0 } else { (random.unit() * keys as f64) as u32 };
        (at < end).then_some(SimulatedArrival { at, key })
    })
}

fn steady(rate: f64, keys: usize, end: f64) -> impl Iterator<Item = SimulatedArrival> {
    let arrival =
        move |i: u64| SimulatedArrival { at: (i as f64 + 0.5) / rate, key: (i % keys as u64) as u32 };
    (0..).map(arrival).take_while(move |arrival| arrival.at < end)
}

/// The share of the time after which a share of the requests has arrived.
fn peaked(share: f64) -> f64 {
    match share {
        _ if share < 0.2 => share / 0.5,
        _ if share < 0.8 => 0.4 + (share - 0.2) / 3.0,
        _ => 0.6 + (share - 0.8) / 0.5,
    }
}

fn at_once(
    each: usize,
    keys: usize,
    windows: u32,
    period: f64,
    mut random: Random,
) -> impl Iterator<Item = SimulatedArrival> {
    (0..windows).flat_map(move |window| {
        let mut bursts: Vec<SimulatedArrival> = (0..keys)
            .map(|key| SimulatedArrival { at: period * (f64::from(window) + random.unit()), key: key as u32 })
            .collect();
        bursts.sort_unstable_by(|a, b| a.at.total_cmp(&b.at));
        bursts.into_iter().flat_map(move |burst| std::iter::repeat_n(burst, each))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_arrivals_have_the_rate_and_reach_every_key() {
        let all: Vec<SimulatedArrival> = at_random(1_000.0, 10, 10.0, Random::new(1)).collect();
        assert!((9_700..10_300).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted_by(|a, b| a.at <= b.at) && all.iter().all(|arrival| arrival.at < 10.0));
        for key in 0..10 {
            let of_key = all.iter().filter(|arrival| arrival.key == key).count();
            assert!((850..1_150).contains(&of_key), "{of_key}");
        }
    }

    #[test]
    fn steady_arrivals_have_equal_gaps() {
        let all: Vec<SimulatedArrival> = steady(10.0, 3, 2.0).collect();
        assert_eq!(all.len(), 20);
        assert!(all.windows(2).all(|pair| (pair[1].at - pair[0].at - 0.1).abs() < 1e-9));
        assert_eq!(all.iter().filter(|arrival| arrival.key == 2).count(), 6);
    }

    #[test]
    fn a_peak_moves_requests_and_adds_none() {
        let at_peak = |arrival: SimulatedArrival| 10.0 * peaked(arrival.at / 10.0);
        let times: Vec<f64> = at_random(1_000.0, 1, 10.0, Random::new(1)).map(at_peak).collect();
        assert!(times.is_sorted() && times.last().is_some_and(|last| *last < 10.0));
        let between = |from: f64, to: f64| times.iter().filter(|at| (from..to).contains(*at)).count();
        assert!((9_700..10_300).contains(&times.len()), "{}", times.len());
        for (from, to, expected) in [(0.0, 4.0, 2_000), (4.0, 6.0, 6_000), (6.0, 10.0, 2_000)] {
            let got = between(from, to);
            assert!(got.abs_diff(expected) < 250, "{got} from {from} to {to}");
        }
    }

    #[test]
    fn a_burst_of_each_key_arrives_in_each_window() {
        let all: Vec<SimulatedArrival> = at_once(7, 3, 2, 0.5, Random::new(1)).collect();
        assert!(all.len() == 42 && all.is_sorted_by(|a, b| a.at <= b.at));
        for (window, key) in [(0, 0), (0, 2), (1, 1)] {
            let window = f64::from(window) * 0.5..f64::from(window + 1) * 0.5;
            let mut times = all.iter().filter(|arrival| arrival.key == key && window.contains(&arrival.at));
            let first = times.next().expect("a burst");
            assert_eq!(times.filter(|arrival| *arrival == first).count(), 6);
        }
    }
}
