//! What smooth windows promise, on a clock of the test: even admissions, and a limit that is used up.

use weir_limit::{
    Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CounterState, decide, line::Entered,
};

use super::world::Limited;

/// The instants at which a timer wakes are whole milliseconds.
const SLOT: u64 = 1_000_000;

const SECOND: u64 = 1_000_000_000;

/// Returns the tiers of a smooth limit of `requests` per second, with the default burst of the rule language.
fn tiers(requests: u32) -> [Tier; 2] {
    let burst = requests.div_ceil(100).max(5).min(requests);
    let window = Tier::fixed_window(requests, Period::from_secs(1));
    [window.clone(), window.pace(burst)]
}

/// How callers ask for ten times the limit.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// They wait.
    Waiters,
    /// They ask once.
    Ordinary,
}

/// Returns the hits that are admitted in each 10 ms of `windows`, while the demand is ten times the limit.
fn run(tiers: &[Tier], requests: u32, demand: Demand, windows: u64) -> Vec<u64> {
    let start = Timestamp::from_secs(1_000);
    let mut limited = Limited::new(tiers, start);
    let mut slots = vec![0; usize::try_from(windows).expect("few") * 100];
    for tick in 0..windows * 1_000 {
        let now = start.after(Period::from_nanos(tick * SLOT));
        let waiting = limited.line.waiting();
        let mut admitted = 0;
        if limited.line.timer().is_some_and(|timer| timer <= now) {
            limited.turn(now);
        }
        admitted += waiting - limited.line.waiting();
        // ten times the limit, without a line that grows for ever
        let asks =
            (u64::from(requests) / 100).max(u64::from(tick * u64::from(requests) % 1_000 < requests.into()));
        for _ in 0..asks {
            match demand {
                Demand::Ordinary => admitted += usize::from(limited.ask(now, 1)),
                Demand::Waiters if limited.line.waiting() as u64 > u64::from(requests) / 10 + 10 => {}
                Demand::Waiters => {
                    let entered = limited.enter(now, 1, Period::from_secs(60));
                    admitted += usize::from(entered == Entered::Admitted);
                }
            }
        }
        slots[usize::try_from(tick / 10).expect("few")] += admitted as u64;
    }
    slots
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn variation(slots: &[u64]) -> f64 {
    let mean = slots.iter().sum::<u64>() as f64 / slots.len() as f64;
    let squares: f64 = slots.iter().map(|hits| (*hits as f64 - mean).powi(2)).sum();
    (squares / slots.len() as f64).sqrt() / mean
}

#[test]
fn large_limits_are_admitted_evenly_and_used_up() {
    for (requests, demand) in [
        (1_000, Demand::Waiters),
        (1_000, Demand::Ordinary),
        (10_000, Demand::Waiters),
        (30_000, Demand::Ordinary),
    ] {
        let slots = run(&tiers(requests), requests, demand, 4);
        for (i, window) in slots.chunks(100).enumerate() {
            let used: u64 = window.iter().sum();
            assert!(variation(window) < 0.15, "{requests}, window {i}: {}: {window:?}", variation(window));
            assert!(used * 100 >= u64::from(requests) * 98, "{requests}, window {i}: {used}");
            assert!(used <= u64::from(requests), "{requests}, window {i}: {used}");
        }
    }
}

#[test]
fn small_limits_are_admitted_within_one_hit_in_ten_milliseconds() {
    for requests in [1, 3, 7, 100, 300, 999] {
        for demand in [Demand::Waiters, Demand::Ordinary] {
            let slots = run(&tiers(requests), requests, demand, 5);
            for window in slots[100..].chunks(100) {
                let even = u64::from(requests) / 100;
                let burst = u64::from(tiers(requests)[1].capacity());
                let mut used = 0;
                for (slot, hits) in window.iter().enumerate() {
                    // a window begins with a burst, and is used up as much sooner
                    let most = if slot == 0 { burst + even + 1 } else { even + 2 };
                    let least = if used + even < u64::from(requests) { even.saturating_sub(1) } else { 0 };
                    assert!((least..=most).contains(hits), "{requests} {demand:?}: {window:?}");
                    used += hits;
                }
                assert!(used * 100 >= u64::from(requests) * 98, "{requests} {demand:?}: {used}");
            }
        }
    }
}

#[test]
fn smooth_sliding_windows_are_used_to_a_hundredth() {
    for requests in [100_u32, 1_000, 10_000] {
        // as the rule language compiles them
        let burst = requests.div_ceil(100);
        let [window, _] = tiers(requests);
        let bucket = Tier { requests: requests - burst + 1, ..window }.pace(burst);
        let slots = run(&[bucket], requests, Demand::Waiters, 4);
        for window in slots[100..].chunks(100) {
            let used: u64 = window.iter().sum();
            assert!(used * 100 >= u64::from(requests) * 98, "{requests}: {used}");
        }
        for start in 0..slots.len() - 100 {
            let sum: u64 = slots[start..start + 100].iter().sum();
            assert!(sum <= requests.into(), "{requests}: {sum} in the second from {start}");
        }
        if requests >= 1_000 {
            assert!(variation(&slots[100..]) < 0.15, "{requests}: {}", variation(&slots[100..]));
        }
    }
}

/// Demand below the pace is not delayed or rejected.
#[test]
fn a_low_demand_passes() {
    let mut limited = Limited::new(&tiers(100), Timestamp::from_secs(1_000));
    for i in 0..400_u64 {
        let at = Timestamp::from_nanos(1_000 * SECOND + i * (SECOND / 90));
        assert!(limited.ask(at, 1), "request {i}");
    }
}

/// A rejected request is told the wait for the pace, although the window has room.
#[test]
fn a_paced_request_is_told_when_to_come_back() {
    let start = Timestamp::from_secs(1_000);
    let [window, _] = tiers(100);
    let tiers = [window.clone(), window.pace(1)];
    let mut counters = tiers.each_ref().map(|tier| CounterState::unused(tier, start));
    let mut ask = |now| {
        let direction = Direction::Take;
        decide(&tiers, &mut counters, OverLimitPolicy::Ignore, direction, Hits(1), now)
    };
    assert!(!ask(start).over);
    let paced = ask(start);
    assert!(paced.over, "{paced:?}");
    assert_eq!((paced.remaining, paced.reset), (0, Period::from_nanos(SECOND / 100)));
    assert!(!ask(start.after(paced.reset)).over);
}
