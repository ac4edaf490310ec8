//! Decisions that nobody polls: a connection whose client reads no responses polls none of its decisions, and one that
//! is reset drops them.

use std::time::Duration;

use futures_util::{
    FutureExt as _,
    future::{join, join_all},
};
use tokio::time::{Instant, sleep};
use weir_coordinate::{
    CoordinationSettings,
    simulated::{Condition, Network},
};
use weir_limit::{
    Coordination, Descriptor, Entry, Matched, OverLimitPolicy, Request, RuntimeLimit, Scope, Tier,
};
use weir_store::{Store as _, remote::Target};

use crate::{
    fleet::{Fleet, daily, rule, sliding},
    pair::{Ask, Pair, over},
};

/// Limits of a lone instance and of three, with which ten hits are leased ahead.
const FAR: [(usize, u32); 2] = [(1, 80), (3, 3_000)];

#[tokio::test(start_paused = true)]
async fn it_withholds_none_of_the_hits_that_are_leased_ahead() {
    for (instances, limit) in FAR {
        let fleet = Fleet::new(instances, Coordination::Lease, &[daily(limit)], Network::default()).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(instance.hit());
        assert!((&mut first).now_or_never().is_none(), "it waits");
        sleep(Duration::from_millis(50)).await;
        for i in 1..limit {
            assert!(instance.hit().await, "hit {i} of {limit}");
        }
        let (last, first) = (instance.hit().await, first.await);
        assert!(last != first, "one was left for both");
        let before = instance.store.coordination_metrics().store.commands.get();
        for _ in 0..5 {
            assert!(!instance.hit().await);
        }
        let sent = instance.store.coordination_metrics().store.commands.get() - before;
        assert_eq!((sent, fleet.counted(daily(limit))), (0, limit.into()));
        assert_eq!(instance.failures(), (0, 0));
    }
}

/// The hits that are given back wait for the reply.
#[tokio::test(start_paused = true)]
async fn hits_given_back_meanwhile_are_reported() {
    for (instances, limit) in FAR {
        let fleet = Fleet::new(instances, Coordination::Lease, &[daily(limit)], Network::default()).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(instance.hit());
        assert!((&mut first).now_or_never().is_none(), "it waits");
        instance.give_back().await;
        sleep(Duration::from_secs(20)).await;
        assert!(first.await);
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(limit)), 1, "of {limit}");
    }
}

/// Those of an instance that is alone are reported after the reply.
#[tokio::test(start_paused = true)]
async fn hits_counted_in_an_outage_are_reported() {
    for (instances, limit) in FAR {
        let fleet = Fleet::new(instances, Coordination::Lease, &[daily(limit)], Network::default()).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(instance.hit());
        assert!((&mut first).now_or_never().is_none(), "it waits");
        sleep(Duration::from_millis(5)).await;
        fleet.shared.set(Condition::Down);
        while !instance.store.is_store_unavailable() {
            sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..3 {
            assert!(instance.hit().await);
        }
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(20)).await;
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(limit)), 4, "of {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_gives_back_what_is_granted_to_it() {
    for (instances, limit) in FAR {
        for tier in [daily(limit), sliding(limit)] {
            let tiers = std::slice::from_ref(&tier);
            let fleet = Fleet::new(instances, Coordination::Lease, tiers, Network::default()).await;
            let instance = &fleet.instances[0];
            let mut first = Box::pin(instance.hit());
            assert!((&mut first).now_or_never().is_none(), "it waits");
            sleep(Duration::from_millis(50)).await;
            assert!(fleet.counted(tier.clone()) > 0);
            let closing = Instant::now();
            instance.store.close().await;
            assert!(closing.elapsed() < Duration::from_secs(1), "{:?}", closing.elapsed());
            assert_eq!(fleet.counted(tier.clone()), 1, "only the hit itself is left, of {tier}");
        }
    }
}

/// A lease that several decisions may share is requested for it.
#[tokio::test(start_paused = true)]
async fn hits_given_back_meanwhile_do_not_take_a_lease_along() {
    let pair = pair().await;
    let mut first = Box::pin(pair.request_in(Scope::Descriptor, 0, &["large"], 20));
    assert!((&mut first).now_or_never().is_none(), "it waits");
    pair.ask(Scope::Descriptor, 0, &[Ask { hits: 20, gives_back: true, ..Ask::hit("large") }]).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(over(&first.await), [false]);
    pair.stores[0].close().await;
    assert_eq!(pair.counted(), 20);
}

/// Starts two instances with a limit of 1,000,000 for `large` under `lease`.
async fn pair() -> Pair {
    let settings =
        CoordinationSettings { coordination: Coordination::Lease, ..CoordinationSettings::default() };
    let of = |requests| rule(Coordination::Lease, &[daily(requests)], OverLimitPolicy::Ignore);
    Pair::start(of(1_000_000), of(10), settings).await
}

/// A hit of `large` under a limit of its own.
fn own(tiers: &[Tier]) -> Ask<'static> {
    let own = RuntimeLimit::new(tiers.iter().cloned().collect(), OverLimitPolicy::Ignore);
    Ask { own: Some(own.expect("it is valid")), ..Ask::hit("large") }
}

/// What is leased ahead of the rule is more than these limits admit.
#[tokio::test(start_paused = true)]
async fn limits_of_requests_wait_for_what_is_leased_ahead_to_be_returned() {
    for hits in [1, 100] {
        let pair = pair().await;
        let mut first = Box::pin(pair.request_in(Scope::Descriptor, 0, &["large"], hits));
        assert!((&mut first).now_or_never().is_none(), "it waits");
        let limit = [daily(120)];
        let requests = (0..5).map(async |_| over(&pair.ask(Scope::Descriptor, 0, &[own(&limit)]).await));
        let decided = join_all(requests).await.concat();
        assert_eq!(decided, [false; 5], "{hits} hits");
        assert_eq!(over(&first.await), [false]);
        assert_eq!(pair.stores[0].coordination_metrics().decisions.fallback.get(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_it_waits_holds_nothing() {
    const KEYS: usize = 300;
    let names: Vec<String> = (0..KEYS).map(|i| format!("v{i}")).collect();
    for (instances, limit) in FAR {
        for hits in [1, 20] {
            let fleet = Fleet::new(instances, Coordination::Lease, &[daily(limit)], Network::default()).await;
            let instance = &fleet.instances[0];
            let rules =
                instance.rules_with(rule(Coordination::Lease, &[daily(limit)], OverLimitPolicy::Ignore));
            let descriptors = names.iter().map(|value| Descriptor {
                entries: [Entry { key: "k", value }].into_iter().collect(),
                ..Descriptor::default()
            });
            let request = Request { domain: "d", descriptors: descriptors.collect(), hits };
            let matched = Matched::new(&rules, &request);
            let before = instance.store.coordination_metrics().store.commands.get();
            let mut request =
                Box::pin(instance.store.take(&matched.checks, Scope::Descriptor, instance.now()));
            assert!((&mut request).now_or_never().is_none(), "it waits");
            // until all were sent
            sleep(Duration::from_millis(5)).await;
            let sent = instance.store.coordination_metrics().store.commands.get() - before;
            assert!(sent >= KEYS as u64, "{sent} commands");
            drop(request);
            let closing = Instant::now();
            let ((), other) = join(instance.store.close(), instance.hit()).await;
            assert!(other && closing.elapsed() < Duration::from_secs(1), "{:?}", closing.elapsed());
            for name in &names {
                let path = format!("d|k={name}");
                let target = Target {
                    path: path.into(),
                    tiers: [daily(limit)].into(),
                    over_limit_policy: OverLimitPolicy::Ignore,
                };
                assert_eq!(
                    fleet.shared.used(&target, fleet.clock.right()),
                    0,
                    "{name}, {hits} hits of {limit}"
                );
            }
        }
    }
}
