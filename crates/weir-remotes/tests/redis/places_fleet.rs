//! Instances that share places on one Redis, in real time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::task::{JoinSet, yield_now};
use weir_coordinate::{Coordinated, CoordinationSettings, EndedHits, PlaceAsked};
use weir_limit::{
    Basis, Descriptor, Domain, Entry, Hits, InFlight, KeyHasher, Limit, Matched, OnStoreFailure, Period,
    PlaceName, Request, Rule, RuleNode, RuleSet, Values,
};
use weir_observe::{PlaceStats, Stats};
use weir_remotes::redis::RedisRemote;
use weir_store::{
    TakeOptions, TakenPlaces,
    clock::{Clock as _, SystemClock},
};

use crate::support::{Server, address, settings, until};

const MOST: u32 = 4;

struct Instance {
    store: Coordinated<RedisRemote>,
    rules: RuleSet,
    serials: AtomicU64,
    stats: Arc<PlaceStats>,
}

impl Instance {
    fn new(server: &Server, number: u64, most_waits: Period) -> Arc<Self> {
        let rule = Rule::new(Limit::fixed_window(1, Period::from_secs(60)));
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("user", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        let mut redis = settings(address(server.port()));
        redis.main.timeout = Duration::from_secs(1);
        let remote = RedisRemote::new(redis).expect("no files are needed");
        let own = CoordinationSettings {
            instance: format!("i{number}"),
            budget: most_waits,
            heartbeat: Period::from_millis(200),
            on_store_failure: OnStoreFailure::Local,
            ..CoordinationSettings::default()
        };
        let store = Coordinated::new(remote, Arc::new(SystemClock), own);
        Arc::new(Self { store, rules, serials: AtomicU64::new(number << 32), stats: stats() })
    }

    async fn take(&self) -> TakenPlaces {
        self.reserve(limit(), 0).await
    }

    async fn reserve(&self, limit: InFlight, reserved: u64) -> TakenPlaces {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let request = request();
        let matched = Matched::new(&self.rules, &request);
        let (check, stats) = (&matched.checks[0], &self.stats);
        let asked = [PlaceAsked { check, limit, takes: true, stats, reserved: Hits(reserved) }];
        self.store.take_shared_places(&asked, serial, SystemClock.now(), TakeOptions::default()).await
    }

    async fn close(&self, limit: InFlight, name: Option<PlaceName>) -> u64 {
        let request = request();
        let matched = Matched::new(&self.rules, &request);
        let ended = self.store.end_shared_place(&matched.checks[0], limit, &self.stats, (name, true, false));
        let reserved = match ended {
            EndedHits::Known(reserved) => reserved,
            EndedHits::Waits(reply) => reply.await.ok().flatten(),
        };
        reserved.map_or(0, |reserved| reserved.hits.0)
    }

    fn given_up(&self, limit: InFlight) -> u64 {
        let request = request();
        let matched = Matched::new(&self.rules, &request);
        let given_up = self.store.shared_given_up(&matched.checks[0], limit, &self.stats);
        given_up.iter().map(|given_up| given_up.hits.0).sum()
    }

    fn end(&self, name: PlaceName) {
        let request = request();
        let matched = Matched::new(&self.rules, &request);
        let how = (Some(name), false, false);
        let _ = self.store.end_shared_place(&matched.checks[0], limit(), &self.stats, how);
    }
}

fn limit() -> InFlight {
    InFlight { most: MOST, give_up_after: Period::from_secs(600) }
}

fn request() -> Request<'static> {
    let entries = std::iter::once(Entry { key: "user", value: "one" }).collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: std::iter::once(descriptor).collect(), hits: 1 }
}

async fn fleet(server: &Server, most_waits: Period) -> Vec<Arc<Instance>> {
    let fleet: Vec<_> = (0..2).map(|i| Instance::new(server, i, most_waits)).collect();
    until("both know each other", async || {
        fleet.iter().all(|instance| instance.store.instances() == 2 && !instance.store.is_store_unavailable())
    })
    .await;
    fleet
}

fn places(server: &Server) -> usize {
    server.send(&["ZCARD", "{d|user=one}i"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_never_exceed_a_limit_and_all_places_come_back() {
    let server = Server::start();
    // a busy machine delays replies
    let fleet = fleet(&server, Period::from_secs(10)).await;
    let (running, most, admitted) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
    let counts = Arc::new((running, most, admitted));
    let mut callers = JoinSet::new();
    for caller in 0..40_usize {
        let (fleet, counts) = (fleet.clone(), Arc::clone(&counts));
        callers.spawn(async move {
            let (running, most, admitted) = &*counts;
            for i in 0..50 {
                let taken = fleet[(caller + i) % 2].take().await;
                assert!(taken.decisions[0].basis != Basis::Fallback);
                if taken.decisions[0].over {
                    continue;
                }
                admitted.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::Relaxed);
                yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                fleet[i % 2].end(taken.name);
            }
        });
    }
    callers.join_all().await;
    let (_, most, admitted) = &*counts;
    let (most, admitted) = (most.load(Ordering::Relaxed), admitted.load(Ordering::Relaxed));
    assert!(most <= MOST.into() && admitted >= 50, "{most} at once, {admitted} in all");
    until("all places are free", async || places(&server) == 0).await;
    // a caller that leaves keeps none
    for _ in 0..50 {
        // the reply may be there at once
        if let Some(taken) = fleet[0].take().now_or_never()
            && !taken.decisions[0].over
        {
            fleet[0].end(taken.name);
        }
    }
    fleet[0].store.close().await;
    until("all places are free", async || places(&server) == 0).await;
}

#[tokio::test]
async fn an_outage_exceeds_no_limit_and_what_it_admits_is_added_after_it() {
    let server = Server::start();
    let fleet = fleet(&server, Period::from_millis(500)).await;
    let mut names = Vec::new();
    for instance in &fleet {
        let taken = instance.take().await;
        assert!(!taken.decisions[0].over && taken.decisions[0].basis != Basis::Fallback);
        names.push(taken.name);
    }
    server.signal("STOP");
    until("both have noticed", async || fleet.iter().all(|instance| instance.store.is_store_unavailable()))
        .await;
    for _ in 0..3 {
        for instance in &fleet {
            let taken = instance.take().await;
            assert!(taken.decisions[0].basis == Basis::Fallback);
            if !taken.decisions[0].over {
                names.push(taken.name);
            }
        }
    }
    // the first has heard of one place, the second one of two
    assert_eq!(names.len(), MOST as usize);
    // one of each kind ends elsewhere
    fleet[0].end(names.remove(3));
    fleet[1].end(names.remove(0));
    server.signal("CONT");
    until("what runs without it is added", async || places(&server) == 2).await;
    for name in names {
        fleet[1].end(name);
    }
    until("all places are free", async || places(&server) == 0).await;
}

/// Some end where they began, some elsewhere, some at both, without a name, or never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_comes_back_once() {
    let server = Server::start();
    let fleet = fleet(&server, Period::from_secs(10)).await;
    let limit = InFlight { most: InFlight::UNLIMITED, give_up_after: Period::from_secs(2) };
    let sums = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..20_usize {
        let (fleet, sums) = (fleet.clone(), Arc::clone(&sums));
        callers.spawn(async move {
            let (reserved, returned) = &*sums;
            for i in 0..100 {
                let (here, elsewhere) = (&fleet[(caller + i) % 2], &fleet[(caller + i + 1) % 2]);
                let hits = (caller * 100 + i) as u64 % 977 + 1;
                returned.fetch_add(here.given_up(limit), Ordering::Relaxed);
                let name = here.reserve(limit, hits).await.name;
                reserved.fetch_add(hits, Ordering::Relaxed);
                if i % 3 > 0 {
                    yield_now().await;
                }
                let closed = match (caller + i) % 7 {
                    0 => 0,
                    1 | 2 => here.close(limit, Some(name)).await,
                    3 | 4 => elsewhere.close(limit, Some(name)).await,
                    5 => elsewhere.close(limit, None).await,
                    _ => {
                        let both = (here.close(limit, Some(name)), elsewhere.close(limit, Some(name)));
                        let both = tokio::join!(both.0, both.1);
                        assert!(both.0 == 0 || both.1 == 0, "{both:?} of {hits}");
                        both.0 + both.1
                    }
                };
                returned.fetch_add(closed, Ordering::Relaxed);
            }
        });
    }
    callers.join_all().await;
    let (reserved, returned) = (sums.0.load(Ordering::Relaxed), &sums.1);
    until("all has come back", async || {
        let back: u64 = fleet.iter().map(|instance| instance.given_up(limit)).sum();
        returned.fetch_add(back, Ordering::Relaxed) + back >= reserved
    })
    .await;
    let more: u64 = fleet.iter().map(|instance| instance.given_up(limit)).sum();
    assert_eq!((returned.load(Ordering::Relaxed), more), (reserved, 0));
}

fn stats() -> Arc<PlaceStats> {
    Arc::clone(Stats::default().rule(&["d".into(), "k".into()]).places())
}
