//! The store counts admitted hits once, despite losses, delays and outages.

use proptest::{prelude::*, sample::select};
use weir_limit::{Coordination, OnStoreFailure, Period, Tier};

use crate::fleet::{Case, Event, events, networks};

/// A period long enough that all hits are in one window.
const DAY: Period = Period::from_secs(86_400);

fn cases() -> impl Strategy<Value = Case> {
    // no crashes: they lose pending hits
    let events = events(2_000, false).prop_map(|events| {
        events.into_iter().filter(|(_, event)| !matches!(event, Event::Crash(_))).collect()
    });
    // not `lease`: granted hits count before they are used, even if the reply is lost
    let mode = select(&[Coordination::Interval, Coordination::Strict][..]);
    (mode, 1..5_usize, 0.02..0.4, networks(), 0..700_u32, any::<u64>(), events).prop_map(
        |(mode, instances, rate, network, clock_skew, seed, events)| Case {
            instances,
            mode,
            tier: Tier::fixed_window(100_000, DAY),
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
    fn no_admitted_hit_is_counted_twice_and_only_unknown_ones_are_missing(case in cases()) {
        let result = case.run();
        let admitted = result.outcome.decisions.iter().filter(|decision| decision.admitted == Some(true)).count();
        let admitted = u64::try_from(admitted).expect("few");
        prop_assert!(result.counted <= admitted, "{} counted, {admitted} admitted", result.counted);
        let missing = admitted - result.counted;
        prop_assert!(missing <= result.unknown, "{missing} missing, {} unknown", result.unknown);
    }
}
