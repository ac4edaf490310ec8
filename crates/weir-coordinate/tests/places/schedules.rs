//! Random schedules: Envoys that stop and leave, instances that are killed, losses, outages, lost data, clocks that
//! differ, and reloads. Whatever happens, no more requests run than the store has promised places to, none of which is
//! freed before, and all places come back.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "random lengths and choices of small numbers"
)]

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::simulated::{Condition, Network, Random};
use weir_limit::{Basis, InFlight, OnStoreFailure, Period, PlaceName};
use weir_store::clock::Clock as _;

use crate::fleet::{Fleet, Instance, PATH, WARM_UP, limit};

const SCHEDULES: u64 = 250;

/// After that, all calls have failed or succeeded, breakers are closed, and all ends were sent.
const QUIET: Duration = Duration::from_secs(6);

struct World {
    fleet: Fleet,
    chances: Chances,
    slots: Vec<Mutex<Slot>>,
    envoys: [watch::Sender<u64>; 2],
    state: Mutex<State>,
}

/// What is random in a schedule.
#[derive(Clone, Copy, Debug)]
struct Chances {
    instances: usize,
    limit: InFlight,
    failure: OnStoreFailure,
    network: Network,
    /// In milliseconds: between two requests, of a request, and until Envoy asks no longer.
    gap: f64,
    duration: f64,
    timeout: u64,
    fails_open: bool,
    requests: u64,
    leave: f64,
    end_loss: f64,
    again: f64,
    faults: u32,
}

struct Slot {
    instance: Option<Arc<Instance>>,
    /// Changes when it is killed.
    kills: watch::Sender<u64>,
    /// The requests that it has started or ended.
    touched: HashSet<u64>,
}

#[derive(Debug, Default)]
struct State {
    asking: HashSet<u64>,
    running: HashMap<u64, Running>,
    /// Requests whose places may stay until they are given up.
    explained: HashSet<u64>,
    violations: Vec<String>,
    faults: Vec<u64>,
    losses: u64,
    /// The store's clock was set: until instances notice, starts may be taken too late.
    stepped: Option<Instant>,
    most: u32,
    shortest: Period,
    /// Whether instances may count in the fallback what others do not.
    is_mixed: bool,
    admitted: u64,
    by_fallback: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    by_fallback: bool,
    most: u32,
    began: Instant,
    is_exempt: bool,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[below(random, from.len() as u64) as usize]
}

fn below(random: &mut Random, most: u64) -> u64 {
    random.next() % most.max(1)
}

// === impl Chances ===

impl Chances {
    fn of(random: &mut Random) -> Self {
        let millis = Duration::from_millis;
        let round_trip = pick(random, &[1, 1, 3, 8]);
        let loss = pick(random, &[0.0, 0.0, 0.0, 0.02, 0.1]);
        let network = Network {
            round_trip: millis(round_trip),
            jitter: millis(round_trip * 2),
            spikes: 0.03,
            spike: millis(pick(random, &[10, 40, 60])),
            lost_requests: loss / 2.0,
            lost_replies: loss / 2.0,
            reorders: random.chance(0.2),
            timeout: millis(150),
        };
        Self {
            instances: pick(random, &[1, 2, 2, 3]),
            limit: limit(pick(random, &[1, 1, 2, 3, 4, 8]), pick(random, &[1_000, 20_000, 60_000])),
            failure: pick(
                random,
                &[OnStoreFailure::Local, OnStoreFailure::Local, OnStoreFailure::Deny, OnStoreFailure::Allow],
            ),
            network,
            gap: pick(random, &[0.5, 3.0, 20.0]),
            duration: pick(random, &[2.0, 20.0, 200.0, 600.0]),
            timeout: pick(random, &[20, 20, 50, 1_000]),
            fails_open: random.chance(0.5),
            requests: pick(random, &[20, 60, 150]),
            leave: pick(random, &[0.0, 0.1, 0.5]),
            end_loss: pick(random, &[0.0, 0.0, 0.05, 0.3]),
            again: pick(random, &[0.0, 0.0, 0.1]),
            faults: pick(random, &[0, 0, 2, 8]),
        }
    }
}

// === impl World ===

impl World {
    fn new(seed: u64, random: &mut Random) -> Self {
        let chances = Chances::of(random);
        let second = 1_000_000_000_i64;
        let mut skew = || pick(random, &[0, 0, 2 * second, -3 * second, 5 * second]);
        let fleet = Fleet::new(chances.failure, seed, skew());
        let slots = (0..chances.instances).map(|_| {
            let instance = fleet.instance(chances.network, chances.limit, skew());
            let kills = watch::Sender::new(0);
            Mutex::new(Slot { instance: Some(instance), kills, touched: HashSet::new() })
        });
        let slots = slots.collect();
        let InFlight { most, give_up_after: shortest } = chances.limit;
        let is_mixed = chances.network.lost_requests > 0.0 || chances.again > 0.0;
        // counts that are forgotten count at one instance only
        let is_mixed = is_mixed || shortest < Period::from_secs(60);
        let state = Mutex::new(State { most, shortest, is_mixed, ..State::default() });
        Self { fleet, chances, slots, envoys: [watch::Sender::new(0), watch::Sender::new(0)], state }
    }

    fn alive(&self, random: &mut Random) -> Option<(usize, Arc<Instance>, watch::Receiver<u64>)> {
        let of = |(i, slot): (usize, &Mutex<Slot>)| {
            let slot = slot.lock();
            Some((i, Arc::clone(slot.instance.as_ref()?), slot.kills.subscribe()))
        };
        let mut alive: Vec<_> = self.slots.iter().enumerate().filter_map(of).collect();
        let chosen = below(random, alive.len() as u64) as usize;
        (!alive.is_empty()).then(|| alive.swap_remove(chosen))
    }

    fn explain(&self, serial: u64) {
        self.state.lock().explained.insert(serial);
    }

    /// Checks all promises.
    fn check(&self) {
        let (places, now) = (self.fleet.places(), Instant::now());
        let State { running, violations, most, shortest, is_mixed, .. } = &mut *self.state.lock();
        for (serial, request) in running.iter_mut() {
            request.is_exempt |= now.duration_since(request.began) >= Duration::from(*shortest);
            if !request.by_fallback && !request.is_exempt && !places.contains(serial) {
                violations.push(format!("{serial} runs without a place"));
                request.is_exempt = true;
            }
        }
        let kept = || running.values().filter(|request| !request.is_exempt);
        let by_store = kept().filter(|request| !request.by_fallback).count();
        let promised = kept().filter(|request| !request.by_fallback).map(|request| request.most).max();
        if by_store > promised.unwrap_or(0) as usize {
            violations.push(format!("{by_store} run, limit {promised:?}"));
        }
        let by_fallback = kept().filter(|request| request.by_fallback).count();
        let is_bounded = self.chances.failure == OnStoreFailure::Local && !*is_mixed;
        if is_bounded && by_fallback > *most as usize {
            violations.push(format!("{by_fallback} run by the fallback, limit {most}"));
        }
    }

    async fn request(self: Arc<Self>, serial: u64, mut random: Random) {
        let random = &mut random;
        let duration = Duration::from_millis(random.exponential(self.chances.duration) as u64 + 1);
        let leaves = random.chance(self.chances.leave);
        let leaves_after = Duration::from_millis(below(random, duration.as_millis().min(40) as u64 + 1));
        let leaves_at = Instant::now() + leaves_after;
        let mut envoy = self.envoys[below(random, 2) as usize].subscribe();
        let Some((i, instance, mut kills)) = self.alive(random) else { return };
        sleep(Duration::from_millis(below(random, 2))).await;
        let most = instance.limit.lock().most;
        let losses = {
            let mut state = self.state.lock();
            state.asking.insert(serial);
            if state.stepped.is_some_and(|stepped| stepped.elapsed() < Duration::from_secs(2)) {
                state.explained.insert(serial);
            }
            state.losses
        };
        self.slots[i].lock().touched.insert(serial);
        let mut answer = None;
        let sent = Instant::now();
        {
            let answered = async {
                let taken = instance.take(serial).await;
                answer = Some(taken);
                // on its way
                sleep(Duration::from_millis(below(random, 3))).await;
            };
            tokio::select! {
                biased;
                _ = kills.changed() => return self.explain(serial),
                () = sleep_until(leaves_at), if leaves => {}
                _ = envoy.changed() => {}
                () = sleep_until(sent + Duration::from_millis(self.chances.timeout)) => {}
                () = answered => {
                    let Some(taken) = answer.take() else { return };
                    if taken.decisions[0].over {
                        return;
                    }
                    return self.run((serial, most, losses), taken.name, (duration, leaves.then_some(leaves_at)), envoy, random).await;
                }
            }
        }
        // the reset has crossed the answer
        if let Some(taken) = answer.filter(|taken| !taken.decisions[0].over) {
            instance.end_of("a", taken.name, true);
        }
        // without an answer, Envoy may pass it
        if self.chances.fails_open {
            sleep(duration).await;
        }
    }

    async fn run(
        &self,
        (serial, most, losses): (u64, u32, u64),
        name: PlaceName,
        (duration, leaves_at): (Duration, Option<Instant>),
        mut envoy: watch::Receiver<u64>,
        random: &mut Random,
    ) {
        {
            let mut state = self.state.lock();
            let (is_exempt, by_fallback) = (state.losses != losses, name.is_without_store());
            state.admitted += 1;
            state.by_fallback += u64::from(by_fallback);
            // the place is a little older
            let began = Instant::now() - Duration::from_millis(80);
            state.running.insert(serial, Running { by_fallback, most, began, is_exempt });
        }
        self.check();
        let until = Instant::now() + duration;
        let is_lost = tokio::select! {
            biased;
            _ = envoy.changed() => true,
            () = sleep_until(leaves_at.map_or(until, |leaves| leaves.min(until))) => false,
        };
        self.check();
        self.state.lock().running.remove(&serial);
        if is_lost {
            return self.explain(serial);
        }
        for _ in 0..=u32::from(random.chance(self.chances.again)) {
            sleep(Duration::from_millis(below(random, 3))).await;
            match self.alive(random).filter(|_| !random.chance(self.chances.end_loss)) {
                Some((i, instance, _)) => {
                    self.slots[i].lock().touched.insert(serial);
                    instance.end(name);
                }
                None => self.explain(serial),
            }
        }
    }

    /// Loses all that its tasks were about to do.
    fn kill(&self, i: usize) -> bool {
        let mut slot = self.slots[i].lock();
        let Some(instance) = slot.instance.take() else { return false };
        instance.store.remote().partition(true);
        slot.kills.send_modify(|kills| *kills += 1);
        let touched: Vec<u64> = slot.touched.drain().collect();
        let mut state = self.state.lock();
        state.explained.extend(touched);
        state.is_mixed = true;
        true
    }

    async fn fault(self: Arc<Self>, mut random: Random) {
        let random = &mut random;
        let i = below(random, self.slots.len() as u64) as usize;
        let lasts = Duration::from_millis(pick(random, &[10, 200, 2_000]));
        let kind = below(random, 8);
        self.state.lock().faults.push(kind);
        match kind {
            0 => {
                if !self.kill(i) {
                    return;
                }
                sleep(lasts).await;
                let instance = self.fleet.instance(self.chances.network, self.chances.limit, 0);
                self.slots[i].lock().instance = Some(instance);
            }
            1 => {
                let envoy = &self.envoys[below(random, 2) as usize];
                envoy.send_modify(|deaths| *deaths += 1);
            }
            2 | 3 => {
                let condition = pick(random, &[Condition::Down, Condition::Frozen, Condition::Rejecting]);
                self.fleet.store.set(condition);
                sleep(lasts).await;
                self.fleet.store.set(Condition::Up);
            }
            4 => {
                let instance = self.slots[i].lock().instance.clone();
                let Some(instance) = instance else { return };
                instance.store.remote().partition(true);
                self.state.lock().is_mixed = true;
                sleep(lasts).await;
                instance.store.remote().partition(false);
            }
            5 => {
                self.fleet.store.flush();
                let mut state = self.state.lock();
                state.losses += 1;
                // the marks of those that have ended are lost, too
                state.explained.extend(1..=self.chances.requests);
                state.running.values_mut().for_each(|request| request.is_exempt = true);
            }
            6 => {
                let changed = InFlight { most: pick(random, &[1, 2, 4, 8]), ..self.chances.limit };
                {
                    let mut state = self.state.lock();
                    (state.most, state.is_mixed) = (state.most.max(changed.most), true);
                }
                for slot in &self.slots {
                    sleep(Duration::from_millis(below(random, 50))).await;
                    if let Some(instance) = &slot.lock().instance {
                        *instance.limit.lock() = changed;
                    }
                }
            }
            _ => {
                let clock = self.fleet.store.clock();
                let now = clock.now().as_nanos().cast_signed();
                let offset = now - clock.right().as_nanos().cast_signed();
                clock.set_offset(offset + pick(random, &[-30_000_000, 30_000_000, 300_000_000]));
                let state = &mut *self.state.lock();
                state.explained.extend(&state.asking);
                state.stepped = Some(Instant::now());
                // places may be given up as much sooner
                state.shortest = Period::from_nanos(state.shortest.as_nanos().saturating_sub(300_000_000));
            }
        }
    }

    /// Nobody runs any more.
    async fn finish(&self) {
        self.fleet.store.set(Condition::Up);
        for slot in &self.slots {
            if let Some(instance) = &slot.lock().instance {
                let network = Network { round_trip: self.chances.network.round_trip, ..Network::default() };
                instance.store.remote().set_network(network);
                instance.store.remote().partition(false);
            }
        }
        sleep(QUIET).await;
        let age = self.chances.limit.give_up_after;
        let mut places = self.fleet.store.places(PATH);
        places.give_up(age, self.fleet.store.clock().now(), usize::MAX);
        {
            let state = &mut *self.state.lock();
            let left = places.iter().map(|(name, _)| name.serial());
            let lost: Vec<u64> = left.filter(|serial| !state.explained.contains(serial)).collect();
            if !lost.is_empty() {
                state.violations.push(format!("places of nobody: {lost:?}"));
            }
        }
        sleep(Duration::from(age) + Duration::from_secs(1)).await;
        let instance = self.slots[0].lock().instance.clone().expect("it was started again");
        instance.limit.lock().most = 1;
        let taken = instance.take(u64::MAX >> 24).await.decisions[0];
        if taken.over || taken.basis == Basis::Fallback {
            self.state.lock().violations.push(format!("it does not heal: {taken:?}"));
        }
    }
}

/// Returns the violations, and how many requests were admitted, and by the fallback.
fn run(seed: u64) -> (Vec<String>, String, u64, u64) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut random = Random::new(seed);
        let world = Arc::new(World::new(seed, &mut random));
        sleep(WARM_UP).await;
        let (mut tasks, mut length) = (JoinSet::new(), 0.0);
        let mut faults: Vec<u64> = Vec::new();
        let whole = world.chances.gap * world.chances.requests as f64;
        faults.extend((0..world.chances.faults).map(|_| below(&mut random, whole as u64 + 1)));
        faults.sort_unstable();
        let begun = Instant::now();
        let mut faults = faults.into_iter().peekable();
        for serial in 1..=world.chances.requests {
            length += random.exponential(world.chances.gap);
            while let Some(at) = faults.next_if(|at| *at <= length as u64) {
                sleep_until(begun + Duration::from_millis(at)).await;
                tasks.spawn(Arc::clone(&world).fault(random.fork()));
            }
            sleep_until(begun + Duration::from_millis(length as u64)).await;
            tasks.spawn(Arc::clone(&world).request(serial, random.fork()));
        }
        tasks.join_all().await;
        world.finish().await;
        let state = world.state.lock();
        let described = format!("{:?} {:?}", state.faults, world.chances);
        (state.violations.clone(), described, state.admitted, state.by_fallback)
    })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "as a variable of proptest, for more schedules")]
fn the_store_keeps_its_promises_and_all_places_come_back() {
    let more: Option<u64> = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let (mut admitted, mut by_fallback, mut wrong) = (0, 0, Vec::new());
    for seed in 0..more.unwrap_or(SCHEDULES) {
        let (violations, described, all, fallback) = run(seed);
        (admitted, by_fallback) = (admitted + all, by_fallback + fallback);
        if !violations.is_empty() {
            wrong.push(format!("{seed}: {violations:?} {described}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} schedules are wrong, the first ones {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(3)]
    );
    println!("{admitted} were admitted, {by_fallback} of them by the fallback");
    assert!(admitted > 2_000 && by_fallback > 50, "{admitted} {by_fallback}");
}
