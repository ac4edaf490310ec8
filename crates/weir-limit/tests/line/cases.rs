//! The cases: tiers, and what callers do.

use proptest::{collection::vec, prelude::*, sample::select};
use weir_limit::{Algorithm, Bucket, Period, Refill, Tier};

/// What a schedule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Callers that wait, leave and give back.
    Waiters,
    /// These, ordinary callers and reloads.
    All,
    /// All of these, and timers that are late.
    LateTimers,
}

/// A schedule.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) mix: Mix,
    pub(crate) tiers: Vec<Tier>,
    /// The time after the event before, in nanoseconds, and what happens.
    pub(crate) events: Vec<(u64, Event)>,
    /// The delays of timers, in nanoseconds, used in turn.
    pub(crate) delays: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A caller that waits for up to as many nanoseconds.
    Enter { hits: u64, max_wait: u64 },
    /// A caller that cannot wait.
    Ask { hits: u64 },
    /// One of the callers so far leaves, if it waits.
    Leave { caller: prop::sample::Index },
    /// One of the callers so far gives its hits back, if it has them.
    PutBack { caller: prop::sample::Index },
    /// The limits become this much of themselves, in halves.
    Change { halves: u32 },
}

/// The unit of time: periods are some dozens of them, and the grace of deadlines is short beside it.
pub(crate) const MOMENT: u64 = 10_000_000;

fn algorithm(requests: u32) -> impl Strategy<Value = Algorithm> {
    let refill = prop_oneof![Just(Refill::Continuous), Just(Refill::Step)];
    let bucket = (select(vec![1, 2, 3, requests, 2 * requests]), refill)
        .prop_map(|(burst, refill)| Algorithm::TokenBucket(Bucket { burst, refill, strict: false }));
    prop_oneof![
        3 => Just(Algorithm::FixedWindow),
        2 => Just(Algorithm::SlidingWindow),
        3 => bucket
    ]
}

fn tier(requests: u32, moments: u64) -> impl Strategy<Value = Tier> {
    (algorithm(requests), 0..2_u64).prop_map(move |(algorithm, odd)| {
        Tier::new(requests, Period::from_nanos(moments * MOMENT + odd), algorithm)
    })
}

fn tiers() -> impl Strategy<Value = Vec<Tier>> {
    (select(vec![1_u32, 2, 3, 3, 5, 8, 13, 40]), select(vec![12_u64, 60, 100]), 1..4_usize).prop_flat_map(
        |(requests, moments, tiers)| {
            let others = vec((1..4_u32, 2..6_u64), tiers - 1);
            (tier(requests, moments), others).prop_flat_map(move |(first, others)| {
                let others: Vec<_> = others
                    .into_iter()
                    .map(|(more, longer)| tier(requests * more, moments * longer))
                    .collect();
                (Just(first), others).prop_map(|(first, others)| {
                    let mut tiers = vec![first];
                    for tier in others {
                        if !tiers.iter().any(|other: &Tier| other.shares_counter(&tier)) {
                            tiers.push(tier);
                        }
                    }
                    tiers
                })
            })
        },
    )
}

fn event(mix: Mix, most: u64, period: u64) -> impl Strategy<Value = Event> {
    let max_wait = prop_oneof![Just(4 * period), 0..4 * period, 0..period / 2];
    let enter = (1..=most, max_wait).prop_map(|(hits, max_wait)| Event::Enter { hits, max_wait });
    let leave = any::<prop::sample::Index>().prop_map(|caller| Event::Leave { caller });
    let put_back = any::<prop::sample::Index>().prop_map(|caller| Event::PutBack { caller });
    let ask = (0..=most).prop_map(|hits| Event::Ask { hits });
    let change = (1..6_u32).prop_map(|halves| Event::Change { halves });
    let others = u32::from(mix != Mix::Waiters);
    prop_oneof![
        12 => enter,
        3 => leave,
        1 => put_back,
        6 * others => ask,
        others => change,
    ]
}

pub(crate) fn case(mix: Mix) -> impl Strategy<Value = Case> {
    let load = select(vec![0.5, 1.0, 2.0, 5.0]);
    (tiers(), load, select(vec![1_u64, 1, 2, 3, 100])).prop_flat_map(move |(tiers, load, heavy)| {
        let (period, requests) = (tiers[0].period.as_nanos(), tiers[0].requests);
        let most = if heavy == 100 { u64::from(requests) + 2 } else { heavy };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let gap = (period as f64 / f64::from(requests) / load) as u64 * most.min(3);
        // many at once, some at random
        let gap = prop_oneof![2 => Just(0), 1 => Just(1), 4 => 0..2 * gap.max(1), 1 => 0..8 * gap.max(1)];
        let late = if mix == Mix::LateTimers { period / 4 } else { 1 };
        (vec((gap, event(mix, most, period)), 1..80), vec(0..late, 1..8))
            .prop_map(move |(events, delays)| Case { mix, tiers: tiers.clone(), events, delays })
    })
}
