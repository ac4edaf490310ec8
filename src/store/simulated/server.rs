//! The counters of the simulated store. It implements every [`Op`] as documented, with the pure algorithms.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    limit::{
        Algorithm, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CounterState,
        algorithm::FixedWindow, decide,
    },
    store::remote::{Command, Op, Reply, Target},
};

/// The time that a counter is kept after its expiry, as real stores do, so that late hits are still counted in it.
const LINGER: Period = Period::from_secs(60);

/// The number of commands between two sweeps.
const SWEEP_EVERY: u32 = 65_536;

/// The counters of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedServer {
    counters: HashMap<Key, CounterState>,
    /// The instances, and the end of each registration.
    members: HashMap<String, Timestamp>,
    /// The latest writes, which a failover can lose. Empty unless writes are recorded.
    journal: VecDeque<Written>,
    keeps: Period,
    since_sweep: u32,
}

/// The key of a counter, as in a real store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    path: Arc<str>,
    algorithm: u8,
    period: Period,
    /// Whether the rule is in the format of envoyproxy/ratelimit, which has separate keys.
    compatible: bool,
    /// The end of the fixed window: each window is a separate counter.
    window: Timestamp,
}

/// A command that changed counters.
#[derive(Debug)]
struct Written {
    at: Timestamp,
    before: SmallVec<[(Key, Option<CounterState>); 2]>,
    /// Hits that were taken; negative if they were given back.
    hits: i64,
}

// === impl SimulatedServer ===

impl SimulatedServer {
    /// Records the writes of the last `period` from now on, so that a failover can lose them.
    pub const fn keep_writes(&mut self, period: Period) {
        self.keeps = period;
    }

    /// Carries out `command` at `now`.
    pub fn execute(&mut self, command: &Command, now: Timestamp) -> Reply {
        let Command { target, at, op } = command;
        let counted_at = if matches!(op, Op::Add { .. } | Op::Return { .. }) { *at } else { now };
        let keys: SmallVec<[Key; 2]> = keys(target, counted_at).collect();
        let before: SmallVec<[Option<CounterState>; 2]> =
            keys.iter().map(|key| self.counters.get(key).cloned()).collect();
        let mut counters: SmallVec<[CounterState; 2]> = target
            .tiers
            .iter()
            .zip(&keys)
            .zip(&before)
            .map(|((tier, key), before)| before.clone().unwrap_or_else(|| unused(tier, key, now)))
            .collect();

        let hits = apply(target, &mut counters, *op, counted_at, now);
        for (key, counter) in keys.iter().zip(&counters) {
            self.counters.insert(key.clone(), counter.clone());
        }
        if self.keeps > Period::default() {
            let before = keys.into_iter().zip(before).collect();
            self.journal.push_back(Written { at: now, before, hits });
            while self.journal.front().is_some_and(|written| now.since(written.at) > self.keeps) {
                self.journal.pop_front();
            }
        }
        self.sweep(now);
        Reply { granted: u64::try_from(hits).unwrap_or(0), counters }
    }

    /// Registers `instance` for `ttl` from `now`, or removes it if `ttl` is zero. Returns the number of instances.
    pub fn heartbeat(&mut self, instance: &str, ttl: Period, now: Timestamp) -> usize {
        self.members.insert(instance.to_owned(), now.after(ttl));
        self.members.retain(|_, until| *until > now);
        self.members.len()
    }

    /// Removes everything.
    pub fn flush(&mut self) {
        self.counters.clear();
        self.members.clear();
        self.journal.clear();
    }

    /// Fails over to a replica that lacks the writes of the last `lost` before `now`, as far as they were
    /// [recorded](Self::keep_writes). Returns the number of hits that were taken in them and may be taken again.
    pub fn fail_over(&mut self, lost: Period, now: Timestamp) -> u64 {
        let mut taken = 0;
        while let Some(written) = self.journal.pop_back_if(|written| now.since(written.at) <= lost) {
            taken += u64::try_from(written.hits).unwrap_or(0);
            for (key, before) in written.before {
                match before {
                    Some(before) => self.counters.insert(key, before),
                    None => self.counters.remove(&key),
                };
            }
        }
        taken
    }

    /// Returns the hits that the first tier of `target` counts in the window of `now`.
    #[must_use]
    pub fn used(&self, target: &Target, now: Timestamp) -> u64 {
        let counter = keys(target, now).next().and_then(|key| self.counters.get(&key));
        counter.map_or(0, |counter| counter.probe(&target.tiers[0], now, Hits(0)).used.0)
    }

    fn sweep(&mut self, now: Timestamp) {
        self.since_sweep += 1;
        if self.since_sweep >= SWEEP_EVERY {
            self.since_sweep = 0;
            self.counters.retain(|_, counter| counter.idle_at().after(LINGER) > now);
        }
    }
}

/// Returns the keys of the counters of `target` for hits at `at`, one for each tier.
fn keys(target: &Target, at: Timestamp) -> impl Iterator<Item = Key> {
    let path: Arc<str> = Arc::from(&*target.path);
    target.tiers.iter().map(move |tier| {
        let (algorithm, window) = match tier.algorithm {
            Algorithm::FixedWindow => (0, at.window_end(tier.period)),
            Algorithm::SlidingWindow => (1, Timestamp::default()),
            Algorithm::TokenBucket(_) => (2, Timestamp::default()),
        };
        Key {
            path: Arc::clone(&path),
            algorithm,
            period: tier.period,
            compatible: target.over_limit_policy == OverLimitPolicy::Count,
            window,
        }
    })
}

fn unused(tier: &Tier, key: &Key, now: Timestamp) -> CounterState {
    match tier.algorithm {
        Algorithm::FixedWindow => CounterState::FixedWindow(FixedWindow::new(key.window, Hits(0))),
        _ => CounterState::unused(tier, now),
    }
}

/// Applies `op` to the counters of a target. Returns the hits that were taken; negative if they were given back.
fn apply(
    target: &Target,
    counters: &mut [CounterState],
    op: Op,
    counted_at: Timestamp,
    now: Timestamp,
) -> i64 {
    let tiers = &target.tiers;
    match op {
        Op::Add { hits } => {
            for (tier, counter) in tiers.iter().zip(counters) {
                let at = match tier.algorithm {
                    Algorithm::FixedWindow => counted_at,
                    _ => now,
                };
                let size = Hits(hits.unsigned_abs());
                if hits < 0 {
                    counter.give_back(tier, at, size);
                } else {
                    counter.take(tier, at, size);
                }
            }
            hits
        }
        Op::Return { hits, until } => {
            for (tier, counter) in tiers.iter().zip(counters) {
                counter.release(tier, now, until, Hits(hits));
            }
            -i64::try_from(hits).unwrap_or(i64::MAX)
        }
        Op::Take { hits } => {
            let taken = decide(tiers, counters, target.over_limit_policy, Direction::Take, Hits(hits), now);
            if taken.over { 0 } else { i64::try_from(hits).unwrap_or(i64::MAX) }
        }
        Op::Grant { least, want, hold } => {
            let room =
                tiers.iter().zip(&*counters).map(|(tier, counter)| counter.availability(tier, now).remaining);
            let granted = want.min(room.min().unwrap_or(0).into());
            if granted < least {
                return 0;
            }
            for (tier, counter) in tiers.iter().zip(counters) {
                counter.reserve(tier, now, now.after(hold), Hits(granted));
            }
            i64::try_from(granted).unwrap_or(i64::MAX)
        }
    }
}
