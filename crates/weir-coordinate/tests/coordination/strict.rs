//! Decisions in `strict` mode: concurrent ones, and those whose commands count at a certain time.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Matched, OverLimitPolicy, Period, Request, RuleNode,
    RuleSet, Scope, Tier, Timestamp, Values,
};
use weir_store::{Store as _, clock::Clock as _, remote::Target};

use crate::{
    fleet::{EPOCH, Fleet, daily, rule, sliding},
    pair::{Ask, Pair, REPORTED, over},
};

/// Starts one instance whose network drops no call.
async fn fleet(requests: u32) -> Fleet {
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::new(1, Coordination::Strict, &[daily(requests)], network).await
}

impl Fleet {
    /// Sends `times` hits at once.
    fn hit_at_once(&self, times: usize) -> JoinSet<bool> {
        let hit = || {
            let instance = Arc::clone(&self.instances[0]);
            async move { instance.hit().await }
        };
        (0..times).map(|_| hit()).collect()
    }

    /// Returns the number of calls and of the commands in them.
    fn calls_and_commands(&self) -> (u64, u64) {
        let metrics = self.instances[0].store.coordination_metrics();
        (metrics.store.calls.get(), metrics.store.commands.get())
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_decisions_share_calls() {
    let fleet = fleet(1_000).await;
    let before = fleet.calls_and_commands();
    let admitted = fleet.hit_at_once(1_500).join_all().await.into_iter().filter(|admitted| *admitted);
    assert_eq!(admitted.count(), 1_000);
    let after = fleet.calls_and_commands();
    // and a command, since they are equal
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
}

/// Returns a command's part of the decisions, and the wait that 99 of 100 do not exceed, of `callers` who each ask again
/// when they have their answer, for `keys` in turn.
async fn ask_again_and_again(keys: usize, callers: usize, round_trip: Duration) -> (f64, Duration) {
    const TIMES: usize = 50;
    let clock = SimulatedClock::new(EPOCH);
    let shared = SimulatedStore::new(clock.clone(), 7);
    let network = Network { round_trip, timeout: Duration::from_secs(10), ..Network::default() };
    let settings = CoordinationSettings {
        instance: "i0".into(),
        budget: Period::from_secs(1),
        ..CoordinationSettings::default()
    };
    let store = Coordinated::new(shared.connect(network), Arc::new(clock.clone()), settings);
    let node = RuleNode {
        rule: Some(rule(Coordination::Strict, &[daily(u32::MAX)], OverLimitPolicy::Ignore)),
        ..RuleNode::new("k", Values::Any)
    };
    let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
    // until the round trip is known
    sleep(Duration::from_millis(2_500)).await;
    let metrics = store.coordination_metrics();
    let sent = metrics.store.commands.get();
    let calling = (0..callers).map(async |caller| {
        let mut waits = Vec::new();
        for time in 0..TIMES {
            let value = ((caller + time) % keys).to_string();
            let entries = [Entry { key: "k", value: &value }].into_iter().collect();
            let descriptor = Descriptor { entries, ..Descriptor::default() };
            let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
            let (begun, matched) = (Instant::now(), Matched::new(&rules, &request));
            let decided = store.take(&matched.checks, Scope::Descriptor, clock.now()).await;
            assert!(!decided.expect("a coordinated store always decides")[0].over);
            waits.push(begun.elapsed());
        }
        waits
    });
    let mut waits: Vec<Duration> = join_all(calling).await.into_iter().flatten().collect();
    waits.sort_unstable();
    let sent = u32::try_from(metrics.store.commands.get() - sent).expect("it is small");
    let made = u32::try_from(waits.len()).expect("it is small");
    (f64::from(sent) / f64::from(made), waits[waits.len() * 99 / 100])
}

/// Callers of one key need few commands nevertheless.
#[tokio::test(start_paused = true)]
async fn decisions_wait_for_little_more_than_their_own_round_trip() {
    let round_trip = Duration::from_millis(80);
    for (keys, callers) in
        [(1, 1), (1, 3), (1, 20), (1, 64), (1, 1_000), (7, 64), (1_000, 64), (1_000, 1_000)]
    {
        let (commands, waited) = ask_again_and_again(keys, callers, round_trip).await;
        assert!(waited <= round_trip * 6 / 5, "{callers} callers of {keys} keys: {waited:?}");
        if keys == 1 && callers >= 64 {
            assert!(commands <= 0.2, "{callers} callers: {commands} commands a decision");
        }
    }
}

/// The counts in the reply are those after all of them.
#[tokio::test(start_paused = true)]
async fn decisions_that_share_a_command_have_each_its_own_status() {
    for tier in [daily(4), sliding(4)] {
        for policy in [OverLimitPolicy::Ignore, OverLimitPolicy::Count] {
            let clock = SimulatedClock::new(EPOCH);
            let store = SimulatedStore::new(clock.clone(), 7);
            let limit = rule(Coordination::Strict, std::slice::from_ref(&tier), policy);
            let fleet = Fleet::start(1, limit.clone(), Network::default(), clock, store).await;
            let instance = &fleet.instances[0];
            assert!(instance.hit().await);
            let (rules, before) = (instance.rules_with(limit), fleet.calls_and_commands());
            let decisions = join_all((0..5).map(|_| instance.decide(&rules, Scope::Descriptor, false))).await;
            let status: Vec<_> = decisions.iter().map(|d| (d.over, d.before.0, d.remaining)).collect();
            let counts = policy == OverLimitPolicy::Count;
            let last = if counts { 5 } else { 4 };
            assert_eq!(
                status,
                [(false, 1, 2), (false, 2, 1), (false, 3, 0), (true, 4, 0), (true, last, 0)],
                "{tier}, {policy:?}"
            );
            assert_eq!(fleet.calls_and_commands().1 - before.1, 1, "{tier}, {policy:?}");
            assert_eq!(fleet.counted_under(tier.clone(), policy), if counts { 6 } else { 4 }, "{tier}");
        }
    }
}

/// A decision that is cancelled before its call leaves takes no hit, and those that share its command take theirs.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_cancelled_leaves_the_hits_to_those_that_share_its_command() {
    for before in [0, 1] {
        let fleet = fleet(3).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(join_all((0..before).map(|_| instance.hit())));
        assert_eq!((&mut first).now_or_never().is_some(), before == 0, "it waits");
        let mut cancelled = Box::pin(instance.hit());
        assert!((&mut cancelled).now_or_never().is_none(), "it waits");
        let mut others = Box::pin(join_all((before..4).map(|_| instance.hit())));
        assert!((&mut others).now_or_never().is_none(), "they wait");
        drop(cancelled);
        let admitted = first.await.into_iter().chain(others.await).collect::<Vec<_>>();
        assert_eq!(admitted, [true, true, true, false], "{before}");
        assert_eq!(fleet.counted(daily(3)), 3, "{before}");
    }
}

/// All calls are in flight without a reply. Tries that wait behind them are given up when their budget runs out; tries
/// beyond the bound of a counter do not wait.
#[tokio::test(start_paused = true)]
async fn cancelled_commands_are_not_sent() {
    const LIMIT: u32 = 10_000;
    for waiting in [50, 4_200] {
        let fleet = fleet(LIMIT).await;
        fleet.shared.set(Condition::Frozen);
        let before = fleet.calls_and_commands();
        let mut hits = Vec::new();
        for _ in 0..4 {
            hits.push(fleet.hit_at_once(1));
            sleep(Duration::from_millis(1)).await;
        }
        hits.push(fleet.hit_at_once(waiting));
        for hits in hits {
            // the fallback admits them
            assert!(hits.join_all().await.into_iter().all(|admitted| admitted));
        }
        let all = 4 + waiting as u64;
        assert_eq!(fleet.instances[0].store.coordination_metrics().decisions.fallback.get(), all);
        // the four calls in flight, and a report of what the fallback has admitted
        let sent = fleet.calls_and_commands().1 - before.1;
        assert!((4..=5).contains(&sent), "{waiting}: {sent}");
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(3)).await;
        // the hits in flight, and those that the fallback admitted
        assert_eq!(fleet.counted(daily(LIMIT)), all, "{waiting}");
    }
}

/// It reaches the store when the next window has begun, perhaps.
#[tokio::test(start_paused = true)]
async fn hits_that_are_given_back_at_the_end_of_a_window_leave_that_window() {
    let tier = Tier::fixed_window(100, Period::from_secs(60));
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    let fleet = Fleet::new(1, Coordination::Strict, std::slice::from_ref(&tier), network).await;
    let instance = &fleet.instances[0];
    for _ in 0..3 {
        assert!(instance.hit().await);
    }
    let left = Duration::from(instance.now().window_end(tier.period).since(instance.now()));
    sleep(left.saturating_sub(Duration::from_millis(5))).await;
    assert_eq!(fleet.counted(tier.clone()), 3);
    let at = instance.now();
    instance.give_back().await;
    sleep(REPORTED).await;
    let (path, over_limit_policy) = ("d|k=v".into(), OverLimitPolicy::Ignore);
    let target = Target { path, tiers: [tier].into(), over_limit_policy };
    assert_eq!(fleet.shared.used(&target, at), 2);
}

/// The store counts rejected hits of such a rule, but not those of a request whose descriptors count all or none.
#[tokio::test(start_paused = true)]
async fn a_rejected_hit_of_a_request_is_never_counted() {
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let counting = rule(Coordination::Strict, &[daily(1)], OverLimitPolicy::Count);
    let fleet = Fleet::start(1, counting.clone(), Network::default(), clock, store).await;
    let instance = &fleet.instances[0];
    let rules = instance.rules_with(counting);
    for (scope, admitted, counted) in [
        (Scope::Request, true, 1),
        (Scope::Request, false, 1),
        (Scope::Descriptor, false, 2),
        (Scope::Request, false, 2),
    ] {
        assert_eq!(instance.hit_under(&rules, scope).await, admitted);
        assert_eq!(fleet.counted_under(daily(1), OverLimitPolicy::Count), counted);
    }
}

/// Starts two instances under `strict`, of which the first admits three hits for `large` during an outage, and has not
/// reported them.
async fn after_an_outage() -> Pair {
    let pair = Pair::new(Coordination::Strict, Coordination::Strict).await;
    pair.shared.set(Condition::Down);
    pair.until_unavailable(true).await;
    for _ in 0..3 {
        assert!(pair.hit(0, "large").await);
    }
    pair.shared.set(Condition::Up);
    pair.until_unavailable(false).await;
    assert_eq!(pair.counted(), 0);
    pair
}

#[tokio::test(start_paused = true)]
async fn a_read_after_an_outage_includes_the_hits_of_the_fallback() {
    let pair = after_an_outage().await;
    let read = pair.request_in(Scope::Descriptor, 0, &["large"], 0).await[0];
    assert_eq!((read.over, read.remaining), (false, 97));
}

#[tokio::test(start_paused = true)]
async fn a_decision_counts_what_was_admitted_in_an_outage() {
    let pair = after_an_outage().await;
    let sent = pair.commands(0);
    let begun = Instant::now();
    let decision = pair.request_in(Scope::Descriptor, 0, &["large"], 1).await[0];
    assert_eq!((decision.over, decision.remaining, pair.counted()), (false, 96, 4));
    // the report precedes it in the same command
    assert_eq!((begun.elapsed(), pair.commands(0) - sent), (Network::default().round_trip, 1));
}

/// A command might overtake the report.
#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_the_report_of_an_earlier_outage() {
    let pair = after_an_outage().await;
    let sent = pair.commands(0);
    while pair.commands(0) == sent {
        sleep(Duration::from_millis(1)).await;
    }
    pair.stores[0].remote().set_network(Network { reorders: true, ..Network::default() });
    assert_eq!(pair.counted(), 0, "the report is on its way");
    let begun = Instant::now();
    let decision = pair.request_in(Scope::Descriptor, 0, &["large"], 1).await[0];
    assert_eq!((decision.over, decision.remaining, pair.counted()), (false, 96, 4));
    let round_trip = Network::default().round_trip;
    assert!((round_trip..=2 * round_trip).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// A store that rejects a command has replied.
#[tokio::test(start_paused = true)]
async fn a_rejected_read_is_no_late_one() {
    let pair = Pair::new(Coordination::Strict, Coordination::Strict).await;
    pair.shared.set(Condition::Rejecting);
    for _ in 0..5 {
        let begun = Instant::now();
        let read = pair.request_in(Scope::Descriptor, 0, &["large"], 0).await[0];
        assert_eq!((read.over, begun.elapsed()), (false, Network::default().round_trip));
    }
    let metrics = pair.stores[0].coordination_metrics();
    assert_eq!((metrics.store.failures.get(), metrics.decisions.fallback.get()), (0, 5));
}

/// The store carries out the read before the hit, whose reply arrives first. So long before that it cannot be an
/// inaccurate clock.
#[tokio::test(start_paused = true)]
async fn a_read_that_a_hit_overtakes_has_the_counts_of_its_own_reply() {
    let settings = CoordinationSettings { budget: Period::from_secs(1), ..CoordinationSettings::default() };
    let strict = |requests| rule(Coordination::Strict, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::start(strict(100), strict(1), settings).await;
    let remote = pair.stores[0].remote();
    let network = Network { reorders: true, ..Network::default() };
    remote.set_network(Network { round_trip: Duration::from_millis(200), ..network });
    let read = async { pair.request_in(Scope::Descriptor, 0, &["large"], 0).await[0] };
    let hit = async {
        sleep(Duration::from_millis(150)).await;
        remote.set_network(network);
        let hit = pair.request_in(Scope::Descriptor, 0, &["large"], 1).await[0];
        (hit, pair.clock.right())
    };
    let ended = async |read| (read.await, pair.clock.right());
    let ((read, read_at), (hit, hit_at)) = tokio::join!(ended(read), hit);
    assert!(hit_at < read_at);
    assert_eq!((read.over, read.remaining, hit.over, hit.remaining), (false, 100, false, 99));
}

/// All descriptors of a request reach the store in one call. It carries out those of one counter in their order.
#[tokio::test(start_paused = true)]
async fn repeated_descriptors_are_decided_in_one_round_trip() {
    let pair = Pair::new(Coordination::Strict, Coordination::Strict).await;
    let begun = Instant::now();
    let decisions = pair.request_in(Scope::Descriptor, 0, &["small", "large", "small"], 1).await;
    assert_eq!(
        (over(&decisions), begun.elapsed()),
        (vec![false, false, true], Network::default().round_trip)
    );
}

/// What a descriptor gives back is there for the next one, and what it takes is not.
#[tokio::test(start_paused = true)]
async fn repeated_descriptors_are_decided_one_after_the_other() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Local] {
        let pair = Pair::new(mode, mode).await;
        let give_back = || Ask { gives_back: true, ..Ask::hit("small") };
        let asks = [Ask::hit("small"), Ask::hit("small"), give_back(), Ask::hit("small"), Ask::hit("small")];
        let decisions = pair.ask(Scope::Descriptor, 0, &asks).await;
        assert_eq!(over(&decisions), [false, true, false, false, true], "{mode:?}");
    }
}

/// A decision that waits delays those after it on the same counter, which count at the later time.
#[tokio::test(start_paused = true)]
async fn a_descriptor_after_one_that_waits_counts_when_it_is_decided() {
    let pair = Pair::new(Coordination::Lease, Coordination::Interval).await;
    let begun = pair.clock.right();
    let decisions = pair.request_in(Scope::Descriptor, 0, &["large", "small", "large"], 1).await;
    assert_eq!(over(&decisions), [false, false, false]);
    let reset = |at: Timestamp| at.window_end(daily(1).period).since(at);
    assert_eq!(decisions[1].reset, reset(begun), "it does not wait for others");
    assert!(decisions[2].reset < decisions[0].reset && decisions[0].reset < reset(begun));
}

/// All descriptors of a request wait within one budget, also if some are for one counter.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_one_budget() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        let pair = Pair::new(mode, mode).await;
        let slow = Network { round_trip: Duration::from_millis(40), ..Network::default() };
        pair.stores[0].remote().set_network(Network { timeout: Duration::from_secs(10), ..slow });
        let begun = Instant::now();
        let keys = ["large", "small", "large", "large", "small", "large", "large", "large"];
        let asks: Vec<_> =
            keys.iter().map(|key| Ask { gives_back: *key == "small", ..Ask::hit(key) }).collect();
        pair.ask(Scope::Descriptor, 0, &asks).await;
        assert!(begun.elapsed() <= Duration::from_millis(17), "{mode:?}: {:?}", begun.elapsed());
    }
}

/// The connection of the request ends before its command is sent.
#[tokio::test(start_paused = true)]
async fn hits_given_back_are_given_back_although_nobody_waits() {
    let of = |requests| rule(Coordination::Strict, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::with(of(100), of(1)).await;
    for _ in 0..5 {
        assert!(pair.hit(0, "large").await);
    }
    let asks = [Ask { gives_back: true, ..Ask::hit("large") }, Ask { hits: 3, ..Ask::hit("large") }];
    assert!(pair.ask(Scope::Descriptor, 0, &asks).now_or_never().is_none(), "it waits for the store");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pair.counted(), 4);
}
