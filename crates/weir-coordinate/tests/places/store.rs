//! The operations of the trait of stores: a request of which the store keeps some places, and this instance others.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Domain, Entry, Hits, InFlight, KeyHasher, Limit, Period, PlaceAsk, PlaceCheck,
    ReservedHits, Rule, RuleCoordination, RuleNode, RuleSet, Timestamp, Values,
};
use weir_observe::{PlaceStats, Stats};
use weir_store::{EndedPlace, PlaceRequest, Store as _, TakeOptions, TakenPlaces, clock::Clock as _};

fn rules(modes: &[(&str, Option<Coordination>)], most: u32) -> RuleSet {
    let in_flight = Some(InFlight { most, give_up_after: Period::from_secs(60) });
    let node = |key: &str, mode| {
        let coordination = RuleCoordination { mode, ..RuleCoordination::default() };
        let rule = Rule { in_flight, coordination, ..Rule::new(Limit::Unlimited) };
        RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) }
    };
    let nodes = modes.iter().map(|(key, mode)| node(key, *mode)).collect();
    RuleSet::new(&[Domain::new("d", nodes)], KeyHasher::random())
}

/// The store's clock is 3 s ahead.
async fn connected(clock: &SimulatedClock) -> (SimulatedStore, Coordinated<SimulatedRemote>) {
    let shared = SimulatedStore::new(clock.skewed(3_000_000_000), 1);
    let remote = shared.connect(Network::default());
    let store = Coordinated::new(remote, Arc::new(clock.clone()), CoordinationSettings::default());
    sleep(Duration::from_secs(5)).await;
    (shared, store)
}

fn stats() -> Arc<PlaceStats> {
    Arc::clone(Stats::default().rule(&["d".into(), "k".into()]).places())
}

#[tokio::test(start_paused = true)]
async fn a_request_has_one_name_here_and_in_the_store() {
    let rules = rules(&[("shared", None), ("own", Some(Coordination::Local))], 2);
    let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
    let (shared, store) = connected(&clock).await;
    let entries = ["shared", "own"].map(|key| [Entry { key, value: "v" }]);
    let checks = entries.each_ref().map(|entries| {
        let check = rules.place("d", entries).expect("a rule has places");
        PlaceCheck { ask: PlaceAsk::Take, ..check }
    });
    let stats = [stats(), stats()];
    let requests: Vec<PlaceRequest<'_>> =
        (0..2).map(|i| PlaceRequest { check: &checks[i], stats: &stats[i], reserved: Hits(0) }).collect();
    let take = async |serial| -> TakenPlaces {
        store
            .take_places(&requests, serial, clock.now(), TakeOptions::default())
            .await
            .expect("it keeps places")
    };
    let in_store = || shared.places("d|shared=v").len();
    let (one, _) = (take(1).await, take(2).await);
    assert_eq!(
        one.decisions.iter().map(|taken| (taken.over, taken.before)).collect::<Vec<_>>(),
        [(false, 0); 2]
    );
    assert_eq!(in_store(), 2);
    let three = take(3).await;
    assert_eq!(
        three.decisions.iter().map(|taken| (taken.over, taken.before)).collect::<Vec<_>>(),
        [(true, 2); 2]
    );
    let ended: Vec<EndedPlace<'_>> = (0..2)
        .map(|i| EndedPlace {
            check: &checks[i],
            stats: &stats[i],
            name: Some(one.name.by_fallback()),
            awaits: false,
            is_undone: false,
        })
        .collect();
    store.end_places(&ended, clock.now()).await.expect("it keeps places");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(in_store(), 1);
    let four = take(4).await;
    assert!(four.decisions.iter().all(|taken| !taken.over), "{four:?}");
    for stats in stats {
        assert_eq!(stats.totals().counts[..3], [2, 3, 1], "now, started and ended");
    }
}

/// A place that only remembers what is reserved, whatever the mode of the rule's counts.
#[tokio::test(start_paused = true)]
async fn what_is_reserved_is_returned_to_one_who_waits_or_asks() {
    let modes = [None, Some(Coordination::Lease), Some(Coordination::Interval), Some(Coordination::Split)];
    for mode in modes {
        let rules = rules(&[("k", mode)], InFlight::UNLIMITED);
        let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
        let (shared, store) = connected(&clock).await;
        let entries = [Entry { key: "k", value: "v" }];
        let check =
            PlaceCheck { ask: PlaceAsk::Take, ..rules.place("d", &entries).expect("a rule has places") };
        let stats = &stats();
        let take = async |serial, reserved| {
            let request = PlaceRequest { check: &check, stats, reserved: Hits(reserved) };
            let taken = store.take_places(&[request], serial, clock.now(), TakeOptions::default()).await;
            let taken = taken.expect("it keeps places");
            assert!(!taken.decisions[0].over && !taken.name.is_without_store());
            taken.name
        };
        let names = [take(1, 10).await, take(2, 20).await, take(3, 30).await, take(4, 0).await];
        sleep(Duration::from_millis(10)).await;
        assert_eq!(shared.places("d|k=v").len(), 4);
        let end = |name| EndedPlace { check: &check, stats, name, awaits: true, is_undone: false };
        let hits = async |ended: &[EndedPlace<'_>]| -> Vec<Option<u64>> {
            let returned = store.end_places(ended, clock.now()).await.expect("it keeps places");
            returned.iter().map(|returned| Some(returned.as_ref()?.hits.0)).collect()
        };
        // one that does not wait leaves it to who asks
        let unheard = EndedPlace { awaits: false, ..end(Some(names[0])) };
        assert_eq!(hits(&[unheard, end(Some(names[1])), end(Some(names[1]))]).await, [None, Some(20), None]);
        let given_up = || store.given_up(&check, stats, clock.now());
        assert_eq!(given_up(), [ReservedHits { hits: Hits(10), start: names[0].start() }]);
        assert_eq!((given_up(), hits(&[end(Some(names[3]))]).await), (vec![], vec![Some(0)]));
        assert_eq!((hits(&[end(None)]).await, hits(&[end(None)]).await), (vec![Some(30)], vec![None]));
        assert!(shared.places("d|k=v").is_empty());
        assert_eq!(stats.totals().counts[..5], [0, 4, 4, 0, 0], "now, started, ended, given up and unknown");
    }
}
