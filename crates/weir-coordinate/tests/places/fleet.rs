//! Instances that share places through a simulated store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use weir_coordinate::{
    Coordinated, CoordinationSettings, EndedHits, PlaceAsked,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Descriptor, Domain, Entry, Hits, InFlight, KeyHasher, Limit, LimitCheck, Matched, OnStoreFailure, Period,
    PlaceName, Request, ReservedHits, Rule, RuleNode, RuleSet, Timestamp, Values,
};
use weir_observe::{PlaceStats, PlaceTotals, Stats};
use weir_store::{TakeOptions, TakenPlaces, clock::Clock as _};

/// The time that the instances run before the first request, so that they know each other.
pub(crate) const WARM_UP: Duration = Duration::from_secs(5);

/// How long a caller waits for what its request has reserved.
const BUDGET: Duration = Duration::from_millis(15);

/// The counter of [`Instance::take`] in the store.
pub(crate) const PATH: &str = "d|k=a";

pub(crate) fn limit(most: u32, give_up_after: u64) -> InFlight {
    InFlight { most, give_up_after: Period::from_millis(give_up_after) }
}

pub(crate) struct Fleet {
    pub(crate) clock: SimulatedClock,
    pub(crate) store: SimulatedStore,
    rules: Arc<RuleSet>,
    on_store_failure: OnStoreFailure,
    created: AtomicU64,
}

pub(crate) struct Instance {
    pub(crate) store: Coordinated<SimulatedRemote>,
    pub(crate) limit: Mutex<InFlight>,
    /// The hits that each request reserves.
    pub(crate) reserved: AtomicU64,
    clock: SimulatedClock,
    rules: Arc<RuleSet>,
    stats: Arc<PlaceStats>,
}

// === impl Fleet ===

impl Fleet {
    /// The store's clock is ahead by `skew` nanoseconds.
    pub(crate) fn new(on_store_failure: OnStoreFailure, seed: u64, skew: i64) -> Self {
        let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
        let rule = Rule::new(Limit::fixed_window(1, Period::from_secs(60)));
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = Arc::new(RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random()));
        let store = SimulatedStore::new(clock.skewed(skew), seed);
        Self { clock, store, rules, on_store_failure, created: AtomicU64::new(0) }
    }

    pub(crate) fn instance(&self, network: Network, limit: InFlight, skew: i64) -> Arc<Instance> {
        let settings = CoordinationSettings {
            instance: format!("i{}", self.created.fetch_add(1, Ordering::Relaxed)),
            on_store_failure: self.on_store_failure,
            max_counters: 2_500,
            ..CoordinationSettings::default()
        };
        let clock = self.clock.skewed(skew);
        let store = Coordinated::new(self.store.connect(network), Arc::new(clock.clone()), settings);
        Arc::new(Instance {
            store,
            limit: Mutex::new(limit),
            reserved: AtomicU64::new(0),
            clock,
            rules: Arc::clone(&self.rules),
            stats: stats(),
        })
    }

    /// Instances that know each other.
    pub(crate) async fn started(
        &self,
        instances: usize,
        network: Network,
        limit: InFlight,
    ) -> Vec<Arc<Instance>> {
        let all = (0..instances).map(|_| self.instance(network, limit, 0)).collect();
        sleep(WARM_UP).await;
        all
    }

    /// Returns the numbers of the requests that have places in the store.
    pub(crate) fn places(&self) -> Vec<u64> {
        self.store.places(PATH).iter().map(|(name, _)| name.serial()).collect()
    }
}

// === impl Instance ===

impl Instance {
    /// Asks for a place of the counter.
    pub(crate) async fn take(&self, serial: u64) -> TakenPlaces {
        self.take_of(&["a"], serial).await
    }

    /// Asks for a place of each of these counters.
    pub(crate) async fn take_of(&self, values: &[&str], serial: u64) -> TakenPlaces {
        self.take_within(values, serial, None).await
    }

    /// Asks for a place of each of these counters, and waits no longer than this.
    pub(crate) async fn take_within(
        &self,
        values: &[&str],
        serial: u64,
        wait: Option<Duration>,
    ) -> TakenPlaces {
        let (limit, now) = (*self.limit.lock(), self.clock.now());
        let descriptor = |value| Descriptor {
            entries: std::iter::once(Entry { key: "k", value }).collect(),
            ..Descriptor::default()
        };
        let descriptors = values.iter().map(|value| descriptor(*value)).collect();
        let request = Request { domain: "d", descriptors, hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let reserved = self.reserved.load(Ordering::Relaxed);
        let asked = matched.checks.iter().map(|check| PlaceAsked {
            check,
            limit,
            takes: true,
            stats: &self.stats,
            reserved: Hits(reserved),
        });
        let asked: Vec<PlaceAsked<'_>> = asked.collect();
        self.store
            .take_shared_places(&asked, serial, now, TakeOptions { wait, ..TakeOptions::default() })
            .await
    }

    /// Returns one of the counts of its places.
    pub(crate) fn places(&self, count: &str) -> u64 {
        let names = PlaceTotals::NAMES.iter().zip(self.stats.totals().counts);
        names
            .filter(|((name, _), _)| name.strip_prefix("weir.in_flight_") == Some(count))
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns what it has reserved, if that is known at once.
    pub(crate) fn end(&self, name: PlaceName) -> Option<ReservedHits> {
        self.end_of("a", name, false)
    }

    pub(crate) fn end_of(&self, value: &str, name: PlaceName, is_undone: bool) -> Option<ReservedHits> {
        let ended = self.end_with(value, |store, check, limit, stats| {
            store.end_shared_place(check, limit, stats, (Some(name), false, is_undone))
        });
        if let EndedHits::Known(reserved) = ended { reserved } else { None }
    }

    /// Ends the request of `name`, or the newest one, and waits for what it has reserved.
    pub(crate) async fn close(&self, name: Option<PlaceName>) -> Option<ReservedHits> {
        let ended = self.end_with("a", |store, check, limit, stats| {
            store.end_shared_place(check, limit, stats, (name, true, false))
        });
        match ended {
            EndedHits::Known(reserved) => reserved,
            EndedHits::Waits(reserved) => timeout(BUDGET, reserved).await.ok()?.ok()?,
        }
    }

    pub(crate) fn given_up(&self) -> Vec<ReservedHits> {
        self.end_with("a", Coordinated::shared_given_up)
    }

    fn end_with<T>(
        &self,
        value: &str,
        act: impl FnOnce(&Coordinated<SimulatedRemote>, &LimitCheck<'_>, InFlight, &Arc<PlaceStats>) -> T,
    ) -> T {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        act(&self.store, &matched.checks[0], *self.limit.lock(), &self.stats)
    }
}

fn stats() -> Arc<PlaceStats> {
    Arc::clone(Stats::default().rule(&["d".into(), "k".into()]).places())
}
