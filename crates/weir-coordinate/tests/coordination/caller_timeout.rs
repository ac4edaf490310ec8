//! Callers that wait for less time than `WEIR_DECISION_BUDGET`.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::{Coordination, OverLimitPolicy, Scope};
use weir_store::{Store as _, TakeOptions};

use crate::fleet::{Fleet, Instance, daily};

/// The default of `WEIR_DECISION_BUDGET`.
const BUDGET: Duration = Duration::from_millis(15);

const SHORT: Duration = Duration::from_millis(3);

const MODES: [Coordination; 2] = [Coordination::Lease, Coordination::Strict];

async fn fleet(mode: Coordination) -> Fleet {
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::new(1, mode, &[daily(100)], network).await
}

impl Instance {
    /// Sends a hit of a caller that allows a wait of `wait`. Returns how long it waited.
    async fn hit_within(&self, wait: Option<Duration>, scope: Scope) -> Duration {
        let begun = Instant::now();
        let (now, options) = (self.now(), TakeOptions { wait, ..TakeOptions::default() });
        self.with_check(async |check| {
            let decided = self.store.take_with(std::slice::from_ref(check), scope, now, options).await;
            assert!(!decided.expect("a coordinated store always decides")[0].over);
        })
        .await;
        begun.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_the_smaller_of_both() {
    for mode in MODES {
        for scope in [Scope::Descriptor, Scope::Request] {
            let fleet = fleet(mode).await;
            fleet.shared.set(Condition::Frozen);
            for (wait, expected) in [
                (Some(SHORT), SHORT),
                (Some(Duration::ZERO), Duration::ZERO),
                (Some(BUDGET * 2), BUDGET),
                (None, BUDGET),
            ] {
                let waited = fleet.instances[0].hit_within(wait, scope).await;
                // a timer is late by up to a millisecond
                let is_right = (expected..=expected + Duration::from_millis(1)).contains(&waited);
                assert!(is_right, "{mode:?}, {scope:?}: {waited:?} for {wait:?}");
            }
        }
    }
}

/// A caller that does not wait for a store that is well must not have others decided without it.
#[tokio::test(start_paused = true)]
async fn impatient_callers_do_not_make_the_store_unavailable() {
    for mode in MODES {
        for scope in [Scope::Descriptor, Scope::Request] {
            let fleet = Fleet::new(
                1,
                mode,
                &[daily(100)],
                Network { round_trip: Duration::from_millis(8), ..Network::default() },
            )
            .await;
            let instance = &fleet.instances[0];
            for _ in 0..10 {
                instance.hit_within(Some(Duration::from_millis(1)), scope).await;
                assert!(!instance.store.is_store_unavailable(), "{mode:?}, {scope:?}");
            }
            let waited = instance.store.coordination_metrics().decisions.waited.get();
            instance.hit_within(None, scope).await;
            // under `lease`, one of the late replies has brought a lease
            let more = instance.store.coordination_metrics().decisions.waited.get() - waited;
            assert_eq!(more, u64::from(mode == Coordination::Strict), "{mode:?}, {scope:?}");
            sleep(Duration::from_secs(2)).await;
            let counted = fleet.counted_under(daily(100), OverLimitPolicy::Ignore);
            assert!(counted >= 1, "{mode:?}, {scope:?}: {counted}");
        }
    }
}
