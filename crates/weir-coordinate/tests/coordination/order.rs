//! Replies to commands of one counter that decisions receive in another order than the store has carried them out.

use std::{slice, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::sleep;
use weir_coordinate::{CoordinationSettings, simulated::Network};
use weir_limit::{
    Coordination, Decision, Hits, OverLimitPolicy, Period, ReservationRequest, RuntimeLimit, Scope,
};
use weir_store::Store as _;

use crate::{
    fleet::{Fleet, Instance, daily, rule},
    pair::{Ask, Pair},
};

const LIMIT: u32 = 3_000;

/// Decides about one hit.
async fn decide(instance: &Instance) -> Decision {
    instance
        .with_check(async |check| {
            let checks = slice::from_ref(check);
            instance.store.take(checks, Scope::Descriptor, instance.now()).await.expect("it decides")[0]
        })
        .await
}

/// It counts fewer hits than the one before it.
#[tokio::test(start_paused = true)]
async fn a_reply_to_a_reservation_that_a_lease_has_overtaken_changes_nothing() {
    for instances in [1, 3] {
        let fleet = Fleet::new(instances, Coordination::Lease, &[daily(LIMIT)], Network::default()).await;
        let instance = &fleet.instances[0];
        let request = ReservationRequest { least: Hits(50), want: Hits(50), hold: Period::from_secs(10) };
        let mut reserving = Box::pin(
            instance.with_check(async |check| instance.store.reserve(check, request, instance.now()).await),
        );
        assert!((&mut reserving).now_or_never().is_none(), "it waits");
        let mut deciding = Box::pin(decide(instance));
        assert!((&mut deciding).now_or_never().is_none(), "it waits");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(deciding.await.remaining, LIMIT - 51, "of {instances} instances");
        assert_eq!(reserving.await.expect("it decides").hits, Hits(50));
        assert_eq!(decide(instance).await.remaining, LIMIT - 52, "of {instances} instances");
    }
}

/// As above, of a decision that the store makes.
#[tokio::test(start_paused = true)]
async fn a_reply_to_a_decision_that_a_lease_has_overtaken_changes_nothing() {
    for tier in [daily(LIMIT), daily(LIMIT / 2)] {
        let of = |requests| rule(Coordination::Lease, &[daily(requests)], OverLimitPolicy::Ignore);
        let settings =
            CoordinationSettings { coordination: Coordination::Lease, ..CoordinationSettings::default() };
        let pair = Pair::start(of(LIMIT), of(LIMIT), settings).await;
        let limit = RuntimeLimit::new([tier.clone()].into(), OverLimitPolicy::Ignore).expect("it is valid");
        let asks = [Ask { hits: 50, own: Some(limit), ..Ask::hit("large") }];
        let mut asking = Box::pin(pair.ask(Scope::Descriptor, 0, &asks));
        assert!((&mut asking).now_or_never().is_none(), "it waits");
        let mut deciding = Box::pin(pair.request(0, &["large"]));
        assert!((&mut deciding).now_or_never().is_none(), "it waits");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(deciding.await[0].remaining, LIMIT - 51, "{tier}");
        assert!(!asking.await[0].over);
        assert_eq!(pair.request(0, &["large"]).await[0].remaining, LIMIT - 52, "{tier}");
    }
}
