//! The operations of the trait of stores: a request of which the store keeps some places, and this instance others.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Coordination, Domain, Entry, Hits, InFlight, KeyHasher, Limit, Period, PlaceAsk, PlaceCheck, Rule,
    RuleCoordination, RuleNode, RuleSet, Timestamp, Values,
};
use weir_observe::{PlaceStats, Stats};
use weir_store::{EndedPlace, PlaceRequest, Store as _, TakeOptions, TakenPlaces, clock::Clock as _};

#[tokio::test(start_paused = true)]
async fn a_request_has_one_name_here_and_in_the_store() {
    let in_flight = Some(InFlight { most: 2, give_up_after: Period::from_secs(60) });
    let node = |key: &str, mode| {
        let coordination = RuleCoordination { mode, ..RuleCoordination::default() };
        let rule = Rule { in_flight, coordination, ..Rule::new(Limit::Unlimited) };
        RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) }
    };
    let nodes = vec![node("shared", None), node("own", Some(Coordination::Local))];
    let rules = RuleSet::new(&[Domain::new("d", nodes)], KeyHasher::random());
    let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
    let shared = SimulatedStore::new(clock.skewed(3_000_000_000), 1);
    let store = Coordinated::new(
        shared.connect(Network::default()),
        Arc::new(clock.clone()),
        CoordinationSettings::default(),
    );
    sleep(Duration::from_secs(5)).await;
    let entries = ["shared", "own"].map(|key| [Entry { key, value: "v" }]);
    let checks = entries.each_ref().map(|entries| {
        let check = rules.place("d", entries).expect("a rule has places");
        PlaceCheck { ask: PlaceAsk::Take, ..check }
    });
    let stats: [Arc<PlaceStats>; 2] =
        ["shared", "own"].map(|key| Arc::clone(Stats::default().rule(&["d".into(), key.into()]).places()));
    let requests: Vec<PlaceRequest<'_>> = (0..2)
        .map(|i| PlaceRequest { check: &checks[i], stats: &stats[i], rejects: true, reserved: Hits(0) })
        .collect();
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
