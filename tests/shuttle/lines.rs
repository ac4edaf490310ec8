//! Lines of waiting callers, in random orders of all tasks, also between two locks: callers, those that leave, those
//! that give back, timers, reloads and a stop. No caller sleeps while its hits fit, and no hit is lost.

use std::{
    future::Future as _,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
};

use shuttle::{
    future::{JoinHandle, block_on, spawn, yield_now},
    rand::{Rng as _, thread_rng},
    scheduler::RandomScheduler,
};
use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, OverLimitPolicy, Period, Request, Rule, RuleNode, RuleSet,
    Tier, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{
    MemoryStore,
    clock::{Clock as _, ManualClock},
};

/// The number of random orders.
const RUNS: usize = 2_000;

const STACK: usize = 256 * 1024;

/// A limiter with a clock, and the hits that it admitted and got back. They are not counted by window: a caller that
/// read the clock just before a window ended may be admitted just after, and its hit then counts in the next one.
struct World {
    limiter: Limiter<MemoryStore>,
    clock: ManualClock,
    hasher: KeyHasher,
    callers: AtomicUsize,
    admitted: AtomicU64,
    given_back: AtomicU64,
}

fn rules(requests: u32, hasher: KeyHasher) -> RuleSet {
    let tier = Tier::fixed_window(requests, Period::from_secs(1));
    let limit =
        Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], hasher)
}

fn request() -> Request<'static> {
    let entries = [Entry { key: "k", value: "v" }].into_iter().collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: std::iter::once(descriptor).collect(), hits: 1 }
}

impl World {
    fn new(requests: u32) -> Arc<Self> {
        let limiter =
            Limiter::new(MemoryStore::new(100), Arc::new(Stats::default()), DecisionSettings::default());
        let hasher = KeyHasher::with_secret([1, 2]);
        limiter.load(rules(requests, hasher));
        Arc::new(Self {
            limiter,
            clock: ManualClock::at(Timestamp::from_secs(1_000)),
            hasher,
            callers: AtomicUsize::new(0),
            admitted: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
        })
    }

    /// A caller that waits, and may leave after some polls, or give its hit back.
    async fn call(self: Arc<Self>, leaves: bool, gives_back: bool) {
        let request = request();
        let acquired = self
            .limiter
            .acquire(&request, Period::from_secs(30), &self.clock, |_, acquired| acquired.clone());
        {
            let mut acquired = pin!(acquired);
            let mut polls = 0;
            let patience = thread_rng().gen_range(1..4);
            let outcome = std::future::poll_fn(|context| {
                polls += 1;
                match acquired.as_mut().poll(context) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                    Poll::Pending if leaves && polls >= patience => Poll::Ready(None),
                    Poll::Pending => {
                        if leaves {
                            context.waker().wake_by_ref();
                        }
                        Poll::Pending
                    }
                }
            })
            .await;
            if let Some(outcome) = outcome {
                let acquired = outcome.expect("a decision");
                if acquired.rejection.is_none() {
                    self.admitted.fetch_add(1, Ordering::Relaxed);
                    if let Some(receipt) = acquired.receipt.filter(|_| gives_back) {
                        self.given_back.fetch_add(1, Ordering::Relaxed);
                        self.limiter.put_back(receipt, self.clock.now());
                    }
                }
            }
        }
        self.callers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Moves the clock to the next turn, until all callers have ended.
    async fn time(self: Arc<Self>) {
        while self.callers.load(Ordering::Relaxed) > 0 {
            yield_now().await;
            self.limiter.serve_waiters(self.clock.now());
            if let Some(next) = self.limiter.store().next_turn()
                && next > self.clock.now()
            {
                self.clock.set(next);
                self.limiter.serve_waiters(self.clock.now());
            }
        }
    }
}

fn check(run: impl Fn() + Send + Sync + 'static) {
    let seed = std::env::var("SHUTTLE_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new_from_seed(seed, RUNS), config).run(run);
}

/// Runs callers beside a task that `meddles`, and checks the limit, which is at most `most`.
fn explore(requests: u32, most: u64, meddles: impl Fn(&World) + Send + Sync + Clone + 'static) {
    check(move || {
        let world = World::new(requests);
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        for i in 0..5 {
            world.callers.fetch_add(1, Ordering::Relaxed);
            tasks.push(spawn(Arc::clone(&world).call(i == 1 || i == 3, i == 2)));
        }
        tasks.push(spawn(Arc::clone(&world).time()));
        let (meddling, meddles) = (Arc::clone(&world), meddles.clone());
        tasks.push(spawn(async move {
            yield_now().await;
            meddles(&meddling);
        }));
        block_on(async {
            for task in tasks {
                task.await.expect("a task");
            }
        });
        assert_eq!(world.limiter.store().waiters(), 0);
        assert_eq!(world.limiter.store().next_turn(), None, "a timer is left");
        let windows = world.clock.now().as_nanos() / 1_000_000_000 - 1_000 + 1;
        let admitted = world.admitted.load(Ordering::Relaxed) - world.given_back.load(Ordering::Relaxed);
        assert!(admitted <= most * windows, "{admitted} in {windows} windows of {most}");
        // no hit is lost: a new window admits all of the limit
        world.clock.advance(Period::from_secs(1));
        let admits = || {
            world
                .limiter
                .decide_now(&request(), world.clock.now(), |verdict| verdict.code == weir_limit::Code::Ok)
        };
        assert!(admits().expect("a decision"));
    });
}

#[test]
fn callers_leave_and_give_back_while_timers_serve() {
    explore(1, 1, |_| {});
}

#[test]
fn rules_are_reloaded_while_callers_arrive() {
    explore(1, 2, |world| world.limiter.load(rules(2, world.hasher)));
}

#[test]
fn a_rule_goes_while_callers_arrive() {
    explore(1, 64, |world| world.limiter.load(RuleSet::new(&[], world.hasher)));
}

#[test]
fn the_limiter_stops_while_callers_arrive() {
    explore(1, 1, |world| world.limiter.close_waiters(world.clock.now()));
}
