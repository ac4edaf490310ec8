//! Tests hits that are reserved in a sliding window and given back unused, with other hits between them.

use proptest::{collection::vec, prelude::*};
use weir_limit::{Hits, Period, Tier, Timestamp, algorithm::CounterState};

use crate::support::START;

/// The period in units of which a hold has at most a hundredth, as leases have.
const PERIOD: u64 = 120_000;

/// A step, so many nanoseconds after the last one.
#[derive(Clone, Debug)]
struct Step {
    later: u64,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Take(u64),
    /// Hits, and how long they may be used.
    Reserve(u64, u64),
    /// Which of the reservations, and how many of its hits.
    Release(prop::sample::Index, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hold = prop_oneof![Just(0), 0..=PERIOD / 100, Just(PERIOD / 100)];
    let action = prop_oneof![
        1 => (1..4_u64).prop_map(Action::Take),
        3 => (1..4_u64, hold).prop_map(|(hits, hold)| Action::Reserve(hits, hold)),
        3 => (any::<prop::sample::Index>(), 1..4_u64).prop_map(|(which, hits)| Action::Release(which, hits)),
    ];
    let later = prop_oneof![Just(0), 0..PERIOD / 200, 0..PERIOD / 20];
    vec((later, action).prop_map(|(later, action)| Step { later, action }), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]

    /// The window never counts less than what was not given back, now or later, and exactly that before a hit has
    /// expired.
    #[test]
    fn every_reserved_hit_is_found_again(steps in steps()) {
        let period = Period::from_nanos(PERIOD);
        let tier = Tier::sliding_window(1_000, period);
        let mut now = START;
        let mut window = CounterState::unused(&tier, now);
        // the instant as of which hits count, how many, and whether they may be given back
        let mut counted: Vec<(Timestamp, u64, bool)> = Vec::new();
        for step in steps {
            now = now.after(Period::from_nanos(step.later));
            match step.action {
                Action::Take(hits) => {
                    window.take(&tier, now, Hits(hits));
                    counted.push((now, hits, false));
                }
                Action::Reserve(hits, hold) => {
                    let until = now.after(Period::from_nanos(hold));
                    window.reserve(&tier, now, until, Hits(hits));
                    counted.push((until, hits, true));
                }
                Action::Release(which, hits) => {
                    let mut reserved: Vec<_> = counted.iter_mut().filter(|(_, left, returns)| *returns && *left > 0).collect();
                    if !reserved.is_empty() {
                        let which = which.index(reserved.len());
                        let (until, left, _) = &mut *reserved[which];
                        let hits = hits.min(*left);
                        *left -= hits;
                        window.release(&tier, now, *until, Hits(hits));
                    }
                }
            }
            let count_at = |at: Timestamp| -> u64 {
                counted.iter().filter(|(until, ..)| until.after(period) > at).map(|(_, hits, _)| hits).sum()
            };
            for at in counted.iter().map(|(until, ..)| until.after(period)).filter(|at| *at > now).chain([now]) {
                let used = window.probe(&tier, at, Hits(0)).used.0;
                prop_assert!(used >= count_at(at), "{used} at {at:?}, but {} count: {window:?}", count_at(at));
            }
            if counted.iter().all(|(until, ..)| until.after(period) > now) {
                prop_assert_eq!(window.probe(&tier, now, Hits(0)).used.0, count_at(now), "{:?}", window);
            }
        }
    }
}
