//! How far `interval` slips, whatever happens: no further than the documentation says.

use std::{collections::BTreeMap, time::Duration};

use proptest::{prelude::*, sample::select};
use weir::{
    limit::{Algorithm, Coordination, OnStoreFailure, Period, Tier},
    store::simulated::Network,
};

use crate::fleet::{Event, Story, Told, events, networks};

/// Long enough that everything is in one window.
const DAY: Period = Period::from_secs(86_400);

/// Milliseconds between two words of an instance.
const INTERVAL: u64 = 100;

/// Milliseconds after a fault until all have heard of the store again: a heartbeat, and what it takes.
const RECOVERY: u64 = 1_300;

fn stories(
    length: u64,
    networks: impl Strategy<Value = Network>,
    most_events: usize,
    failovers: bool,
) -> impl Strategy<Value = Story> {
    let algorithm = select(vec![Algorithm::FixedWindow, Algorithm::SlidingWindow]);
    let failure = select(vec![OnStoreFailure::Local, OnStoreFailure::Deny]);
    let tier =
        (10..300_u32, algorithm).prop_map(|(requests, algorithm)| Tier { requests, period: DAY, algorithm });
    (1..6_usize, tier, failure, 0.05..0.5, networks, any::<u64>(), events(length, failovers)).prop_map(
        move |(instances, tier, failure, rate, network, seed, mut events)| {
            events.truncate(most_events);
            Story {
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

/// A hit that was let through.
#[derive(Clone, Copy, Debug)]
struct Hit {
    /// In milliseconds after the begin.
    at: u64,
    by: usize,
}

/// Milliseconds by which an instance's idea of the store's clock may be wrong: before that, hits may be of the window before.
const CLOCK_ERROR: u64 = 60;

/// All of the window, in order of time.
fn hits(story: &Story, told: &Told) -> Vec<Hit> {
    let passed = told.outcome.decisions.iter().zip(&told.by).filter(|(d, _)| d.passed == Some(true));
    let hit = |(decision, by): (&weir::simulate::SimulatedDecision, &usize)| Hit {
        at: decision.decided.since(story.begin()).as_nanos() / 1_000_000,
        by: *by,
    };
    let mut hits: Vec<Hit> = passed.map(hit).collect();
    hits.retain(|hit| hit.at >= CLOCK_ERROR);
    hits.sort_by_key(|hit| hit.at);
    hits
}

/// What a story's words and faults mean for what an instance can know.
struct Knowledge<'a> {
    hits: &'a [Hit],
    /// Within so many milliseconds a hit is told and carried out, and so is the answer back.
    word: u64,
    /// When words are lost, or late: begin and end of each fault, the last one first.
    faults: Vec<(u64, u64)>,
}

impl Knowledge<'_> {
    /// The instant before which everything was told by `at`, but for what is lost.
    fn told(&self, at: u64) -> Option<u64> {
        let mut until = at;
        loop {
            let from = until.checked_sub(self.word)?;
            // words of this time are lost, and those before it may have been on their way
            match self.faults.iter().find(|(begin, end)| *begin <= until && from <= *end && *begin < until) {
                Some((begin, _)) => until = *begin,
                None => return Some(from),
            }
        }
    }

    /// The instant before which `by` knew at `at` of everything that was told: it hears when it tells. None if it had not
    /// heard of anything.
    fn known(&self, by: usize, at: u64) -> Option<u64> {
        let told = self.told(at)?;
        let own = self.hits.iter().rev().find(|hit| hit.by == by && hit.at <= told)?;
        self.told(own.at)
    }
}

fn length_of(event: Event) -> u64 {
    match event {
        Event::Frozen(millis)
        | Event::Down(millis)
        | Event::Refusing(millis)
        | Event::Partition(_, millis) => millis,
        Event::Crash(_) | Event::FailOver(_) => 0,
    }
}

/// Loses nothing, and gives up nothing that may still come.
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

    /// Each process has its own count to stop it: it admits no more than the limit, and once more what the store has lost of
    /// what it was told.
    #[test]
    fn no_process_admits_more_than_the_limit_and_what_was_lost(story in stories(3_000, networks(), 6, true)) {
        let told = story.run();
        let mut by_process = BTreeMap::<usize, u64>::new();
        for hit in hits(&story, &told) {
            *by_process.entry(hit.by).or_default() += 1;
        }
        let most = u64::from(story.tier.requests) + told.unknown + told.lost;
        for admitted in by_process.into_values() {
            prop_assert!(admitted <= most, "{admitted} where {most} may be");
        }
    }

    /// All together admit no more than the limit, and what the one who lets the last hit pass cannot know: what the others
    /// let pass since what it has heard, and what was lost.
    #[test]
    fn all_together_slip_by_what_nobody_could_know(story in stories(6_000, calm(), 2, false)) {
        let told = story.run();
        let hits = hits(&story, &told);
        let network = story.network;
        let call = 2 * (network.round_trip + network.jitter + network.spike);
        let mut faults: Vec<(u64, u64)> = story
            .events
            .iter()
            .filter(|(_, event)| length_of(*event) > 0)
            .map(|(at, event)| (*at, at + length_of(*event) + RECOVERY))
            .collect();
        faults.sort_unstable_by_key(|(begin, _)| std::cmp::Reverse(*begin));
        let word = INTERVAL + 2 * u64::try_from(call.as_millis()).expect("short") + 5;
        let knowledge = Knowledge { hits: &hits, word, faults };
        // what died untold
        let untold: usize = told
            .died
            .iter()
            .map(|(process, at)| {
                let since = knowledge.told(*at).unwrap_or(0);
                hits.iter().filter(|hit| hit.by == *process && hit.at >= since).count()
            })
            .sum();
        for (before, hit) in hits.iter().enumerate() {
            let since = knowledge.known(hit.by, hit.at).unwrap_or(0);
            let others = hits[..before].iter().filter(|other| other.by != hit.by && other.at >= since).count();
            let most = story.tier.requests as usize + others + untold + told.unknown as usize;
            prop_assert!(before < most, "{} at {hit:?}, where {most} may be: {others} of others", before + 1);
        }
    }
}
