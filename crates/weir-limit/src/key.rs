/// The byte after each name. UTF-8 contains neither it nor [`PATTERN_END`], so the zeros after it, up to the next word,
/// are no part of a name.
const NAME_END: u8 = 0xff;

/// The byte after a pattern that replaces a value.
const PATTERN_END: u8 = 0xfe;

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use super::{
    compiled_rule::CounterValue,
    descriptor::Entry,
    siphash::SipHash,
    tier::{OverLimitPolicy, Tier},
};

/// The identity of a counter: a domain and the entries of a descriptor, where a shared pattern replaces the value. It
/// does not depend on the tier, the rule or the reload, so that counts survive a change of rules.
///
/// It is a 127-bit keyed hash of the names: the size of a counter does not depend on the length of its names, and a
/// look-up compares 16 bytes. SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) under a
/// secret of this process is a pseudo-random function, so a client cannot choose names that collide; by chance, two of
/// ten million counters collide with a probability below 1 in 10^24.
///
/// The last bit says [who asks](CounterKey::is_of_request). It is no part of the identity: a limit of a request and a
/// rule may share a counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterKey([u64; 2]);

/// Marks the keys of limits that come with requests. It is not among the bits that choose a shard, or a place in it.
const OF_REQUEST: u64 = 1 << 63;

/// Makes [`CounterKey`]s. Two hashers make the same keys only if one is a copy of the other.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    secret: [u64; 2],
}

/// Makes the keys of descriptors with the same domain and keys, so that requests hash their values alone: each place in
/// the tree of rules has one. Its secret is the hash of these names under the secret of the process, so that the whole
/// is a pseudo-random function as its parts are.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueHasher {
    secret: [u64; 2],
}

// === impl CounterKey ===

impl CounterKey {
    const fn of_rule(self) -> Self {
        Self([self.0[0], self.0[1] & !OF_REQUEST])
    }

    /// Returns the key of the counter of a limit that comes with a request, beside that of a rule.
    pub const fn of_request(self) -> Self {
        Self([self.0[0], self.0[1] | OF_REQUEST])
    }

    /// Returns whether it is the key of a limit that comes with a request, rather than of a rule's.
    pub const fn is_of_request(self) -> bool {
        self.0[1] & OF_REQUEST != 0
    }

    /// Returns whether it is the same key, also as to who asks.
    #[inline]
    pub fn is_exactly(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// Returns the key of this policy's counters. Those of `Count` have envoyproxy/ratelimit's format in a store.
    pub const fn of_policy(self, policy: OverLimitPolicy) -> Self {
        match policy {
            OverLimitPolicy::Count => self,
            OverLimitPolicy::Ignore => Self([self.0[0] ^ IGNORES, self.0[1]]),
        }
    }

    /// Returns the key of the shadow with `policy`, if this is the key of a rule whose policy is `enforced`.
    pub(super) const fn of_shadow(self, enforced: OverLimitPolicy, policy: OverLimitPolicy) -> Self {
        // a second time, the policy's bits change back
        let key = self.of_policy(enforced).of_policy(policy);
        Self([key.0[0] ^ IN_SHADOW, key.0[1]])
    }

    /// Returns the key of one tier's counter. A tier that changes its period or algorithm starts a new one: the old counts
    /// do not fit its windows. All tiers of a key have the same [`CounterKey::shard`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn of_tier(self, tier: &Tier) -> Self {
        Self([self.0[0] ^ scramble(tier.counter_bits()), self.0[1]])
    }

    /// One key for the counters of all `tiers`, kept together. Limits with the same periods and algorithms share it.
    pub fn of_tiers(self, tiers: &[Tier]) -> Self {
        // no counter bits have this one
        let start = 1 << 61;
        Self([
            self.0[0] ^ tiers.iter().fold(start, |mixed, tier| scramble(mixed ^ tier.counter_bits())),
            self.0[1],
        ])
    }

    /// Returns the key of what is counted in place `home` of a store. It is nowhere near that of another place.
    pub const fn of_home(self, home: u64) -> Self {
        Self(if home == 0 { self.0 } else { [self.0[0], self.0[1] ^ (scramble(home) & !OF_REQUEST)] })
    }

    /// Returns 64 uniformly distributed bits, for hash tables.
    pub const fn hash(self) -> u64 {
        self.0[0]
    }

    /// Returns 64 uniformly distributed bits, independent of [`CounterKey::hash`] and equal for all tiers.
    pub const fn shard(self) -> u64 {
        self.0[1] & !OF_REQUEST
    }
}

impl PartialEq for CounterKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.of_rule().0 == other.of_rule().0
    }
}

impl Eq for CounterKey {}

impl PartialOrd for CounterKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CounterKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.of_rule().0.cmp(&other.of_rule().0)
    }
}

impl Hash for CounterKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.of_rule().0.hash(state);
    }
}

/// Distinguishes the keys of [`OverLimitPolicy::Ignore`]: any bits that no [`scramble`]d bits of a tier are.
const IGNORES: u64 = scramble(1 << 60);

const IN_SHADOW: u64 = scramble(1 << 59);

/// Mixes all 64 bits with a bijection: the finalizer of `SplitMix64` (Steele, Lea and Flood, 2014).
const fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

// === impl KeyHasher ===

impl KeyHasher {
    /// Creates a hasher with a secret from the operating system's random numbers.
    pub fn random() -> Self {
        // std's hash maps are seeded from the same source, and this needs no further crate
        let random = || {
            use std::hash::{BuildHasher as _, RandomState};
            RandomState::new().hash_one(0)
        };
        Self { secret: [random(), random()] }
    }

    /// Creates a reproducible hasher, for simulations: clients that know the secret can choose names that collide.
    pub const fn with_secret(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    pub(super) fn of_keys<'a>(&self, domain: &str, keys: impl IntoIterator<Item = &'a str>) -> ValueHasher {
        let (mut names, mut last) = (SipHash::new(self.secret), domain);
        for key in keys {
            names.push(last.as_bytes(), NAME_END);
            last = key;
        }
        ValueHasher { secret: names.finish(last.as_bytes(), NAME_END) }
    }

    /// Returns the key of `entries` in `domain`, where `counted(i)` stands for the value of entry `i`, or none for
    /// the value itself.
    pub fn key<'a>(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        counted: impl Fn(usize) -> Option<CounterValue<'a>>,
    ) -> CounterKey {
        self.of_keys(domain, entries.iter().map(|entry| entry.key)).key(entries, counted)
    }

    /// No other counter has this key: their domains are not empty.
    pub(super) fn bucket_key(&self, name: &[u8]) -> CounterKey {
        let mut names = SipHash::new(self.secret);
        names.push(&[], NAME_END);
        CounterKey(names.finish(name, NAME_END)).of_request()
    }

    /// In the same [`CounterKey::shard`] as `key`.
    pub(super) fn with_parameters(&self, key: CounterKey, parameters: [u64; 3]) -> CounterKey {
        let mut numbers = SipHash::new(self.secret);
        let [max, refill, period] = parameters;
        for number in [key.0[0], max, refill] {
            numbers.push(&number.to_le_bytes(), NAME_END);
        }
        CounterKey([numbers.finish(&period.to_le_bytes(), NAME_END)[0], key.0[1]])
    }
}

// === impl ValueHasher ===

impl ValueHasher {
    #[inline]
    pub(super) fn key<'a>(
        &self,
        entries: &[Entry<'_>],
        counted: impl Fn(usize) -> Option<CounterValue<'a>>,
    ) -> CounterKey {
        let mut values = SipHash::new(self.secret);
        let Some((last, others)) = entries.split_last() else {
            return CounterKey(values.finish(&[], NAME_END)).of_rule();
        };
        for (i, entry) in others.iter().enumerate() {
            let counted = counted(i);
            let (text, end) = text(counted.as_ref(), entry);
            values.push(text, end);
        }
        let counted = counted(others.len());
        let (text, end) = text(counted.as_ref(), last);
        CounterKey(values.finish(text, end)).of_rule()
    }
}

#[inline]
fn text<'t>(counted: Option<&'t CounterValue<'_>>, entry: &'t Entry<'_>) -> (&'t [u8], u8) {
    match counted {
        None => (entry.value.as_bytes(), NAME_END),
        Some(CounterValue::Own(value)) => (value.as_bytes(), NAME_END),
        Some(CounterValue::Shared(pattern)) => (pattern.as_bytes(), PATTERN_END),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::units::Period;

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry { key, value }
    }

    #[test]
    fn names_with_the_same_concatenation_have_different_keys() {
        let hasher = KeyHasher::random();
        let key = |domain: &str, entries: &[Entry<'static>]| hasher.key(domain, entries, |_| None);
        let all = [
            key("d", &[entry("a", "b")]),
            key("da", &[entry("b", "")]),
            key("d", &[entry("a", ""), entry("b", "")]),
            key("d", &[entry("ab", "")]),
            key("d", &[entry("a_b", "")]),
            key("d", &[]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{i}");
        }
    }

    #[test]
    fn shared_text_replaces_the_value() {
        let hasher = KeyHasher::random();
        let shared = |_| Some(CounterValue::Shared("f*".into()));
        assert_eq!(
            hasher.key("d", &[entry("k", "f1")], shared),
            hasher.key("d", &[entry("k", "f2")], shared)
        );
        // a value that looks like a pattern is a value
        assert_ne!(
            hasher.key("d", &[entry("k", "f1")], shared),
            hasher.key("d", &[entry("k", "f*")], |_| None)
        );
        assert_ne!(
            hasher.key("d", &[entry("k", "f1")], |_| None),
            hasher.key("d", &[entry("k", "f2")], |_| None)
        );
    }

    #[test]
    fn each_tier_has_its_own_counter_in_the_same_shard() {
        let tier = |seconds| Tier::fixed_window(1, Period::from_secs(seconds));
        let key = KeyHasher::random().key("d", &[entry("k", "v")], |_| None);
        assert_ne!(key.of_tier(&tier(1)), key.of_tier(&tier(2)));
        let sliding = Tier::sliding_window(1, Period::from_secs(1));
        assert_ne!(key.of_tier(&tier(1)), key.of_tier(&sliding));
        let ignoring = key.of_policy(OverLimitPolicy::Ignore);
        assert_ne!(ignoring.of_tier(&tier(1)), key.of_policy(OverLimitPolicy::Count).of_tier(&tier(1)));
        let all = [
            key.of_tiers(&[tier(1)]),
            ignoring.of_tiers(&[tier(1)]),
            key.of_tiers(&[tier(2)]),
            key.of_tiers(&[tier(1), tier(2)]),
            key.of_tiers(&[tier(2), tier(1)]),
            key.of_tiers(std::slice::from_ref(&sliding)),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b) && a.shard() == key.shard(), "{i}");
        }
        let raised = Tier { requests: 9, ..tier(1) };
        assert_eq!(all[0], key.of_tiers(&[raised]));
        assert_ne!(all[0], key.of_tier(&tier(1)));
        assert_eq!(key.of_tier(&tier(1)).shard(), key.of_tier(&tier(2)).shard());
    }

    /// A key of a tier is as unlikely to collide as the key that it is made from: it changes the same bits of all keys,
    /// so that those of two keys differ where the keys do.
    #[test]
    fn keys_of_tiers_are_as_distinct_as_their_keys() {
        let tier = |seconds| Tier::sliding_window(1, Period::from_secs(seconds));
        let hasher = KeyHasher::random();
        let key = |value: u64| hasher.key("d", &[entry("k", &value.to_string())], |_| None);
        let made: [fn(CounterKey, &[Tier]) -> CounterKey; 3] = [
            |key, _| key.of_policy(OverLimitPolicy::Ignore),
            |key, tiers| key.of_tier(&tiers[0]),
            CounterKey::of_tiers,
        ];
        for i in 1..100 {
            let (first, second, tiers) = (key(0), key(i), [tier(i), tier(i * 60)]);
            assert_ne!(first.hash(), second.hash());
            assert_ne!(first.shard(), second.shard());
            for make in made {
                let (a, b) = (make(first, &tiers), make(second, &tiers));
                assert_eq!(a.hash() ^ b.hash(), first.hash() ^ second.hash());
                assert_ne!(a, first);
            }
        }
    }

    /// The outputs of `SplitMix64` for the seed 1234567, whose state grows by a constant.
    #[test]
    fn keys_are_mixed_as_the_outputs_of_splitmix64_are() {
        let state = |i: u64| 1_234_567_u64.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([1, 2, 3, 4, 5].map(|i| scramble(state(i))), expected);
    }

    #[test]
    fn the_keys_of_all_tiers_depend_on_each_of_them_and_on_their_order() {
        let tier = |millis| Tier::fixed_window(1, Period::from_millis(millis));
        let key = KeyHasher::random().key("d", &[entry("k", "v")], |_| None);
        let mut seen = HashSet::new();
        for first in 1..100 {
            assert!(seen.insert(key.of_tiers(&[tier(first)])));
            assert!(
                (1..100).all(|second| seen.insert(key.of_tiers(&[tier(first), tier(second)]))),
                "{first}"
            );
        }
    }
}
