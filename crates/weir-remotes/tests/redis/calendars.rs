//! Windows of the calendar: two instances on one Redis, whose clocks differ by 200 ms, over a night in which clocks are put
//! back; and a window of a year over a restart.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_limit::{
    Calendar, CalendarUnit, CalendarWindows, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit,
    Matched, OnStoreFailure, OverLimitPolicy, Period, Request, Rule, RuleCoordination, RuleNode, RuleSet,
    Scope, Tier, Timestamp, Values,
};
use weir_remotes::redis::RedisRemote;
use weir_store::{
    Store,
    clock::{Clock, SystemClock},
};

use crate::support::{Server, address, settings, until};

/// Local midnight in Berlin from 22 to 29 October 2026. The 25th has 25 hours.
const DAYS: [u64; 8] = [
    1_792_620_000,
    1_792_706_400,
    1_792_792_800,
    1_792_879_200,
    1_792_969_200,
    1_793_055_600,
    1_793_142_000,
    1_793_228_400,
];

/// 1 January from 2024 to 2031.
const YEARS: [u64; 8] = [
    1_704_067_200,
    1_735_689_600,
    1_767_225_600,
    1_798_761_600,
    1_830_297_600,
    1_861_920_000,
    1_893_456_000,
    1_924_992_000,
];

const LIMIT: u32 = 20;

const MODES: [Coordination; 4] =
    [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Auto];

/// A clock that runs, and can be set.
#[derive(Clone)]
struct Set {
    /// In nanoseconds after the system's.
    later: Arc<AtomicU64>,
    ahead: Period,
}

impl Set {
    fn at(instant: Timestamp) -> Self {
        let clock = Self { later: Arc::default(), ahead: Period::default() };
        clock.set(instant);
        clock
    }

    fn set(&self, instant: Timestamp) {
        let later = instant.as_nanos().wrapping_sub(SystemClock.now().as_nanos());
        self.later.store(later, Ordering::Relaxed);
    }
}

impl Clock for Set {
    fn now(&self) -> Timestamp {
        let now = SystemClock.now().as_nanos().wrapping_add(self.later.load(Ordering::Relaxed));
        Timestamp::from_nanos(now).after(self.ahead)
    }
}

struct Instance {
    store: Coordinated<RedisRemote>,
    clock: Set,
    rules: RuleSet,
}

/// A tier of the windows that the table `edges` has, put in force at `at`.
fn tier(unit: CalendarUnit, edges: [u64; 8], at: Timestamp) -> Tier {
    let edges = edges.map(Timestamp::from_secs);
    let windows = CalendarWindows::in_force(Calendar::new(unit), &edges, at);
    Tier::of_calendar(LIMIT, windows.expect("edges around it"))
}

impl Instance {
    fn new(server: &Server, mode: Coordination, tier: &Tier, clock: &Set, ahead: Period) -> Self {
        let limit = Limit::Tiers { tiers: [tier.clone()].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let coordination = RuleCoordination {
            mode: Some(mode),
            on_store_failure: Some(OnStoreFailure::Deny),
            ..RuleCoordination::default()
        };
        let rule = Rule { coordination, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        let remote = RedisRemote::with_clock(settings(address(server.port())), Arc::new(clock.clone()));
        let clock = Set { ahead, ..clock.clone() };
        let own = CoordinationSettings {
            instance: format!("i{}", ahead.as_nanos()),
            budget: Period::from_secs(10),
            heartbeat: Period::from_millis(200),
            ..CoordinationSettings::default()
        };
        let store = Coordinated::new(remote.expect("no files are needed"), Arc::new(clock.clone()), own);
        Self { store, clock, rules }
    }

    async fn is_admitted(&self, value: &str) -> bool {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        !decisions.expect("a coordinated store always decides")[0].over
    }
}

/// Sends requests to all in turn until `is_over`, and returns how many were admitted.
async fn spend(fleet: &[Instance], value: &str, is_over: impl Fn(&[bool]) -> bool) -> u32 {
    let mut admitted = 0;
    loop {
        let mut answers = Vec::new();
        for instance in fleet {
            answers.push(instance.is_admitted(value).await);
        }
        admitted += u32::try_from(answers.iter().filter(|is_admitted| **is_admitted).count()).expect("few");
        if is_over(&answers) {
            return admitted;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

fn rejects(answers: &[bool]) -> bool {
    !answers.contains(&true)
}

/// The most that two instances admit which report to each other a little later.
const fn most(mode: Coordination) -> u32 {
    match mode {
        Coordination::Strict | Coordination::Lease => LIMIT,
        _ => 2 * LIMIT,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_share_the_windows_of_a_night_in_which_clocks_are_put_back() {
    let server = Server::start();
    for mode in MODES {
        let value = mode.name();
        let [eve, midnight] = [DAYS[3], DAYS[4]].map(Timestamp::from_secs);
        let clock = Set::at(eve.after(Period::from_secs(3_600)));
        let day = tier(CalendarUnit::Day, DAYS, DAYS.map(Timestamp::from_secs)[2]);
        let fleet =
            [0, 200].map(|ahead| Instance::new(&server, mode, &day, &clock, Period::from_millis(ahead)));
        until("the instances know each other", async || {
            fleet.iter().all(|instance| instance.store.instances() == 2)
        })
        .await;
        let admitted = spend(&fleet, value, rejects).await;
        assert!((LIMIT..=most(mode)).contains(&admitted), "{value}: {admitted}");
        // the 25th hour is that of the same day
        clock.set(midnight.before(Period::from_secs(1_800)));
        let admitted = spend(&fleet, value, rejects).await;
        assert!(admitted <= most(mode) - LIMIT, "{value}: {admitted} in the 25th hour");
        // one clock is in the next day, and Redis is not
        clock.set(midnight.before(Period::from_millis(100)));
        let is_there = |_: &[bool]| clock.now() > midnight.after(Period::from_millis(300));
        let mut admitted = spend(&fleet, value, is_there).await;
        admitted += spend(&fleet, value, rejects).await;
        assert!((LIMIT..=most(mode)).contains(&admitted), "{value}: {admitted} over the edge");
        for instance in &fleet {
            instance.store.close().await;
        }
        let keys: Vec<String> = server.send(&["KEYS", &format!("*{value}*")]);
        for start in [DAYS[3], DAYS[4]] {
            assert!(keys.iter().any(|key| key.ends_with(&format!("}}fd{start}"))), "{keys:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_a_year_goes_on_after_a_restart() {
    let server = Server::start();
    for mode in MODES {
        let value = mode.name();
        let at = Timestamp::from_secs(YEARS[2] + 40 * 86_400);
        let clock = Set::at(at);
        let year = tier(CalendarUnit::Year, YEARS, at);
        let start = || Instance::new(&server, mode, &year, &clock, Period::default());
        let mut admitted = 0;
        for days in [0, 30, 200] {
            clock.set(at.after(Period::from_secs(days * 86_400)));
            let instance = start();
            until("it knows itself", async || instance.store.instances() == 1).await;
            for _ in 0..5 {
                admitted += u32::from(instance.is_admitted(value).await);
            }
            instance.store.close().await;
        }
        assert_eq!(admitted, 15, "{value}");
        let last = [start()];
        until("it knows itself", async || last[0].store.instances() == 1).await;
        // an instance that counts by itself hears of the store's count with its first reply
        let more = spend(&last, value, rejects).await;
        assert!((5..=most(mode) - 15).contains(&more), "{value}: {more}");
        last[0].store.close().await;
        let left: u64 = server.send(&["TTL", &format!("{{d|k={value}}}fy{}", YEARS[2])]);
        assert!(left > 100 * 86_400 && left < 200 * 86_400, "{value}: {left}");
    }
}
