//! Random cases.

use proptest::{collection::vec, option, prelude::*, sample::select};
use weir_limit::{
    Algorithm, Bucket, Calendar, CalendarUnit, CalendarWindows, Period, Refill, Tier, Timestamp,
};

use crate::{
    case::{Ask, Case, Feature, KEYS, Limit, Step, VALUES},
    run::EPOCH,
};

/// Periods of windows, in milliseconds: also ones that are not twelve equal parts, and not units.
const WINDOWS: [u64; 7] = [1_000, 2_000, 10_000, 60_000, 300_000, 3_600_000, 21_600_000];

/// Periods of buckets, in milliseconds: powers of two, of which any number of tokens has an exact part.
const BUCKETS: [u64; 4] = [1_024, 8_192, 65_536, 4_194_304];

/// The edges of a calendar, in seconds after the start of a case. Windows of a day follow.
const EDGES: [i64; 8] = [-7_200, -3_600, -100, 3, 40, 41, 900, 4_000];

fn requests() -> impl Strategy<Value = u32> {
    prop_oneof![
        1 => Just(0_u32),
        6 => 1..12_u32,
        4 => 12..120_u32,
        2 => 120..5_000_u32,
    ]
}

fn tier() -> impl Strategy<Value = Tier> {
    let window = |algorithm: Algorithm| {
        (requests(), select(&WINDOWS[..]))
            .prop_map(move |(requests, millis)| Tier::new(requests, Period::from_millis(millis), algorithm))
    };
    let refill = prop_oneof![3 => Just(Refill::Continuous), 1 => Just(Refill::Step)];
    let bucket = (requests(), requests(), refill, proptest::bool::weighted(0.3), select(&BUCKETS[..]));
    let bucket = bucket.prop_map(|(requests, burst, refill, strict, millis)| {
        Tier::new(
            requests.max(1),
            Period::from_millis(millis),
            Algorithm::TokenBucket(Bucket { burst: burst.max(1), refill, strict }),
        )
    });
    let edges = EDGES
        .map(|edge| Timestamp::from_secs((EPOCH.as_nanos() / 1_000_000_000).saturating_add_signed(edge)));
    let calendar = Calendar::new(CalendarUnit::Day);
    let windows = CalendarWindows::in_force(calendar, &edges, EPOCH).expect("enough edges");
    let of_calendar = requests().prop_map(move |requests| Tier::of_calendar(requests, windows.clone()));
    prop_oneof![
        3 => window(Algorithm::FixedWindow),
        1 => of_calendar,
        2 => window(Algorithm::SlidingWindow),
        2 => bucket,
    ]
}

fn limit() -> impl Strategy<Value = Limit> {
    let tiers = prop_oneof![3 => vec(tier(), 1), 1 => vec(tier(), 2..4)];
    (tiers, any::<bool>(), proptest::bool::weighted(0.3)).prop_map(|(tiers, reference, meters)| {
        let mut limit = Limit { tiers, reference: false, meters };
        limit.drop_repeated();
        limit.meters &= !limit.has_strict_bucket();
        limit.reference = reference
            && matches!(limit.tiers[..], [Tier { algorithm: Algorithm::FixedWindow, calendar: None, .. }]);
        limit
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let hits = prop_oneof![
        8 => Just(1_u64),
        4 => 2..6_u64,
        1 => Just(0_u64),
        2 => 6..60_u64,
        1 => 60..3_000_u64,
    ];
    // as Envoy sends it, or of any kind
    let per_unit =
        (requests(), select(vec![1_000, 60_000, 3_600_000])).prop_map(|(requests, millis)| Limit {
            tiers: vec![Tier::fixed_window(requests, Period::from_millis(millis))],
            reference: true,
            meters: false,
        });
    let own = option::weighted(0.3, prop_oneof![4 => per_unit, 1 => limit()]);
    (0..KEYS.len(), 0..VALUES[0].len(), hits, proptest::bool::weighted(0.2), own).prop_map(
        |(key, value, hits, gives_back, own)| Ask {
            // most requests are for one counter, so that it is used up
            key: if key == 2 && value == 0 { 0 } else { key },
            value,
            hits,
            gives_back,
            own,
        },
    )
}

/// A limit with some of the tiers of `limit` and some of `other`, as the bits of `chosen` say. Those of
/// envoyproxy/ratelimit have one tier, which is the whole counter.
fn mixed(limit: &Limit, other: &Limit, chosen: u8) -> Limit {
    if limit.reference || other.reference {
        return other.clone();
    }
    let tiers = limit.tiers.iter().take(3).chain(&other.tiers);
    let mut kept: Vec<Tier> =
        tiers.zip(0..).filter(|(_, bit)| chosen >> bit & 1 == 1).map(|(tier, _)| tier.clone()).collect();
    if kept.is_empty() {
        kept.clone_from(&other.tiers);
    }
    let mut mixed = Limit { tiers: kept, reference: false, meters: other.meters };
    mixed.drop_repeated();
    mixed.meters &= !mixed.has_strict_bucket();
    mixed
}

/// A time between two requests. Most are short.
fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1..40_u64,
        5 => 40..400_u64,
        4 => 400..4_000_u64,
        2 => select(vec![125_u64, 500, 1_000, 1_024, 2_000, 8_192, 10_000, 60_000]),
        1 => 4_000..100_000_u64,
        1 => prop_oneof![5 => 100_000..400_000_u64, 1 => 400_000..4_000_000_u64],
    ]
}

/// Cases of `instances` with up to `most` steps.
pub(crate) fn cases(instances: usize, most: usize) -> impl Strategy<Value = Case> {
    let asks = prop_oneof![5 => vec(ask(), 1), 1 => vec(ask(), 2..4)];
    let step = prop_oneof![
        12 => (0..instances, asks).prop_map(|(instance, asks)| Step::Request(instance, asks)),
        8 => gap().prop_map(|millis| Step::Wait(Period::from_millis(millis))),
        2 => any::<bool>().prop_map(Step::Outage),
        3 => (0..KEYS.len(), limit()).prop_map(|(key, limit)| Step::Reload(key, limit)),
    ];
    let step = (step, any::<u8>());
    let settings =
        (proptest::bool::weighted(0.4), proptest::bool::weighted(0.4), select(vec![0_u64, 0, 2, 10]));
    // each case is without a third of the features: some need many of one, and none of another
    let without = vec(proptest::bool::weighted(0.3), Feature::ALL.len());
    (vec(limit(), KEYS.len()), settings, vec(step, 1..most), without).prop_map(
        move |(limits, (together, local_cache, round_trip), steps, without)| {
            let steps = steps.into_iter().map(|(step, chosen)| match step {
                // a reload often changes only the number, or adds or removes tiers
                Step::Reload(key, limit) if chosen < 128 => {
                    let mut changed: Limit = limits[key].clone();
                    changed.tiers[0].requests = limit.tiers[0].requests.max(1);
                    Step::Reload(key, changed)
                }
                Step::Reload(key, limit) => Step::Reload(key, mixed(&limits[key], &limit, chosen)),
                // a limit of a request often has some tiers of the rule
                Step::Request(instance, mut asks) => {
                    for ask in &mut asks {
                        if let Some(own) = &mut ask.own {
                            *own = mixed(&limits[ask.key], own, chosen);
                            own.meters = false;
                        }
                    }
                    Step::Request(instance, asks)
                }
                step @ (Step::Wait(_) | Step::Outage(_)) => step,
            });
            let steps = steps.collect();
            let mut case = Case { limits, together, local_cache, round_trip, instances, steps };
            for (feature, _) in Feature::ALL.into_iter().zip(without).filter(|(_, is_without)| *is_without) {
                case.remove(feature);
            }
            case.tidy();
            case
        },
    )
}
