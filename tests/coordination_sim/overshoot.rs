//! The overshoot of `interval` is no larger than documented, with any faults.

use std::{collections::BTreeMap, time::Duration};

use proptest::{prelude::*, sample::select};
use weir_coordinate::simulated::Network;
use weir_limit::{Algorithm, Coordination, OnStoreFailure, Period, Tier};

use crate::fleet::{Case, CaseResult, Event, events, networks};

/// A period long enough that all hits are in one window.
const DAY: Period = Period::from_secs(86_400);

/// The time between two flushes of an instance, in milliseconds.
const INTERVAL: u64 = 100;

/// The time from the end of a fault until all instances have a reply of the store, in milliseconds: a heartbeat and its
/// round trip.
const RECOVERY: u64 = 1_300;

fn cases(
    length: u64,
    networks: impl Strategy<Value = Network>,
    most_events: usize,
    failovers: bool,
) -> impl Strategy<Value = Case> {
    let algorithm = select(vec![Algorithm::FixedWindow, Algorithm::SlidingWindow]);
    let failure = select(vec![OnStoreFailure::Local, OnStoreFailure::Deny]);
    let tier = (10..300_u32, algorithm).prop_map(|(requests, algorithm)| Tier::new(requests, DAY, algorithm));
    (1..6_usize, tier, failure, 0.05..0.5, networks, any::<u64>(), events(length, failovers)).prop_map(
        move |(instances, tier, failure, rate, network, seed, mut events)| {
            events.truncate(most_events);
            Case {
                instances,
                mode: Coordination::Interval,
                tier,
                failure,
                rate,
                length,
                network,
                clock_skew: 0,
                seed,
                events,
            }
        },
    )
}

/// An admitted hit.
#[derive(Clone, Copy, Debug)]
struct Hit {
    /// The time in milliseconds after the start.
    at: u64,
    /// The process that admitted it.
    by: usize,
}

/// The largest error of an instance's estimate of the store's clock, in milliseconds. Earlier hits may belong to the
/// previous window.
const CLOCK_ERROR: u64 = 60;

/// Returns the hits of the window, in order of time.
fn hits(case: &Case, result: &CaseResult) -> Vec<Hit> {
    let passed = result.outcome.decisions.iter().zip(&result.by).filter(|(d, _)| d.admitted == Some(true));
    let hit = |(decision, by): (&weir::simulate::SimulatedDecision, &usize)| Hit {
        at: decision.decided.since(case.start_at()).as_nanos() / 1_000_000,
        by: *by,
    };
    let mut hits: Vec<Hit> = passed.map(hit).collect();
    hits.retain(|hit| hit.at >= CLOCK_ERROR);
    hits.sort_by_key(|hit| hit.at);
    hits
}

/// Computes which hits an instance can know of, given the flushes and faults of a case.
struct Knowledge<'a> {
    hits: &'a [Hit],
    /// The longest time until a hit is reported and the reply has arrived, in milliseconds.
    flush: u64,
    /// The start and the end of each fault, the last one first. Flushes of that time are lost or late.
    faults: Vec<(u64, u64)>,
}

impl Knowledge<'_> {
    /// Returns the instant such that at `at` all hits before it had been reported, except for lost ones.
    fn reported(&self, at: u64) -> Option<u64> {
        let mut until = at;
        loop {
            let from = until.checked_sub(self.flush)?;
            // flushes of this time are lost, and earlier ones may have been in flight
            match self.faults.iter().find(|(start, end)| *start <= until && from <= *end && *start < until) {
                Some((start, _)) => until = *start,
                None => return Some(from),
            }
        }
    }

    /// Returns the instant such that at `at` the process `by` knew all reported hits before it: the replies to its own
    /// flushes include them. None if it had no reply yet.
    fn known(&self, by: usize, at: u64) -> Option<u64> {
        let reported = self.reported(at)?;
        let own = self.hits.iter().rev().find(|hit| hit.by == by && hit.at <= reported)?;
        self.reported(own.at)
    }
}

fn length_of(event: Event) -> u64 {
    match event {
        Event::Frozen(millis)
        | Event::Down(millis)
        | Event::Rejecting(millis)
        | Event::Partition(_, millis) => millis,
        Event::Crash(_) | Event::FailOver(_) => 0,
    }
}

/// A network that loses no call and waits for late replies.
fn calm() -> impl Strategy<Value = Network> {
    (1..12_u64, 0..10_u64, 0.0..0.1, 0..80_u64, any::<bool>()).prop_map(
        |(round_trip, jitter, spikes, spike, reorders)| Network {
            round_trip: Duration::from_millis(round_trip),
            jitter: Duration::from_millis(jitter),
            spikes,
            spike: Duration::from_millis(spike),
            reorders,
            timeout: Duration::from_secs(1),
            ..Network::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Each process counts its own hits, so it admits no more than the limit plus the reported hits that the store has
    /// lost.
    #[test]
    fn no_process_admits_more_than_the_limit_and_the_lost_hits(case in cases(3_000, networks(), 6, true)) {
        let result = case.run();
        let mut by_process = BTreeMap::<usize, u64>::new();
        for hit in hits(&case, &result) {
            *by_process.entry(hit.by).or_default() += 1;
        }
        let most = u64::from(case.tier.requests) + result.unknown + result.lost;
        for admitted in by_process.into_values() {
            prop_assert!(admitted <= most, "{admitted} admitted, but at most {most} are allowed");
        }
    }

    /// All together admit no more than the limit, plus the hits that the instance admitting the last one cannot know
    /// of: hits that others have admitted since its last reply, and lost ones.
    #[test]
    fn the_overshoot_is_bounded_by_the_hits_that_an_instance_cannot_know_of(
        case in cases(6_000, calm(), 2, false),
        used_after in 0.4..0.9_f64,
    ) {
        let requests = (case.rate * case.length as f64 * used_after) as u32;
        let case = Case { tier: Tier { requests, ..case.tier.clone() }, ..case };
        let result = case.run();
        let hits = hits(&case, &result);
        let network = case.network;
        let call = 2 * (network.round_trip + network.jitter + network.spike);
        let mut faults: Vec<(u64, u64)> = case
            .events
            .iter()
            .filter(|(_, event)| length_of(*event) > 0)
            .map(|(at, event)| (*at, at + length_of(*event) + RECOVERY))
            .collect();
        faults.sort_unstable_by_key(|(start, _)| std::cmp::Reverse(*start));
        let flush = INTERVAL + 2 * u64::try_from(call.as_millis()).expect("short") + 5;
        let knowledge = Knowledge { hits: &hits, flush, faults };
        // hits that a process had not reported when it died
        let unreported: usize = result
            .died
            .iter()
            .map(|(process, at)| {
                let since = knowledge.reported(*at).unwrap_or(0);
                hits.iter().filter(|hit| hit.by == *process && hit.at >= since).count()
            })
            .sum();
        for (before, hit) in hits.iter().enumerate().skip(case.tier.requests as usize) {
            let since = knowledge.known(hit.by, hit.at);
            // the limit is used up long after the first replies, so without faults the bound is never trivial
            prop_assert!(since.is_some() || !case.events.is_empty(), "{hit:?}");
            let since = since.unwrap_or(0);
            let others = hits[..before].iter().filter(|other| other.by != hit.by && other.at >= since).count();
            let most = case.tier.requests as usize + others + unreported + result.unknown as usize;
            prop_assert!(before < most, "{} at {hit:?}, but at most {most} are allowed: {others} of others", before + 1);
        }
    }
}
