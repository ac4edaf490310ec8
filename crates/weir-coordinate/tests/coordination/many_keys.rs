//! Many keys: they share calls, and the counters of those that are not used any more are removed.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::simulated::{Condition, Network, SimulatedClock, SimulatedStore};
use weir_limit::{
    Coordination, Descriptor, Entry, LimitCheck, Matched, OverLimitPolicy, Period, Request, RuleSet, Scope,
    Tier,
};
use weir_store::Store as _;

use crate::fleet::{EPOCH, Fleet, Instance, daily, rule};

/// New keys per second.
const RATE: usize = 150;

const WINDOW: u64 = 10;

async fn fleet(mode: Coordination, policy: OverLimitPolicy) -> Fleet {
    let tier = Tier::fixed_window(1_000, Period::from_secs(WINDOW));
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    Fleet::start(1, rule(mode, &[tier], policy), Network::default(), clock, store).await
}

/// Sends one hit for `value`.
async fn hit(instance: &Instance, rules: &RuleSet, value: &str) {
    let entries = [Entry { key: "k", value }];
    let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let matched = Matched::new(rules, &request);
    let checks: &[LimitCheck<'_>] = &matched.checks;
    let decisions = instance.store.take(checks, Scope::Descriptor, instance.now()).await;
    assert!(!decisions.expect("a coordinated store always decides")[0].over);
}

/// Sends hits of new keys for `time`, some of them two. Returns the most counters that there were.
async fn churn(instance: &Instance, rules: &RuleSet, time: Duration) -> usize {
    let (begun, mut most) = (Instant::now(), 0);
    let mut next = 0;
    while begun.elapsed() < time {
        let name = format!("{begun:?}-{next}");
        hit(instance, rules, &name).await;
        if next % 3 == 0 {
            hit(instance, rules, &name).await;
        }
        next += 1;
        let due =
            Duration::from_secs(1) * u32::try_from(next).expect("few") / u32::try_from(RATE).expect("few");
        sleep(due.saturating_sub(begun.elapsed())).await;
        most = most.max(instance.store.counters());
    }
    most
}

#[tokio::test(start_paused = true)]
async fn counters_are_removed_soon_after_their_windows_under_load() {
    let modes = [
        (Coordination::Interval, OverLimitPolicy::Count),
        (Coordination::Lease, OverLimitPolicy::Ignore),
        (Coordination::Strict, OverLimitPolicy::Ignore),
    ];
    for (mode, policy) in modes {
        let fleet = fleet(mode, policy).await;
        let instance = &fleet.instances[0];
        let tier = Tier::fixed_window(1_000, Period::from_secs(WINDOW));
        let rules = instance.rules_with(rule(mode, &[tier], policy));
        let most = churn(instance, &rules, Duration::from_secs(40)).await;
        // those of a window, and of the time that a sweep takes
        assert!(most <= RATE * 16, "{mode:?}, {policy:?}: {most} counters");
        sleep(Duration::from_secs(WINDOW + 6)).await;
        assert_eq!(instance.store.counters(), 0, "{mode:?}, {policy:?}");
    }
}

/// Without the store, what is pending is kept until its window has ended, and no longer.
#[tokio::test(start_paused = true)]
async fn counters_are_removed_soon_after_their_windows_in_an_outage() {
    for mode in [Coordination::Interval, Coordination::Lease, Coordination::Strict] {
        let fleet = fleet(mode, OverLimitPolicy::Ignore).await;
        let instance = &fleet.instances[0];
        let tier = Tier::fixed_window(1_000, Period::from_secs(WINDOW));
        let rules = instance.rules_with(rule(mode, &[tier], OverLimitPolicy::Ignore));
        fleet.shared.set(Condition::Down);
        let most = churn(instance, &rules, Duration::from_secs(40)).await;
        assert!(most <= RATE * 16, "{mode:?}: {most} counters");
        sleep(Duration::from_secs(WINDOW + 12)).await;
        assert_eq!(instance.store.counters(), 0, "{mode:?}");
        assert!(instance.store.coordination_metrics().hits.unreported.get() > 0);
    }
}

/// Counters that are far from their limits are reported together, however many keys there are.
#[tokio::test(start_paused = true)]
async fn keys_far_from_their_limits_share_calls() {
    const KEYS: usize = 500;
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let tier = daily(1_000_000);
    let rule = rule(Coordination::Interval, &[tier], OverLimitPolicy::Ignore);
    let fleet = Fleet::start(2, rule.clone(), Network::default(), clock, store).await;
    let instance = &fleet.instances[0];
    let rules = instance.rules_with(rule);
    let (calls, commands) = (
        || instance.store.coordination_metrics().store.calls.get(),
        || instance.store.coordination_metrics().store.commands.get(),
    );
    let (calls_before, commands_before) = (calls(), commands());
    // one hit every 5 ms, of another key each time: each key is used once in 2.5 s, and so is reported each time
    for turn in 0..4 * KEYS {
        hit(instance, &rules, &format!("{}", turn * 7 % KEYS)).await;
        sleep(Duration::from_millis(5)).await;
    }
    let (calls, commands) = (calls() - calls_before, commands() - commands_before);
    assert!(commands >= 3 * KEYS as u64, "{commands} commands");
    // ten a second, the interval
    assert!(calls <= 120, "{calls} calls for {commands} commands");
}
