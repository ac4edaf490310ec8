//! Compares the decisions about one key with those of one counter for all instances.

use weir_limit::{Direction, Hits, OverLimitPolicy, Tier, Timestamp, algorithm::CounterState, decide};

use super::SimulatedDecision;

/// Counts the rejections of one key for which a counter of all admitted requests had quota left. The store decides
/// between arrival and decision, so both must have had quota left, whichever of them the admitted requests count at.
pub(super) fn rejected_early(tier: &Tier, decisions: &[SimulatedDecision]) -> usize {
    // for each decision, how often quota was left
    let mut left = vec![0_u8; decisions.len()];
    let attributions: [fn(&SimulatedDecision) -> Timestamp; 2] = [|d| d.arrived, |d| d.decided];
    for counted_at in attributions {
        // rejections at a time come after the requests that were admitted at that time
        let mut events: Vec<(Timestamp, bool, usize)> = Vec::new();
        for (i, decision) in decisions.iter().enumerate() {
            match decision.admitted {
                Some(true) => events.push((counted_at(decision), false, i)),
                Some(false) => events.extend([(decision.arrived, true, i), (decision.decided, true, i)]),
                None => {}
            }
        }
        events.sort_unstable();
        let Some((begin, ..)) = events.first().copied() else { return 0 };
        let mut counter = CounterState::unused(tier, begin);
        for (at, rejected, i) in events {
            if rejected {
                left[i] += u8::from(counter.probe(tier, at, Hits(1)).fits);
            } else {
                counter.take(tier, at, Hits(1));
            }
        }
    }
    left.into_iter().filter(|times| *times == 4).count()
}

/// The requests that one counter would have admitted, had it decided at the beginning, middle or end: the fewest.
pub(super) fn by_one_counter(tier: &Tier, decisions: &[SimulatedDecision]) -> u64 {
    let times: [fn(&SimulatedDecision) -> Timestamp; 3] = [
        |d| d.arrived,
        |d| Timestamp::from_nanos(u64::midpoint(d.arrived.as_nanos(), d.decided.as_nanos())),
        |d| d.decided,
    ];
    let counts = times.map(|time| {
        let mut times: Vec<Timestamp> = decisions.iter().map(time).collect();
        times.sort_unstable();
        admitted_by_one_counter(tier, &times)
    });
    counts.into_iter().min().unwrap_or_default()
}

/// `arrived` is sorted.
fn admitted_by_one_counter(tier: &Tier, arrived: &[Timestamp]) -> u64 {
    let Some(begin) = arrived.first() else { return 0 };
    let mut counter = [CounterState::unused(tier, *begin)];
    let admits = |at: &&Timestamp| {
        !decide(
            std::slice::from_ref(tier),
            &mut counter,
            OverLimitPolicy::Ignore,
            Direction::Take,
            Hits(1),
            **at,
        )
        .over
    };
    arrived.iter().filter(admits).count() as u64
}
