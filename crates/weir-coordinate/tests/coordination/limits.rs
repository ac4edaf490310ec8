//! Several limits of the same entries: after a reload that adds a tier, and beside requests that bring limits of their
//! own.

use std::time::Duration;

use futures_util::{FutureExt as _, future::join_all};
use tokio::time::{Instant, sleep};
use weir_coordinate::{
    CoordinationSettings,
    simulated::{Condition, Network},
};
use weir_limit::{Algorithm, Coordination, OverLimitPolicy, Period, RuleSet, RuntimeLimit, Scope, Tier};

use crate::{
    fleet::{Fleet, daily, rule},
    pair::{Ask, Pair, over},
};

fn hourly(requests: u32) -> Tier {
    Tier { period: Period::from_secs(3_600), ..daily(requests) }
}

/// Starts instances with a rule of `tier` for any key. Also returns the rules of a reload that adds a tier to it, which
/// is not used up.
async fn reloaded(instances: usize, mode: Coordination, tier: Tier) -> (Fleet, RuleSet) {
    let fleet = Fleet::new(instances, mode, std::slice::from_ref(&tier), Network::default()).await;
    let rules = fleet.instances[0].rules_with(rule(mode, &[tier, hourly(1_000)], OverLimitPolicy::Ignore));
    (fleet, rules)
}

/// Starts two instances with a limit of 1,000,000 for `large` under `lease`.
async fn pair() -> Pair {
    let settings =
        CoordinationSettings { coordination: Coordination::Lease, ..CoordinationSettings::default() };
    let of = |requests| rule(Coordination::Lease, &[daily(requests)], OverLimitPolicy::Ignore);
    Pair::start(of(1_000_000), of(10), settings).await
}

/// Hits of `large` under a limit of their own that counts `daily` ones too.
fn own(hits: u64, requests: u32) -> Ask<'static> {
    let tiers = [daily(requests), hourly(100_000)];
    let own = RuntimeLimit::new(tiers.into_iter().collect(), OverLimitPolicy::Ignore).expect("it is valid");
    Ask { hits, own: Some(own), ..Ask::hit("large") }
}

/// Returns what `decide` returns, and how long it takes.
async fn timed<T>(decide: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    (decide.await, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_first_hit_after_a_reload_waits_for_one_round_trip() {
    let (fleet, rules) = reloaded(2, Coordination::Lease, daily(100)).await;
    let instance = &fleet.instances[0];
    assert!(instance.hit().await);
    let hit = timed(instance.hit_under(&rules, Scope::Descriptor)).await;
    assert_eq!((hit, instance.failures()), ((true, Network::default().round_trip), (0, 0)));
}

/// Each tier has a version of its own, so hits of another limit set none apart.
#[tokio::test(start_paused = true)]
async fn under_interval_no_hit_waits_for_one_of_another_limit() {
    let sliding = Tier { algorithm: Algorithm::SlidingWindow, ..daily(100) };
    let (fleet, rules) = reloaded(2, Coordination::Interval, sliding).await;
    let instance = &fleet.instances[0];
    for _ in 0..3 {
        assert!(instance.hit().await);
        let mut waits = Vec::new();
        for _ in 0..3 {
            let (admitted, wait) = timed(instance.hit_under(&rules, Scope::Descriptor)).await;
            assert!(admitted);
            waits.push(wait);
        }
        assert_eq!(waits, [Duration::ZERO; 3]);
    }
}

/// If each had to return the other's lease first, most of them would not be decided in time.
#[tokio::test(start_paused = true)]
async fn hits_under_two_limits_in_turn_are_decided_by_the_store() {
    let pair = pair().await;
    let network = Network { jitter: Duration::from_millis(2), ..Network::default() };
    pair.stores[0].remote().set_network(network);
    let hits = (0..1_000_u32).map(async |i| {
        sleep(Duration::from_millis((i / 2).into())).await;
        let ask = if i % 2 == 0 { Ask::hit("large") } else { own(1, 500_000) };
        let decided = pair.ask(Scope::Descriptor, 0, &[ask]).await;
        assert_eq!(over(&decided), [false]);
    });
    join_all(hits).await;
    assert_eq!(pair.stores[0].coordination_metrics().decisions.fallback.get(), 0);
}

/// A connection whose client reads no responses polls none of its decisions.
#[tokio::test(start_paused = true)]
async fn a_hit_does_not_wait_for_a_decision_under_another_limit_that_is_not_polled() {
    // a single hit is requested for its decision alone, whose reply nobody else can receive
    for (hits, most) in [(100, 3), (1, 3)] {
        let pair = pair().await;
        let mut first = Box::pin(pair.request_in(Scope::Descriptor, 0, &["large"], hits));
        assert!((&mut first).now_or_never().is_none(), "it waits");
        let (second, wait) = timed(pair.ask(Scope::Descriptor, 0, &[own(1, 1_200_000)])).await;
        assert!(over(&second) == [false] && wait <= most * Network::default().round_trip, "{wait:?}");
        let (third, wait) = timed(pair.ask(Scope::Descriptor, 0, &[own(1, 1_200_000)])).await;
        assert!(over(&third) == [false] && wait <= 2 * Network::default().round_trip, "{wait:?}");
        assert_eq!(over(&first.await), [false]);
        assert_eq!(pair.stores[0].coordination_metrics().decisions.fallback.get(), 0);
    }
}

/// Has instance 0 decide `asks` during an outage, until the store is there again.
async fn after_an_outage(pair: &Pair, asks: impl IntoIterator<Item = Ask<'_>>) {
    pair.shared.set(Condition::Down);
    pair.until_unavailable(true).await;
    for ask in asks {
        assert_eq!(over(&pair.ask(Scope::Descriptor, 0, &[ask]).await), [false]);
        sleep(Duration::from_millis(10)).await;
    }
    pair.shared.set(Condition::Up);
    pair.until_unavailable(false).await;
    assert_eq!(pair.counted(), 0, "nothing is reported yet");
}

/// The lease of the counter before is used up, and the store counts its hits until the day ends.
#[tokio::test(start_paused = true)]
async fn a_reload_that_adds_a_window_makes_only_the_first_hits_wait() {
    for instances in [1, 3] {
        let (fleet, rules) = reloaded(instances, Coordination::Lease, daily(200)).await;
        let instance = &fleet.instances[0];
        // several at once share a fetch
        assert_eq!(join_all((0..8).map(|_| instance.hit())).await, [true; 8]);
        let waited = || instance.store.coordination_metrics().decisions.waited.get();
        let leased = || instance.store.coordination_metrics().decisions.leased.get();
        let (waited_before, leased_before) = (waited(), leased());
        for _ in 0..60 {
            assert!(instance.hit_under(&rules, Scope::Descriptor).await);
            sleep(Duration::from_millis(5)).await;
        }
        let waits = (waited() - waited_before, leased() - leased_before);
        assert!(waits.0 < 20, "{waits:?} waits and leased hits, {instances} instances");
    }
}

/// What one of them reports includes nothing that the other one reports.
#[tokio::test(start_paused = true)]
async fn hits_under_several_limits_during_an_outage_count_once() {
    let settings =
        CoordinationSettings { coordination: Coordination::Interval, ..CoordinationSettings::default() };
    let sliding = |requests| Tier { algorithm: Algorithm::SlidingWindow, ..daily(requests) };
    let of = |requests| rule(Coordination::Interval, &[sliding(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::start(of(1_000), of(10), settings).await;
    let own =
        RuntimeLimit::new([sliding(1_000), hourly(1_000)].into_iter().collect(), OverLimitPolicy::Ignore);
    let own = own.expect("it is valid");
    let asks = [None, Some(&own), None, Some(&own)];
    after_an_outage(&pair, asks.map(|own| Ask { own: own.cloned(), ..Ask::hit("large") })).await;
    let mut remaining = 0;
    // a read requests the count for the next one
    for _ in 0..2 {
        sleep(Duration::from_secs(3)).await;
        let read = [Ask { hits: 0, ..Ask::hit("large") }];
        remaining = pair.ask(Scope::Descriptor, 1, &read).await[0].remaining;
    }
    assert_eq!(remaining, 996);
}
