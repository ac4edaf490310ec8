//! Replies that agree with no other: hits that are not granted although they fit, and replies without counts.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Algorithm, Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Matched, OverLimitPolicy,
    Period, Request, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
};
use weir_store::{
    Store as _,
    clock::Clock as _,
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies},
};

use crate::fleet::{EPOCH, daily, rule};

/// What is odd about the replies of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oddity {
    None,
    /// It grants nothing, but shows how much is left.
    GrantsNothing,
    /// It counts, but does not show the counts.
    ShowsNothing,
    /// It carries out the last command of the call so much later.
    TakesTime(Period),
}

struct OddStore {
    inner: SimulatedRemote,
    oddity: watch::Receiver<Oddity>,
    requests: Arc<AtomicU64>,
}

impl Remote for OddStore {
    async fn call(&self, mut commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let oddity = *self.oddity.borrow();
        let mut refused = Vec::new();
        for command in &mut commands {
            let mut taken = None;
            let exchange = &mut command.exchange;
            if exchange.runs.iter().any(|run| run.hits > 0) {
                self.requests.fetch_add(1, Ordering::Relaxed);
                if oddity == Oddity::GrantsNothing {
                    exchange.lease = None;
                    exchange.runs.iter_mut().for_each(|run| run.hits = 0);
                    taken = Some(exchange.runs.iter().map(|_| 0).collect());
                }
            }
            refused.push(taken);
        }
        let mut replies = self.inner.call(commands).await?;
        for (reply, taken) in replies.replies.iter_mut().zip(refused) {
            if let (Ok(reply), Some(taken)) = (reply, taken) {
                reply.taken = taken;
            }
        }
        if oddity == Oddity::ShowsNothing {
            replies.replies.iter_mut().flatten().for_each(|reply| reply.counters.clear());
        }
        if let Oddity::TakesTime(time) = oddity {
            replies.now = replies.now.after(time);
        }
        Ok(replies)
    }

    fn heartbeat(
        &self,
        heartbeat: Heartbeat<'_>,
    ) -> impl Future<Output = Result<Members, RemoteError>> + Send {
        self.inner.heartbeat(heartbeat)
    }
}

/// Some instances with a limit of 50, of which the first one is asked.
struct Setup {
    clock: SimulatedClock,
    stores: Vec<Coordinated<OddStore>>,
    rules: RuleSet,
    oddity: watch::Sender<Oddity>,
    requests: Arc<AtomicU64>,
}

impl Setup {
    async fn start(instances: usize, mode: Coordination, algorithm: Algorithm) -> Self {
        Self::of(instances, mode, Tier { algorithm, ..daily(50) }).await
    }

    async fn of(instances: usize, mode: Coordination, tier: Tier) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), 7);
        let (oddity, receiver) = watch::channel(Oddity::None);
        let requests = Arc::<AtomicU64>::default();
        let store = |i: usize| {
            let settings =
                CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
            let remote = OddStore {
                inner: shared.connect(Network::default()),
                oddity: receiver.clone(),
                requests: Arc::clone(&requests),
            };
            Coordinated::new(remote, Arc::new(clock.clone()), settings)
        };
        let stores = (0..instances).map(store).collect();
        let rule = rule(mode, &[tier], OverLimitPolicy::Ignore);
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        sleep(Duration::from_millis(2_500)).await;
        Self { clock, stores, rules, oddity, requests }
    }

    async fn hit(&self) -> Decision {
        let entries = [Entry { key: "k", value: "v" }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.stores[0].take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        decisions.expect("a coordinated store always decides")[0]
    }

    /// A hit that comes when those of now are on their way.
    async fn hit_meanwhile(&self) -> Decision {
        sleep(Network::default().round_trip / 4).await;
        self.hit().await
    }
}

/// The store's verdict is final. To ask again and again would be of no use, and would cost ever more calls.
#[tokio::test(start_paused = true)]
async fn hits_that_the_store_does_not_grant_although_they_fit_are_rejected() {
    for (instances, algorithm) in
        [(1, Algorithm::SlidingWindow), (1, Algorithm::FixedWindow), (2, Algorithm::FixedWindow)]
    {
        let setup = Setup::start(instances, Coordination::Lease, algorithm).await;
        setup.oddity.send_replace(Oddity::GrantsNothing);
        assert!(setup.hit().await.over, "{instances}, {algorithm:?}");
        assert_eq!(setup.requests.load(Ordering::Relaxed), 1, "{instances}, {algorithm:?}");
        assert_eq!(setup.stores[0].coordination_metrics().decisions.fallback.get(), 0);
        setup.oddity.send_replace(Oddity::None);
        assert!(!setup.hit().await.over, "{instances}");
    }
}

/// The second decision begins while the hits of the first one are requested.
#[tokio::test(start_paused = true)]
async fn a_decision_counts_only_the_requests_for_its_own_hits() {
    let setup = Setup::start(1, Coordination::Lease, Algorithm::SlidingWindow).await;
    setup.oddity.send_replace(Oddity::GrantsNothing);
    let (first, second) = tokio::join!(setup.hit(), setup.hit_meanwhile());
    assert!(first.over && second.over);
    assert_eq!(setup.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_decides_if_a_reply_has_no_counts() {
    for (instances, mode) in [(2, Coordination::Lease), (1, Coordination::Strict), (2, Coordination::Strict)]
    {
        let setup = Setup::start(instances, mode, Algorithm::FixedWindow).await;
        setup.oddity.send_replace(Oddity::ShowsNothing);
        assert!(!setup.hit().await.over);
        let metrics = setup.stores[0].coordination_metrics();
        assert_eq!(
            (metrics.decisions.fallback.get(), metrics.hits.delivery_unknown.get()),
            (1, 1),
            "{mode:?}"
        );
    }
}

/// The second decision waits for the reply to the request of the first one, of which it is not part.
#[tokio::test(start_paused = true)]
async fn the_fallback_decides_if_a_reply_that_several_wait_for_has_no_counts() {
    // an instance that is alone leases ahead
    for (instances, requested) in [(1, 14), (2, 2)] {
        let setup = Setup::start(instances, Coordination::Lease, Algorithm::FixedWindow).await;
        setup.oddity.send_replace(Oddity::ShowsNothing);
        let (first, second) = tokio::join!(setup.hit(), setup.hit_meanwhile());
        assert!(!first.over && !second.over);
        let metrics = setup.stores[0].coordination_metrics();
        assert_eq!(
            (metrics.decisions.fallback.get(), metrics.hits.delivery_unknown.get()),
            (2, requested),
            "{instances}"
        );
    }
}

/// All commands of a call have one clock, which shows the next window already.
#[tokio::test(start_paused = true)]
async fn what_is_granted_in_a_window_is_not_used_in_the_next() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        // ten hits are leased ahead
        for (instances, limit) in [(1, 80), (3, 3_000)] {
            let tier = Tier { requests: limit, period: Period::from_secs(1), ..daily(limit) };
            let setup = Setup::of(instances, mode, tier).await;
            let second = |now: Timestamp| now.as_nanos() / 1_000_000_000;
            let from_begin = |now: Timestamp| now.as_nanos() % 1_000_000_000;
            while from_begin(setup.clock.now()) < 997_000_000 {
                sleep(Duration::from_millis(1)).await;
            }
            let first = second(setup.clock.now());
            setup.oddity.send_replace(Oddity::TakesTime(Period::from_millis(4)));
            assert!(!setup.hit().await.over, "{mode:?}, {instances}");
            assert_eq!(second(setup.clock.now()), first);
            setup.oddity.send_replace(Oddity::None);
            while second(setup.clock.now()) == first {
                sleep(Duration::from_millis(1)).await;
            }
            let mut admitted = 0;
            // strict decisions, one after the other, may take the rest of the window
            for _ in 0..limit + 20 {
                if from_begin(setup.clock.now()) < 900_000_000 {
                    admitted += u32::from(!setup.hit().await.over);
                }
            }
            assert_eq!(second(setup.clock.now()), first + 1);
            assert!(admitted <= limit, "{admitted} of {limit}, {mode:?}, {instances}");
        }
    }
}
