use std::sync::Arc;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::counter::Generation;
use weir_limit::{Direction, Entry, Hits, KeyHasher, OverLimitPolicy, Period, Tier};
use weir_store::remote::Target;

const MAX: usize = 4_000;

/// A flood of new keys evicts those that have not been used for longest, wherever they are in their tables.
#[test]
fn counters_in_use_survive_a_flood_of_new_keys() {
    let (shards, hasher) = (Shards::new(MAX, usize::MAX), KeyHasher::random());
    let key = |i: usize| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
    let tier = Tier::fixed_window(5, Period::from_secs(60));
    let target = Arc::new(Target {
        path: "d_k_".into(),
        tiers: [tier].into(),
        over_limit_policy: OverLimitPolicy::Ignore,
    });
    let insert = |i: usize, now: Timestamp| {
        let counter = LocalCounter::new(Arc::clone(&target), Period::from_millis(100), Generation(1), now);
        let mut shard = shards.lock(key(i).shard());
        let evicted = |evicted: LocalCounter| assert!(evicted.is_settled(), "nothing was pending");
        shards.insert(&mut shard, key(i), counter, evicted);
    };
    let start = Timestamp::from_secs(1_000);
    (0..MAX).for_each(|i| insert(i, start));
    let (used, mut next) = (0..MAX / 2, MAX);
    for second in 1..=10 {
        let now = start.after(Period::from_secs(second));
        for i in used.clone() {
            if let Some(entry) = shards.lock(key(i).shard()).entry_mut(key(i)) {
                entry.counter.last_check_at = now;
            }
        }
        (next..next + MAX / 10).for_each(|i| insert(i, now));
        next += MAX / 10;
        assert!(shards.len() <= MAX);
    }
    let left = used.clone().filter(|i| shards.lock(key(*i).shard()).entry_mut(key(*i)).is_some()).count();
    assert!(left * 100 >= used.len() * 95, "{left} of {} are left", used.len());
}

/// Long names remove each other; counters with short names and pending hits stay.
#[test]
fn the_bytes_of_names_are_bounded() {
    const LONG: usize = 8_000;
    let (shards, hasher) = (Shards::new(100_000, 100 * LONG), KeyHasher::random());
    let tier = Tier::fixed_window(5, Period::from_secs(60));
    let start = Timestamp::from_secs(1_000);
    let insert = |i: usize, length: usize, pending: u64| {
        let key = hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        let path = "x".repeat(length).into();
        let target = Arc::new(Target {
            path,
            tiers: [tier.clone()].into(),
            over_limit_policy: OverLimitPolicy::Ignore,
        });
        let mut counter = LocalCounter::new(target, Period::from_millis(100), Generation(1), start);
        counter.among(1).count(Direction::Take, OverLimitPolicy::Ignore, Hits(pending), start);
        shards.insert(&mut shards.lock(key.shard()), key, counter, |_| {});
        key
    };
    let short: Vec<CounterKey> = (0..100).map(|i| insert(i, 20, 1)).collect();
    for i in 0..2_000 {
        insert(1_000 + i, LONG, 0);
        assert!(shards.name_bytes() <= 100 * LONG, "{}", shards.name_bytes());
    }
    assert!((150..=200).contains(&shards.len()), "{}", shards.len());
    assert!(short.iter().all(|key| shards.lock(key.shard()).entry_mut(*key).is_some()));
    // a name that is longer than the bound takes the place of all others
    insert(9_999, 101 * LONG, 0);
    assert_eq!((shards.len(), shards.name_bytes()), (1, 101 * LONG));
}

#[test]
fn short_names_fill_the_bound_of_the_bytes_exactly() {
    let (shards, hasher) = (Shards::new(100_000, 10), KeyHasher::random());
    let (mut evicted, start) = (0, Timestamp::from_secs(1_000));
    for i in 0..25 {
        let key = hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        let counter = LocalCounter::new(target(1), Period::from_millis(100), Generation(1), start);
        shards.insert(&mut shards.lock(key.shard()), key, counter, |_| evicted += 1);
        assert_eq!((shards.len(), evicted), ((i + 1).min(10), (i + 1_usize).saturating_sub(10)));
    }
}

/// Most of it is returned only if most of it is free, so that a table that is in use does not shrink and grow again.
#[test]
fn the_memory_of_a_table_in_use_stays() {
    let (mut shard, hasher) = (CounterShard::default(), KeyHasher::random());
    let start = Timestamp::from_secs(1_000);
    for i in 0..250 {
        let key = hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        let counter = LocalCounter::new(target(1), Period::from_millis(100), Generation(1), start);
        let entry = Box::new(super::CounterEntry { key, place: QueuePlace::default(), counter });
        shard.table.insert_unique(bucket(key.shard()), entry, |entry| bucket(entry.key.shard()));
    }
    let buckets = shard.table.num_buckets();
    let mut left = |count: usize| {
        while shard.table.len() > count {
            assert!(shard.evict(|_| Some(0)).is_some());
        }
        shard.shrink();
        shard.table.num_buckets()
    };
    assert!(buckets >= 4 * MIN_BUCKETS);
    assert_eq!([left(250), left(buckets / 4)], [buckets, buckets]);
    // room for twice as many
    let fewer = left(40);
    assert!((2 * MIN_BUCKETS..buckets).contains(&fewer) && fewer * 7 / 8 >= 80, "{fewer}");
    assert_eq!(left(24), MIN_BUCKETS);
    assert_eq!(left(1), MIN_BUCKETS, "it is small already");
}

#[derive(Clone, Debug)]
enum DecisionStep {
    /// A counter of key `i` is added if there is none, with a name of these bytes, and is settled or not; of a limit that
    /// comes with a request, or of a rule, which claims that of a request.
    Insert(usize, usize, bool, bool),
    /// Parts of the map are swept.
    Sweep(usize),
    /// All pending hits are applied, and time passes until their counters are idle.
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<DecisionStep>> {
    let bytes = prop_oneof![3 => 1..40_usize, 1 => 200..300_usize, 1 => 300..2_000_usize];
    let step = prop_oneof![
        20 => (0..400_usize, bytes, prop::bool::weighted(0.1), any::<bool>())
            .prop_map(|(i, bytes, pending, of_request)| DecisionStep::Insert(i, bytes, pending, of_request)),
        2 => (1..4_usize).prop_map(DecisionStep::Sweep),
        1 => Just(DecisionStep::Settle),
    ];
    vec(step, 1..600)
}

fn target(bytes: usize) -> Arc<Target> {
    let tier = Tier::fixed_window(5, Period::from_secs(60));
    let path = "x".repeat(bytes).into();
    Arc::new(Target { path, tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore })
}

fn check(shards: &Shards) -> Result<(), TestCaseError> {
    let (mut live, mut bytes, mut of_requests) = (0, 0, 0);
    for shard in &shards.all {
        let shard = shard.lock();
        let names = || shard.table.iter().map(|entry| entry.counter.name_bytes());
        live += shard.table.len();
        bytes += names().sum::<usize>();
        of_requests += shard.table.iter().filter(|entry| entry.key.is_of_request()).count();
    }
    prop_assert_eq!(shards.of_requests.load(Ordering::Relaxed), of_requests);
    prop_assert_eq!((shards.len(), shards.name_bytes()), (live, bytes));
    Ok(())
}

proptest! {
    /// Whatever removes counters. The numbers are bounded, too.
    #[test]
    fn the_accounts_are_those_of_the_counters(
        max in prop_oneof![1..50_usize, 1_000..3_000_usize],
        max_bytes in prop_oneof![500..20_000_usize, Just(1_000_000)],
        steps in steps(),
    ) {
        let (shards, hasher) = (Shards::new(max, max_bytes), KeyHasher::random());
        let key = |i: usize| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        let mut now = Timestamp::from_secs(1_000_000);
        let (mut inserted, mut removed) = (0, 0);
        for step in steps {
            let mut insert = |key: CounterKey, target: Arc<Target>, pending, now| {
                let (bytes, before) = (target.path.len(), shards.name_bytes());
                let mut counter = LocalCounter::new(target, Period::from_millis(100), Generation(1), now);
                if pending {
                    counter.among(1).count(Direction::Take, OverLimitPolicy::Ignore, Hits(1), now);
                }
                let mut evicted = Vec::new();
                let mut shard = shards.lock(key.shard());
                let fits = before + bytes <= max_bytes;
                let is_sampled = shard.table.num_buckets() <= EVICTION_SAMPLE && fits;
                // up to two of a kind are evicted, and those without pending hits first
                let may_lose = !is_sampled || [true, false].into_iter().any(|kind| {
                    let of_kind = shard.table.iter().filter(|entry| entry.key.is_of_request() == kind);
                    of_kind.filter(|entry| entry.counter.is_settled()).count() < 2
                });
                let of_requests = || shards.of_requests.load(Ordering::Relaxed);
                let kinds_before = (shards.len() - of_requests(), of_requests());
                let mut loses = false;
                shards.insert(&mut shard, key, counter, |counter| {
                    loses |= !counter.is_settled();
                    evicted.push(counter.name_bytes());
                });
                drop(shard);
                prop_assert!(!loses || may_lose, "pending hits are lost before counters without any");
                inserted += 1;
                removed += evicted.len();
                let kinds = (shards.len() - of_requests(), of_requests());
                let is_exact = fits && kinds_before.0 + kinds_before.1 < max + shards.all.len();
                prop_assert!(!is_exact || !key.is_of_request() || kinds.0 == kinds_before.0, "a rule's is evicted");
                prop_assert!(!is_exact || kinds.1 >= kinds_before.1.min(max / SHARE_OF_REQUESTS), "their share");
                // room is made for what is missing, and for one of a request
                let without_last = before + bytes - evicted[..evicted.len().saturating_sub(1)].iter().sum::<usize>();
                prop_assert!(evicted.len() <= 2 || without_last > max_bytes);
                prop_assert!(shards.name_bytes() <= max_bytes.max(bytes));
                Ok(())
            };
            match step {
                DecisionStep::Insert(i, bytes, pending, of_request) => {
                    let key = if of_request { key(i).of_request() } else { key(i) };
                    let is_new = shards.lock(key.shard()).entry_mut(key).map(|entry| shards.claim(&mut entry.key, key)).is_none();
                    if is_new {
                        insert(key, target(bytes), pending, now)?;
                    }
                }
                DecisionStep::Sweep(parts) => {
                    let (before, mut visited) = (shards.len(), 0);
                    for _ in 0..parts {
                        shards.sweep(parts, now, |entry| {
                            assert!(!entry.counter.is_idle(now) && !entry.counter.is_quiet());
                            visited += 1;
                        });
                    }
                    removed += before - shards.len();
                    let quiet = |shard: &Mutex<CounterShard>| {
                        shard.lock().table.iter().filter(|entry| entry.counter.is_quiet()).count()
                    };
                    let quiet: usize = shards.all.iter().map(quiet).sum();
                    prop_assert!(visited + quiet >= shards.len(), "all parts together are the map");
                    for shard in &shards.all {
                        let table = &shard.lock().table;
                        prop_assert!(table.num_buckets() <= MIN_BUCKETS.max(5 * table.len()), "too much memory");
                    }
                }
                DecisionStep::Settle => now = now.after(Period::from_secs(7_200)),
            }
            check(&shards)?;
            prop_assert_eq!(shards.len(), inserted - removed);
            // the first counter of a kind in a shard may be one too many
            prop_assert!(shards.len() < max + 2 * shards.all.len(), "{} of {max}", shards.len());
        }
    }
}

/// With the 48 bytes of a target, its name and a place in the table, that is what a counter takes.
#[test]
fn a_counter_with_its_key_is_kept_in_208_bytes() {
    assert_eq!(size_of::<super::CounterEntry>(), 208);
}
