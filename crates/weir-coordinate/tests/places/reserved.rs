//! What requests have reserved: it comes back once, to whoever ends the request, or after its place was given up.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "random lengths and choices of small numbers"
)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use weir_coordinate::simulated::{Condition, Network, Random};
use weir_limit::{Hits, InFlight, OnStoreFailure, PlaceName, ReservedHits, Timestamp};
use weir_store::{clock::Clock as _, place_command::PlaceCommand};

use crate::fleet::{Fleet, Instance, WARM_UP, limit};

const SCHEDULES: u64 = 300;

const AGE: u64 = 60_000;

/// Requests without limit on their number.
fn unlimited(give_up_after: u64) -> InFlight {
    limit(InFlight::UNLIMITED, give_up_after)
}

fn slow(millis: u64) -> Network {
    Network { round_trip: Duration::from_millis(millis), ..Network::default() }
}

async fn open(instance: &Instance, serial: u64, reserved: u64) -> PlaceName {
    instance.reserved.store(reserved, std::sync::atomic::Ordering::Relaxed);
    let taken = instance.take(serial).await;
    assert!(!taken.decisions[0].over && !taken.name.is_without_store());
    taken.name
}

fn hits(reserved: Option<ReservedHits>) -> Option<u64> {
    reserved.map(|reserved| reserved.hits.0)
}

fn given_up(instance: &Instance) -> Vec<u64> {
    instance.given_up().iter().map(|given_up| given_up.hits.0).collect()
}

async fn pause(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_to_reserve_and_one_close_anywhere_gets_it() {
    let fleet = Fleet::new(OnStoreFailure::Deny, 1, 2_000_000_000);
    let instances = fleet.started(2, slow(4), unlimited(AGE)).await;
    let asked = Instant::now();
    let name = open(&instances[0], 1, 700).await;
    assert_eq!(asked.elapsed(), Duration::ZERO);
    pause(10).await;
    assert_eq!(fleet.places(), [1]);
    let closed = instances[1].close(Some(name)).await;
    assert_eq!(closed, Some(ReservedHits { hits: Hits(700), start: name.start() }));
    assert_eq!(instances[0].close(Some(name)).await, None);
    assert_eq!((instances[1].places("ended"), instances[0].places("unknown")), (1, 1));
    // of two at once, one
    let name = open(&instances[0], 2, 50).await;
    pause(10).await;
    let both = tokio::join!(instances[0].close(Some(name)), instances[1].close(Some(name)));
    assert_eq!(hits(both.0.or(both.1)), Some(50));
    assert!(both.0.is_none() || both.1.is_none());
    // an end that waits for nothing leaves it to who asks
    let name = open(&instances[0], 3, 9).await;
    pause(10).await;
    instances[1].end(name);
    pause(10).await;
    assert_eq!((given_up(&instances[1]), given_up(&instances[1])), (vec![9], vec![]));
    // one that is undone gives it back itself
    let name = open(&instances[0], 4, 9).await;
    pause(10).await;
    instances[1].end_of("a", name, true);
    pause(10).await;
    assert!(fleet.places().is_empty() && given_up(&instances[1]).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_close_before_the_store_was_told_needs_no_call() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(4), unlimited(AGE)).await[0];
    let before = instance.store.remote().calls();
    let (one, two) = (open(instance, 1, 10).await, open(instance, 2, 20).await);
    assert_eq!(hits(instance.close(Some(one)).await), Some(10));
    assert_eq!(hits(instance.close(None).await), Some(20));
    assert_eq!((instance.close(Some(two)).await, instance.places("ended")), (None, 2));
    assert!(instance.store.remote().calls() - before <= 1 && fleet.places().is_empty());
}

/// It is on its way there when its end arrives elsewhere.
#[tokio::test(start_paused = true)]
async fn a_close_that_overtakes_its_start_leaves_the_hits_to_it() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instances = fleet.started(2, Network::default(), unlimited(AGE)).await;
    instances[0].store.remote().set_network(slow(60));
    let name = open(&instances[0], 1, 10).await;
    pause(1).await;
    assert_eq!(instances[1].close(Some(name)).await, None);
    assert!(given_up(&instances[0]).is_empty());
    pause(80).await;
    assert_eq!((given_up(&instances[0]), given_up(&instances[0])), (vec![10], vec![]));
    assert!(fleet.places().is_empty() && given_up(&instances[1]).is_empty());
    // here, the store decides
    let name = open(&instances[0], 2, 20).await;
    pause(1).await;
    assert_eq!(instances[0].close(Some(name)).await, None, "there was no reply in time");
    pause(200).await;
    assert_eq!((given_up(&instances[0]), fleet.places()), (vec![20], vec![]));
}

#[tokio::test(start_paused = true)]
async fn without_a_name_the_newest_is_closed() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instances = fleet.started(2, Network::default(), unlimited(AGE)).await;
    for serial in 1..=4 {
        open(&instances[serial as usize % 2], serial, serial * 10).await;
        pause(5).await;
    }
    // the newest is here, and the store has not heard of it
    open(&instances[0], 5, 50).await;
    let closed =
        [instances[0].close(None).await, instances[0].close(None).await, instances[1].close(None).await];
    assert_eq!(closed.map(hits), [Some(50), Some(40), Some(30)]);
    let both = tokio::join!(instances[0].close(None), instances[0].close(None));
    assert_eq!((hits(both.0), hits(both.1), instances[0].close(None).await), (Some(20), Some(10), None));
    // while nobody waits for it, a close would be that of another request
    open(&instances[0], 6, 60).await;
    pause(5).await;
    fleet.store.set(Condition::Frozen);
    assert_eq!(instances[1].close(None).await, None);
    assert_eq!(instances[1].close(None).await, None);
    open(&instances[0], 7, 70).await;
    fleet.store.set(Condition::Up);
    pause(2_000).await;
    // the first one was sent
    assert_eq!((fleet.places().len(), given_up(&instances[1])), (1, vec![60]));
}

#[tokio::test(start_paused = true)]
async fn closes_of_an_outage_get_nothing_and_it_comes_back_after_it() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instances = fleet.started(2, Network::default(), unlimited(AGE)).await;
    let name = open(&instances[0], 1, 10).await;
    pause(10).await;
    fleet.store.set(Condition::Down);
    pause(4_000).await;
    let asked = Instant::now();
    assert_eq!((instances[0].close(Some(name)).await, instances[0].close(None).await), (None, None));
    assert!(asked.elapsed() <= Duration::from_millis(30));
    // what begins meanwhile ends here
    let (two, three) = (open(&instances[0], 2, 20).await, open(&instances[0], 3, 30).await);
    pause(500).await;
    assert_eq!(hits(instances[0].close(Some(two)).await), Some(20));
    let four = open(&instances[0], 4, 40).await;
    assert_eq!(hits(instances[0].close(None).await), Some(40));
    assert_eq!(instances[1].close(Some(three)).await, None);
    fleet.store.set(Condition::Up);
    pause(3_000).await;
    let mut back = [given_up(&instances[0]), given_up(&instances[1])].concat();
    back.sort_unstable();
    assert_eq!((back, fleet.places()), (vec![10, 30], vec![]));
    assert_eq!((instances[0].close(Some(four)).await, instances[0].close(None).await), (None, None));
}

/// By this instance or another one, also if nothing else is sent.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_heard_by_one_who_asks() {
    for limit in [unlimited(5_000), limit(3, 5_000)] {
        let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
        let instances = fleet.started(2, Network::default(), limit).await;
        open(&instances[0], 1, 10).await;
        pause(4_000).await;
        assert_eq!(fleet.places(), [1]);
        // as for each decision; the first of them asks, since it knows nothing
        let calls = |i: usize| instances[i].store.remote().calls();
        let before = [calls(0), calls(1)];
        for _ in 0..900 {
            assert!(given_up(&instances[1]).is_empty());
            pause(1).await;
        }
        assert_eq!([calls(0) - before[0], calls(1) - before[1]], [0, 1]);
        let mut back = Vec::new();
        for _ in 0..200 {
            back.extend(given_up(&instances[0]));
            back.extend(given_up(&instances[1]));
            pause(50).await;
        }
        assert_eq!(back, [10]);
        assert_eq!(instances[0].places("given_up") + instances[1].places("given_up"), 1);
        let asked = [calls(0) - before[0], calls(1) - before[1]];
        assert!(asked.iter().all(|asked| (2..=4).contains(asked)), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_that_leaves_has_reserved_is_given_up() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(8), limit(4, AGE)).await[0];
    instance.reserved.store(30, std::sync::atomic::Ordering::Relaxed);
    for millis in [6, 8] {
        drop(timeout(Duration::from_millis(millis), instance.take(millis)).await);
        pause(50).await;
        assert!(fleet.places().is_empty() && given_up(instance) == [30], "{millis}");
    }
    // one that was refused meanwhile gives it back itself
    fleet.store.set(Condition::Frozen);
    instance.limit.lock().most = 0;
    assert!(instance.take(1).await.decisions[0].over);
    instance.limit.lock().most = 4;
    let taking = instance.take_within(&["a"], 2, Some(Duration::from_millis(1)));
    assert!(taking.await.name.is_without_store());
    fleet.store.set(Condition::Up);
    pause(2_000).await;
    assert_eq!((fleet.places(), given_up(instance)), (vec![2], vec![]));
}

/// A limit on the number of requests beside it.
#[tokio::test(start_paused = true)]
async fn a_place_of_a_limit_remembers_what_is_reserved() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instances = fleet.started(2, Network::default(), limit(2, 5_000)).await;
    let (one, two) = (open(&instances[0], 1, 10).await, open(&instances[1], 2, 20).await);
    assert!(instances[0].take(3).await.decisions[0].over);
    assert_eq!(hits(instances[1].close(Some(one)).await), Some(10));
    assert_eq!(instances[0].close(Some(one)).await, None);
    open(&instances[0], 4, 40).await;
    pause(5_100).await;
    assert_eq!(instances[0].close(Some(two)).await, None);
    open(&instances[0], 5, 50).await;
    assert_eq!(given_up(&instances[0]).iter().sum::<u64>(), 60);
    // the place is free after an outage, and the hits come back
    let six = open(&instances[0], 6, 60).await;
    fleet.store.set(Condition::Down);
    assert_eq!(instances[0].close(Some(six)).await, None);
    pause(3_000).await;
    fleet.store.set(Condition::Up);
    pause(1_900).await;
    assert_eq!((given_up(&instances[0]), fleet.places()), (vec![60], vec![5]));
}

#[tokio::test(start_paused = true)]
async fn what_an_outage_keeps_is_bounded_and_the_oldest_is_given_back() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, Network::default(), unlimited(AGE)).await[0];
    fleet.store.set(Condition::Down);
    pause(4_000).await;
    // 4 for each of 2,500 counters
    for serial in 1..=12_000 {
        open(instance, serial, 1).await;
        if serial % 20 == 0 {
            pause(1).await;
        }
    }
    let back = instance.given_up();
    assert_eq!(back.iter().map(|given_up| given_up.hits.0).sum::<u64>(), 2_000);
    assert!(back.len() == 100 && back.is_sorted_by_key(|given_up| given_up.start));
    fleet.store.set(Condition::Up);
    pause(6_000).await;
    assert_eq!(fleet.places().len(), 10_000);
    // the store, too
    for serial in 20_001..=20_500 {
        open(instance, serial, 2).await;
    }
    pause(100).await;
    assert_eq!(fleet.places().len(), PlaceCommand::MAX_RESERVING as usize);
    assert_eq!(given_up(instance).iter().sum::<u64>(), 500);
    // many starts are kept as some
    pause(AGE + 1_000).await;
    for serial in 30_001..=30_020 {
        open(instance, serial, 0).await;
        pause(50).await;
    }
    let back = instance.given_up();
    assert_eq!(back.iter().map(|given_up| given_up.hits.0).sum::<u64>(), 9_500 + 500 * 2);
    assert!((128..=256).contains(&back.len()), "{}", back.len());
}

/// What requests have reserved, and what came back, by the millisecond of their start.
#[derive(Debug, Default)]
struct Ledger {
    reserved: BTreeMap<Timestamp, u64>,
    returned: BTreeMap<Timestamp, u64>,
    violations: Vec<String>,
    /// Whether what was reserved may stay so.
    unsure: bool,
    admitted: u64,
    by_close: u64,
}

/// What is random in a schedule.
#[derive(Clone, Copy, Debug)]
struct Chances {
    instances: usize,
    limit: InFlight,
    network: Network,
    gap: f64,
    duration: f64,
    requests: u64,
    /// The shares of ends that are lost, have no name, are sent twice, and wait for nothing.
    end_loss: f64,
    nameless: f64,
    again: f64,
    unawaited: f64,
    faults: u32,
    /// Whether calls are lost, so that what they had may be.
    loses: bool,
}

struct World {
    fleet: Fleet,
    chances: Chances,
    instances: Vec<Mutex<Arc<Instance>>>,
    ledger: Mutex<Ledger>,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.next() as usize % from.len()]
}

// === impl Ledger ===

impl Ledger {
    fn back(&mut self, returned: ReservedHits) {
        let ReservedHits { hits, start } = returned;
        *self.returned.entry(start).or_default() += hits.0;
    }

    fn sums(&self) -> (u64, u64) {
        (self.reserved.values().sum(), self.returned.values().sum())
    }
}

// === impl World ===

impl World {
    fn new(seed: u64, random: &mut Random) -> Self {
        let loses = random.chance(0.4);
        let share = if loses { pick(random, &[0.0, 0.02, 0.1]) } else { 0.0 };
        let round_trip = pick(random, &[1, 3, 8]);
        let network = Network {
            round_trip: Duration::from_millis(round_trip),
            jitter: Duration::from_millis(round_trip * 2),
            spikes: pick(random, &[0.0, 0.03, 0.2]),
            spike: Duration::from_millis(pick(random, &[10, 60])),
            lost_requests: share / 2.0,
            lost_replies: share / 2.0,
            reorders: random.chance(0.2),
            timeout: Duration::from_millis(150),
        };
        let most = pick(random, &[InFlight::UNLIMITED, InFlight::UNLIMITED, InFlight::UNLIMITED, 3, 20]);
        let is_limited = most != InFlight::UNLIMITED;
        let chances = Chances {
            instances: pick(random, &[1, 2, 2, 3]),
            // so long after an outage that what was refused is ended, and what the store has not heard of is told
            limit: limit(
                most,
                pick(
                    random,
                    if is_limited {
                        &[20_000]
                    } else if loses {
                        &[1_000, 20_000]
                    } else {
                        &[6_000, 6_000, 20_000]
                    },
                ),
            ),
            network,
            gap: pick(random, &[0.5, 3.0, 20.0]),
            duration: pick(random, &[0.5, 5.0, 100.0, 900.0, 6_000.0]),
            requests: pick(random, &[20, 60, 150]),
            end_loss: pick(random, &[0.0, 0.1, 0.5]),
            // without a name, a place may end whose start is refused meanwhile
            nameless: if is_limited { 0.0 } else { pick(random, &[0.0, 0.0, 0.3, 1.0]) },
            again: pick(random, &[0.0, 0.2]),
            unawaited: pick(random, &[0.0, 0.3]),
            faults: pick(random, &[0, 1, 4]),
            loses,
        };
        let skew = pick(random, &[0, 2_000_000_000, -3_000_000_000]);
        let fleet = Fleet::new(OnStoreFailure::Local, seed, skew);
        let instances =
            (0..chances.instances).map(|_| Mutex::new(fleet.instance(network, chances.limit, 0))).collect();
        Self { fleet, chances, instances, ledger: Mutex::default() }
    }

    fn any(&self, random: &mut Random) -> Arc<Instance> {
        Arc::clone(&self.instances[random.next() as usize % self.instances.len()].lock())
    }

    /// As before each decision.
    fn ask(&self, instance: &Instance) {
        let given_up = instance.given_up();
        let mut ledger = self.ledger.lock();
        for given_up in given_up {
            ledger.back(given_up);
        }
    }

    async fn request(self: Arc<Self>, serial: u64, mut random: Random) {
        let random = &mut random;
        let instance = self.any(random);
        self.ask(&instance);
        let reserved = 1 + random.next() % 1_000;
        instance.reserved.store(reserved, std::sync::atomic::Ordering::Relaxed);
        let taken = instance.take(serial).await;
        let is_refused = taken.decisions[0].over;
        // one that dies does not end what it has refused
        if !is_refused || self.chances.loses {
            let mut ledger = self.ledger.lock();
            ledger.admitted += u64::from(!is_refused);
            *ledger.reserved.entry(taken.name.start()).or_default() += reserved;
            // their starts were late, and may have been lost
            ledger.unsure |= taken.name.is_without_store();
        }
        if is_refused {
            return;
        }
        pause(random.exponential(self.chances.duration) as u64).await;
        if random.chance(self.chances.end_loss) {
            return;
        }
        for _ in 0..=u32::from(random.chance(self.chances.again)) {
            let instance = self.any(random);
            self.ask(&instance);
            let name = (!random.chance(self.chances.nameless)).then_some(taken.name);
            if let Some(name) = name.filter(|_| random.chance(self.chances.unawaited)) {
                let known = instance.end(name);
                if let Some(known) = known {
                    self.ledger.lock().back(known);
                }
                continue;
            }
            let Some(back) = instance.close(name).await else { continue };
            let mut ledger = self.ledger.lock();
            ledger.by_close += 1;
            if name.is_some_and(|name| name.start() != back.start || back.hits != Hits(reserved)) {
                ledger.violations.push(format!("{serial} of {reserved} got {back:?}"));
            }
            ledger.back(back);
        }
    }

    async fn fault(self: Arc<Self>, mut random: Random) {
        let random = &mut random;
        let lasts = pick(random, &[10, 200, 2_000]);
        let i = random.next() as usize % self.instances.len();
        let instance = Arc::clone(&self.instances[i].lock());
        match random.next() % if self.chances.loses { 6 } else { 3 } {
            0 => {
                self.fleet.store.set(Condition::Rejecting);
                pause(lasts).await;
                self.fleet.store.set(Condition::Up);
            }
            // a clock that is set back has starts taken too late
            1 if self.chances.limit.most == InFlight::UNLIMITED => {
                let clock = self.fleet.store.clock();
                let offset = clock.now().as_nanos().cast_signed() - clock.right().as_nanos().cast_signed();
                clock.set_offset(offset + pick(random, &[-30_000_000, 30_000_000, 60_000_000]));
            }
            1 | 2 => self.ask(&instance),
            3 => {
                self.fleet.store.set(pick(random, &[Condition::Down, Condition::Frozen]));
                pause(lasts).await;
                self.fleet.store.set(Condition::Up);
            }
            4 => {
                instance.store.remote().partition(true);
                pause(lasts).await;
                instance.store.remote().partition(false);
            }
            _ => {
                instance.store.remote().partition(true);
                *self.instances[i].lock() = self.fleet.instance(self.chances.network, self.chances.limit, 0);
            }
        }
    }

    /// All has ended, and whoever asks gets the rest.
    async fn finish(&self) {
        self.fleet.store.set(Condition::Up);
        for instance in &self.instances {
            instance.lock().store.remote().set_network(slow(2));
        }
        sleep(Duration::from(self.chances.limit.give_up_after) + Duration::from_secs(6)).await;
        for _ in 0..4 {
            for instance in &self.instances {
                let instance = Arc::clone(&instance.lock());
                self.ask(&instance);
                if self.chances.limit.most != InFlight::UNLIMITED {
                    // a check
                    instance.reserved.store(0, std::sync::atomic::Ordering::Relaxed);
                    instance.end(instance.take(u64::MAX >> 24).await.name);
                }
                pause(100).await;
                self.ask(&instance);
            }
        }
        let ledger = &mut *self.ledger.lock();
        let (reserved, returned) = ledger.sums();
        for (start, back) in &ledger.returned {
            let reserved = ledger.reserved.get(start).copied().unwrap_or_default();
            if *back > reserved {
                ledger.violations.push(format!("{back} of {reserved} of {start:?} came back"));
            }
        }
        if !self.chances.loses && !ledger.unsure && reserved != returned {
            let kept =
                ledger.reserved.iter().filter(|(start, hits)| ledger.returned.get(start) != Some(hits));
            let kept = format!("{returned} of {reserved}, not of {:?}", kept.collect::<Vec<_>>());
            ledger.violations.push(kept);
        }
    }
}

fn run(seed: u64) -> (Ledger, Chances) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut random = Random::new(seed);
        let world = Arc::new(World::new(seed, &mut random));
        sleep(WARM_UP).await;
        let mut tasks = JoinSet::new();
        let every = world.chances.requests / u64::from(world.chances.faults.max(1));
        for serial in 1..=world.chances.requests {
            sleep(Duration::from_micros((random.exponential(world.chances.gap) * 1_000.0) as u64)).await;
            if world.chances.faults > 0 && serial % every == every / 2 {
                tasks.spawn(Arc::clone(&world).fault(random.fork()));
            }
            tasks.spawn(Arc::clone(&world).request(serial, random.fork()));
        }
        tasks.join_all().await;
        world.finish().await;
        (std::mem::take(&mut *world.ledger.lock()), world.chances)
    })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "as a variable of proptest, for more schedules")]
fn what_is_reserved_comes_back_once() {
    let more: Option<u64> = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let (mut admitted, mut by_close, mut lossy, mut wrong) = (0, 0, (0, 0), Vec::new());
    for seed in 0..more.unwrap_or(SCHEDULES) {
        let (ledger, chances) = run(seed);
        (admitted, by_close) = (admitted + ledger.admitted, by_close + ledger.by_close);
        if chances.loses && chances.limit.most == InFlight::UNLIMITED {
            let (reserved, returned) = ledger.sums();
            lossy = (lossy.0 + reserved, lossy.1 + returned);
        }
        if !ledger.violations.is_empty() {
            wrong.push(format!("{seed}: {:?} {chances:?}", ledger.violations));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} schedules are wrong, the first ones {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(3)]
    );
    let share = lossy.1 as f64 / lossy.0 as f64;
    println!("{admitted} were admitted, {by_close} closed; {share:.3} came back although calls were lost");
    assert!(admitted > 10_000 && by_close > 4_000 && share > 0.9, "{admitted} {by_close} {share}");
}
