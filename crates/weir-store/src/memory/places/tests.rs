use proptest::prelude::*;

use super::*;
use weir_limit::{Entry, KeyHasher};
use weir_observe::Stats;

const KEYS: usize = 3;

fn keys() -> Vec<CounterKey> {
    let hasher = KeyHasher::with_secret([1, 2]);
    let key = |i: usize| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
    (0..KEYS).map(key).collect()
}

fn stats() -> Arc<PlaceStats> {
    Arc::clone(Stats::default().rule(&["d".into(), "k".into()]).places())
}

fn name(seconds: u64, serial: u64) -> PlaceName {
    PlaceName::new(Timestamp::from_secs(seconds), serial, false)
}

fn limit(most: u32, seconds: u64) -> InFlight {
    InFlight { most, give_up_after: Period::from_secs(seconds) }
}

fn places(table: &PlaceTable) -> usize {
    table.places.load(Ordering::Relaxed)
}

fn check_invariants(table: &PlaceTable) {
    let (mut places, mut counters) = (0, 0);
    for shard in &table.shards {
        let shard = shard.lock();
        let due: BTreeSet<_> = shard.counters.iter().map(|(key, set)| (set.due, *key)).collect();
        assert_eq!(due, shard.due);
        for set in shard.counters.values() {
            let (oldest, _) = set.names.first_key_value().expect("empty sets are removed");
            assert_eq!(oldest.start().after(set.give_up_after), set.due);
        }
        assert!(shard.given_up.len() <= shard.max_given_up);
        assert!(shard.given_up.values().all(|hits| (1..=GIVEN_UP).contains(&hits.len())));
        assert_eq!(shard.places, shard.counters.values().map(|set| set.names.len()).sum::<usize>());
        places += shard.places;
        counters += shard.counters.len();
    }
    assert_eq!((self::places(table), table.counters.load(Ordering::Relaxed)), (places, counters));
    assert!(!table.is_full());
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u32),
    /// Of the name that was made so long ago; of the newest one for 0.
    End(usize, usize),
    Look(usize),
    Later(u64),
    /// Changes when places are given up.
    Age(u64),
    Sweep(usize),
    GivenUp(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..KEYS, 0..5_u32).prop_map(|(key, most)| Step::Take(key, most)),
        3 => (0..KEYS, 0..9_usize).prop_map(|(key, ago)| Step::End(key, ago)),
        1 => (0..KEYS).prop_map(Step::Look),
        1 => (0..4_u64).prop_map(Step::Later),
        1 => (1..9_u64).prop_map(Step::Age),
        1 => (0..7_usize).prop_map(Step::Sweep),
        1 => (0..KEYS).prop_map(Step::GivenUp),
    ]
}

proptest! {
    /// Against plain lists of names with hits.
    #[test]
    fn a_table_is_a_set_of_names_for_each_counter(steps in prop::collection::vec(step(), 0..200)) {
        let (table, keys, stats) = (PlaceTable::new(100_000), keys(), stats());
        let mut model: [Vec<(u64, PlaceName, Hits)>; KEYS] = Default::default();
        let mut given_up = [0; KEYS];
        let (mut second, mut age, mut names) = (100, 5, Vec::new());
        for step in steps {
            let now = Timestamp::from_secs(second);
            let mut current = |key: usize| {
                model[key].retain(|(begun, _, hits)| {
                    let is_old = begun + age <= second;
                    given_up[key] += if is_old { hits.0 } else { 0 };
                    !is_old
                });
                model[key].clone()
            };
            match step {
                Step::Take(key, most) => {
                    let before = current(key).len();
                    let taken = name(second, names.len() as u64);
                    let hits = Hits(names.len() as u64 % 3);
                    names.push(taken);
                    let asked = table.take(keys[key], (taken, hits), limit(most, age), &stats, now);
                    prop_assert_eq!(asked, Asked { is_taken: before < most as usize, before });
                    if asked.is_taken {
                        model[key].push((second, taken, hits));
                        let again = table.take(keys[key], (taken, Hits(0)), limit(most, age), &stats, now);
                        prop_assert_eq!(again, asked);
                    }
                }
                Step::End(key, ago) => {
                    let of = (ago > 0).then(|| names.len().checked_sub(ago).map_or(name(second, 99_999), |i| names[i]));
                    let there = current(key);
                    let ended = of.or(there.iter().map(|(_, name, _)| *name).max());
                    let found = there.iter().find(|(_, name, _)| Some(*name) == ended);
                    let expected = found.map(|(_, name, hits)| ReservedHits { hits: *hits, start: name.start() });
                    prop_assert_eq!(table.end(keys[key], of, Period::from_secs(age), now), expected);
                    model[key].retain(|(_, name, _)| Some(*name) != ended);
                }
                Step::Look(key) => {
                    let places = current(key).len();
                    prop_assert_eq!(table.look(keys[key], Period::from_secs(age), now), places);
                }
                Step::Later(seconds) => second += seconds,
                // that of the last operation on each counter
                Step::Age(seconds) => {
                    for (i, key) in keys.iter().enumerate() {
                        let places = current(i).len();
                        prop_assert_eq!(table.look(*key, Period::from_secs(age), now), places);
                        table.look(*key, Period::from_secs(seconds), now);
                    }
                    age = seconds;
                    for (names, given_up) in model.iter_mut().zip(&mut given_up) {
                        names.retain(|(begun, _, hits)| {
                            let is_old = begun + age <= second;
                            *given_up += if is_old { hits.0 } else { 0 };
                            !is_old
                        });
                    }
                }
                Step::GivenUp(key) => {
                    current(key);
                    let hits = table.given_up(keys[key], Period::from_secs(age), now);
                    let sum: u64 = hits.iter().map(|hits| hits.hits.0).sum();
                    prop_assert_eq!(sum, std::mem::take(&mut given_up[key]));
                }
                Step::Sweep(step) => table.sweep(step, 3, now),
            }
            check_invariants(&table);
        }
        let [now, started, ended, given_up, ..] = stats.totals().counts;
        prop_assert_eq!(now + ended, started - given_up);
    }
}

#[test]
fn at_the_bound_the_place_that_is_the_nearest_to_it_is_given_up() {
    let (table, stats, hasher) = (PlaceTable::new(10), stats(), KeyHasher::with_secret([1, 2]));
    let key = hasher.key("d", &[], |_| None);
    for serial in 0..100 {
        let taken = table.take(
            key,
            (name(serial, serial), Hits(9)),
            limit(1_000, 3_600),
            &stats,
            Timestamp::from_secs(serial),
        );
        assert!(taken.is_taken);
        check_invariants(&table);
    }
    let (age, now) = (Period::from_secs(3_600), Timestamp::from_secs(100));
    assert_eq!((places(&table), table.look(key, age, now)), (39, 39));
    let end = |serial| table.end(key, Some(name(serial, serial)), age, now).map(|reserved| reserved.hits);
    assert_eq!((end(60), end(61)), (None, Some(Hits(9))));
    let given_up = table.given_up(key, age, now);
    assert_eq!(given_up.len(), GIVEN_UP);
    assert_eq!(given_up.iter().map(|hits| hits.hits.0).sum::<u64>(), 61 * 9, "no hit is lost");
    // each counter takes as much as eight places
    for i in 0..1_000 {
        let other = hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        table.take(other, (name(100, i), Hits(9)), limit(1, 3_600), &stats, now);
        check_invariants(&table);
    }
    let [_, started, _, given_up, ..] = stats.totals().counts;
    assert_eq!((started, started - given_up), (1_100, places(&table) as u64 + 1), "one has ended");
    assert!(places(&table) <= 5, "{}", places(&table));
}

#[test]
fn a_sweep_gives_up_what_nobody_asks_for() {
    let (table, stats, keys) = (PlaceTable::new(100_000), stats(), keys());
    for (serial, key) in (0..1_000).zip(keys.into_iter().cycle()) {
        table.take(key, (name(1, serial), Hits(0)), limit(1_000, 60), &stats, Timestamp::from_secs(1));
    }
    for (second, left) in [(60, 1_000), (61, 0)] {
        (0..5).for_each(|step| table.sweep(step, 5, Timestamp::from_secs(second)));
        assert_eq!(places(&table), left, "{second}");
        check_invariants(&table);
    }
}
