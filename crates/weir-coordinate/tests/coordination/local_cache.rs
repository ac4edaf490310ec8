//! The local cache: rejections under `strict` that need no call.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use weir_coordinate::CoordinationSettings;
use weir_limit::{Algorithm, Bucket, Coordination, OverLimitPolicy, Period, Refill, Rule, Scope, Tier};

use crate::{
    fleet::{daily, rule},
    pair::{Ask, Pair, REPORTED, over},
};

fn strict(tier: Tier) -> Rule {
    rule(Coordination::Strict, &[tier], OverLimitPolicy::Ignore)
}

/// Two instances, of which `small` admits what `tier` says.
async fn pair(tier: Tier, local_cache: bool) -> Pair {
    let settings = CoordinationSettings { local_cache, ..CoordinationSettings::default() };
    Pair::start(strict(daily(100)), strict(tier), settings).await
}

fn bucket(strict: bool) -> Tier {
    let bucket = Bucket { burst: 1, refill: Refill::Continuous, strict };
    Tier::new(1, Period::from_secs(10), Algorithm::TokenBucket(bucket))
}

impl Pair {
    /// Sends a hit for `small` to instance 0. Returns whether it was admitted, and the commands that it took.
    async fn hit_small(&self) -> (bool, u64) {
        let before = self.commands(0);
        let admitted = !self.ask(Scope::Descriptor, 0, &[Ask::hit("small")]).await[0].over;
        (admitted, self.commands(0) - before)
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_of_the_store_is_repeated_without_a_call() {
    for local_cache in [false, true] {
        let pair = pair(daily(2), local_cache).await;
        for admitted in [true, true, false] {
            assert_eq!(pair.hit_small().await, (admitted, 1));
        }
        let (commands, begun) = (pair.commands(0), Instant::now());
        let first = pair.ask(Scope::Descriptor, 0, &[Ask::hit("small")]).await[0];
        assert_eq!((first.over, first.remaining, first.is_cached()), (true, 0, local_cache));
        let now = pair.clock.right();
        let left = now.window_end(daily(2).period).since(now);
        assert!(first.reset.as_nanos().abs_diff(left.as_nanos()) <= 1_000_000, "{:?}", first.reset);
        assert_eq!(
            (pair.commands(0) - commands, begun.elapsed().is_zero()),
            (u64::from(!local_cache), local_cache)
        );
        let denied = pair.stores[0].coordination_metrics().decisions.denied.get();
        assert_eq!(denied, u64::from(local_cache));
    }
}

/// They change what the store counts, or need the count of the store.
#[tokio::test(start_paused = true)]
async fn hits_that_are_given_back_and_reads_reach_the_store() {
    for local_cache in [false, true] {
        let pair = pair(daily(1), local_cache).await;
        assert_eq!(pair.hit_small().await, (true, 1));
        assert_eq!(pair.hit_small().await, (false, 1));
        let commands = pair.commands(0);
        let read = pair.ask(Scope::Descriptor, 0, &[Ask { hits: 0, ..Ask::hit("small") }]).await[0];
        assert_eq!((read.over, read.remaining, pair.commands(0) - commands), (false, 0, 1));
        let given = pair.ask(Scope::Descriptor, 0, &[Ask { gives_back: true, ..Ask::hit("small") }]).await[0];
        assert_eq!((given.over, given.remaining), (false, 1));
        sleep(REPORTED).await;
        assert_eq!(pair.commands(0) - commands, 2);
        assert_eq!(pair.hit_small().await, (true, 1), "{local_cache}");
    }
}

/// Without the cache, only the store knows that another instance gave a hit back.
#[tokio::test(start_paused = true)]
async fn without_the_cache_every_hit_reaches_the_store() {
    let pair = pair(daily(1), false).await;
    assert_eq!(pair.hit_small().await, (true, 1));
    assert_eq!(pair.hit_small().await, (false, 1));
    for scope in [Scope::Descriptor, Scope::Request] {
        pair.ask(Scope::Descriptor, 1, &[Ask { gives_back: true, ..Ask::hit("small") }]).await;
        sleep(REPORTED).await;
        let decisions = pair.ask(scope, 0, &[Ask::hit("large"), Ask::hit("small")]).await;
        assert_eq!(over(&decisions), [false, false], "{scope:?}");
    }
}

/// More hits than fit are no reason to reject fewer of them without a call.
#[tokio::test(start_paused = true)]
async fn a_large_request_that_is_rejected_denies_no_small_one() {
    for local_cache in [false, true] {
        let pair = pair(daily(3), local_cache).await;
        let large = pair.ask(Scope::Descriptor, 0, &[Ask { hits: 4, ..Ask::hit("small") }]).await[0];
        assert_eq!((large.over, large.remaining), (true, 3));
        assert_eq!(pair.hit_small().await, (true, 1), "{local_cache}");
    }
}

/// Every rejected try delays the next token of a strict bucket, in the store.
#[tokio::test(start_paused = true)]
async fn a_strict_bucket_is_not_cached() {
    for local_cache in [false, true] {
        for is_strict in [true, false] {
            let pair = pair(bucket(is_strict), local_cache).await;
            assert_eq!(pair.hit_small().await, (true, 1));
            assert_eq!(pair.hit_small().await, (false, 1));
            advance(Period::from_secs(6).into()).await;
            let cached = local_cache && !is_strict;
            assert_eq!(pair.hit_small().await, (false, u64::from(!cached)), "{is_strict}");
            advance(Period::from_secs(6).into()).await;
            assert_eq!(pair.hit_small().await, (!is_strict, 1), "{is_strict}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_several_descriptors_is_rejected_without_a_call() {
    for local_cache in [false, true] {
        let settings = CoordinationSettings { local_cache, ..CoordinationSettings::default() };
        let large = rule(Coordination::Interval, &[daily(100)], OverLimitPolicy::Ignore);
        let pair = Pair::start(large, strict(daily(1)), settings).await;
        assert_eq!(pair.hit_small().await, (true, 1));
        assert_eq!(pair.hit_small().await, (false, 1));
        let commands = pair.commands(0);
        let decisions = pair.ask(Scope::Request, 0, &[Ask::hit("large"), Ask::hit("small")]).await;
        assert_eq!(over(&decisions), [false, true]);
        assert_eq!(pair.commands(0) - commands, u64::from(!local_cache));
    }
}

/// Another instance gave back the hit that this one took. Only the store can say so.
#[tokio::test(start_paused = true)]
async fn only_a_rejection_of_the_store_is_known() {
    let pair = pair(daily(1), true).await;
    assert_eq!(pair.hit_small().await, (true, 1));
    pair.ask(Scope::Descriptor, 1, &[Ask { gives_back: true, ..Ask::hit("small") }]).await;
    sleep(REPORTED).await;
    let decisions = pair.ask(Scope::Request, 0, &[Ask::hit("large"), Ask::hit("small")]).await;
    assert_eq!(over(&decisions), [false, false]);
}

/// The first rejection is that of the store.
#[tokio::test(start_paused = true)]
async fn a_request_that_counts_all_or_none_is_rejected_without_a_command() {
    for keys in [&["small"][..], &["large", "small"], &["small", "large"]] {
        let pair = pair(daily(2), true).await;
        for i in 0..6 {
            let commands = pair.commands(0);
            let decisions = pair.request(0, keys).await;
            let small = decisions[keys.iter().position(|key| *key == "small").expect("it is asked for")];
            let large = keys.iter().position(|key| *key == "large").map(|large| decisions[large]);
            assert_eq!((small.over, small.is_cached()), (i >= 2, i > 2), "{keys:?}, {i}");
            assert!(
                large.is_none_or(|large| !large.over
                    && !large.is_cached()
                    && large.remaining == 99 - i.min(1)),
                "{i}"
            );
            assert_eq!(pair.commands(0) == commands, i > 2, "{keys:?}, {i}");
        }
        assert_eq!(pair.stores[0].coordination_metrics().decisions.denied.get(), 3);
    }
}

/// It took the hit for a request that another limit has rejected.
#[tokio::test(start_paused = true)]
async fn what_another_instance_gives_back_is_noticed_within_a_second() {
    let pair = pair(daily(1), true).await;
    pair.request_in(Scope::Descriptor, 1, &["small"], 1).await;
    for rejected in [1, 2] {
        assert!(pair.request(0, &["large", "small"]).await[1].over, "{rejected}");
    }
    pair.ask(Scope::Descriptor, 1, &[Ask { gives_back: true, ..Ask::hit("small") }]).await;
    let begun = Instant::now();
    while pair.request(0, &["large", "small"]).await[1].over {
        assert!(begun.elapsed() < Duration::from_secs(1));
        sleep(Duration::from_millis(10)).await;
    }
}
