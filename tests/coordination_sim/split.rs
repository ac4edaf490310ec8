//! `split` with late messages, wrong clocks, and instances that die and are replaced: the parts of each window are the
//! limit at most. With lost messages and outages they stay below twice the limit.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::select};
use weir_coordinate::simulated::Network;
use weir_limit::{Coordination, OnStoreFailure, Period, Tier, Timestamp};

use crate::fleet::{Case, CaseResult, Event, events, networks};

/// The time during which requests arrive, in milliseconds: newcomers have parts within it.
const LENGTH: u64 = 9_000;

/// The most that an instance's estimate of the store's clock is wrong: half of the longest round trip of [`networks`].
const CLOCK_ERROR: Period = Period::from_millis(51);

fn cases() -> impl Strategy<Value = Case> {
    let tier = (1..300_u32, select(vec![1_u64, 2]))
        .prop_map(|(requests, seconds)| Tier::fixed_window(requests, Period::from_secs(seconds)));
    let rest = (networks(), 0..700_u32, any::<u64>(), events(LENGTH, false));
    (1..7_usize, tier, 0.05..0.6, rest).prop_map(
        |(instances, tier, rate, (network, clock_skew, seed, events))| Case {
            instances,
            mode: Coordination::Split,
            tier,
            failure: OnStoreFailure::Deny,
            rate,
            length: LENGTH,
            network,
            clock_skew,
            seed,
            events,
        },
    )
}

/// Returns the hits that were certainly admitted in each window, by its end.
fn by_window(case: &Case, result: &CaseResult) -> BTreeMap<Timestamp, u64> {
    let period = case.tier.period;
    let mut windows = BTreeMap::new();
    for decision in result.outcome.decisions.iter().filter(|decision| decision.admitted == Some(true)) {
        let (end, arrived) = (decision.arrived.window_end(period), decision.arrived.as_nanos());
        let earlier = Timestamp::from_nanos(arrived - CLOCK_ERROR.as_nanos());
        if earlier.window_end(period) == end && decision.decided.after(CLOCK_ERROR) < end {
            *windows.entry(end).or_default() += 1;
        }
    }
    windows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn without_lost_messages_no_window_exceeds_the_limit(case in cases()) {
        let network = Network { lost_requests: 0.0, lost_replies: 0.0, ..case.network };
        let crashes = case.events.iter().filter(|(_, event)| matches!(event, Event::Crash(_))).copied();
        let case = Case { network, events: crashes.collect(), ..case };
        let result = case.run();
        for (end, admitted) in by_window(&case, &result) {
            prop_assert!(admitted <= u64::from(case.tier.requests), "{admitted} in the window until {end:?}");
        }
        prop_assert_eq!(result.unknown, 0, "nothing is sent to the store");
    }

    #[test]
    fn with_lost_messages_and_outages_no_window_reaches_twice_the_limit(case in cases()) {
        let result = Case { failure: OnStoreFailure::Local, ..case.clone() }.run();
        for (end, admitted) in by_window(&case, &result) {
            prop_assert!(admitted <= 2 * u64::from(case.tier.requests), "{admitted} in the window until {end:?}");
        }
    }
}
