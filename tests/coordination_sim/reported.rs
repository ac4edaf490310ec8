//! What was admitted is counted by the store in the end, once: through losses, delays and outages.

use proptest::{prelude::*, sample::select};
use weir::limit::{Algorithm, Coordination, OnStoreFailure, Period, Tier};

use crate::fleet::{Event, Story, events, networks};

/// Long enough that everything is in one window.
const DAY: Period = Period::from_secs(86_400);

fn stories() -> impl Strategy<Value = Story> {
    // who crashes takes what it owes along, so nobody does
    let events = events(2_000, false).prop_map(|events| {
        events.into_iter().filter(|(_, event)| !matches!(event, Event::Crash(_))).collect()
    });
    // what a lease is granted is counted before it is used, and for good if nobody hears of it
    let mode = select(&[Coordination::Interval, Coordination::Strict][..]);
    (mode, 1..5_usize, 0.02..0.4, networks(), 0..700_u32, any::<u64>(), events).prop_map(
        |(mode, instances, rate, network, clock_skew, seed, events)| Story {
            instances,
            mode,
            tier: Tier { requests: 100_000, period: DAY, algorithm: Algorithm::FixedWindow },
            failure: OnStoreFailure::Local,
            rate,
            length: 2_000,
            network,
            clock_skew,
            seed,
            events,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn hits_come_home_once(story in stories()) {
        let told = story.run();
        let admitted = told.outcome.decisions.iter().filter(|decision| decision.passed == Some(true)).count();
        let admitted = u64::try_from(admitted).expect("few");
        prop_assert!(told.counted <= admitted, "{} counted, {admitted} admitted", told.counted);
        let missing = admitted - told.counted;
        prop_assert!(missing <= told.unknown, "{missing} missing, {} unknown", told.unknown);
    }
}
