//! Checks without hits.

use std::time::Duration;

use tokio::time::sleep;
use weir_limit::{Coordination, OverLimitPolicy, Period, Scope, Tier};

use crate::{
    fleet::{daily, rule},
    pair::Pair,
};

/// Also if the sweep looks at the counter, which has counted nothing yet, before its read is sent.
#[tokio::test(start_paused = true)]
async fn a_check_makes_the_count_known_within_a_second() {
    for mode in [Coordination::Interval, Coordination::Auto] {
        let period = Period::from_secs(10);
        let tier = Tier { period, ..daily(1_000) };
        let of = |tier| rule(mode, &[tier], OverLimitPolicy::Ignore);
        let pair = Pair::with(of(tier), of(daily(1))).await;
        let check = async || pair.request_in(Scope::Descriptor, 1, &["large"], 0).await[0].remaining;
        for turn in 0..200 {
            let now = pair.clock.right();
            let left = Duration::from(now.window_end(period).since(now));
            sleep(left + Duration::from_millis(37 * turn % 5_000)).await;
            assert!(pair.hit(0, "large").await);
            sleep(Duration::from_millis(1_100)).await;
            check().await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(check().await, 999, "{mode:?}, in turn {turn}");
        }
    }
}
