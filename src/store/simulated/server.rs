//! The counters of the simulated store. It implements every [`Op`] as documented, with the pure algorithms.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    limit::{
        Algorithm, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp,
        algorithm::{CountChange, CounterState, FixedWindow},
        decide,
    },
    store::remote::{Command, Op, Reply, Report, Target},
};

/// The time that a counter is kept after its expiry, as real stores do, so that late hits are still counted in it.
const LINGER: Period = Period::from_secs(60);

/// The time that a bucket outlives its last change in Redis, so that it can be seen until when another instance has counted in
/// it.
const BUCKET_LINGER: Period = Period::from_secs(2);

/// The number of commands between two sweeps.
const SWEEP_EVERY: u32 = 65_536;

/// The counters of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedServer {
    counters: HashMap<Key, StoredCounter>,
    /// The latest version of any target.
    version: u64,
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

/// A counter as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredCounter {
    state: CounterState,
    /// Equal for all sliding windows and buckets of a target; zero for fixed windows.
    version: u64,
}

/// A command that changed counters.
#[derive(Debug)]
struct Written {
    at: Timestamp,
    before: SmallVec<[(Key, Option<StoredCounter>); 2]>,
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
        let Command { target, op, .. } = command;
        let counted_at = if matches!(op, Op::Add { .. }) { command.counted_at() } else { now };
        let keys: SmallVec<[Key; 2]> = keys(target, counted_at).collect();
        let before: SmallVec<[Option<StoredCounter>; 2]> =
            keys.iter().map(|key| self.counters.get(key).cloned()).collect();
        let loaded = target.tiers.iter().zip(&keys).zip(&before).map(|((tier, key), before)| match before {
            Some(before) => before.state.clone(),
            None => unused(tier, key, now),
        });
        let mut counters: SmallVec<[CounterState; 1]> = loaded.collect();
        for (tier, counter) in target.tiers.iter().zip(&mut counters) {
            if tier.algorithm == Algorithm::SlidingWindow {
                // drops expired spans, so that only changes are found
                counter.give_back(tier, now, Hits(0));
            }
        }
        let versions = || before.iter().flatten().map(|stored| stored.version).filter(|version| *version > 0);
        let replacement = op.report().and_then(|report| report.replaces.as_deref());
        let since = op.report().map_or(now, |report| report.since.min(now));
        let matched = target.is_versioned()
            && replacement.is_some_and(|replacement| {
                replacement.states.len() == keys.len()
                    && target.tiers.iter().zip(&before).all(|(tier, stored)| match stored {
                        // a counter that counts nothing any more is as good as none
                        Some(stored) => {
                            [0, replacement.version].contains(&stored.version)
                                || (replacement.is_own && is_replaceable(tier, &stored.state, since, now))
                        }
                        // another instance may have counted in a bucket that is forgotten
                        None => !is_bucket(tier) || now.since(since) <= BUCKET_LINGER,
                    })
            });
        let mut version = versions().next().unwrap_or_default();
        let mut counted = Counted { target, keys: &keys, counters, now, has_changed: matched };
        let hits = counted.apply(op, matched);
        let Counted { counters, has_changed, .. } = counted;
        if has_changed {
            self.version += 1;
            version = self.version;
        }
        for (i, (key, counter)) in keys.iter().zip(&counters).enumerate() {
            let is_fixed = target.tiers[i].algorithm == Algorithm::FixedWindow;
            // a counter that counts nothing need not be created, but for a bucket, which shows when it was counted in
            let is_created = counter.used() > Hits(0) || is_bucket(&target.tiers[i]);
            if (is_fixed || has_changed) && (before[i].is_some() || is_created) {
                let version = if is_fixed { 0 } else { version };
                self.counters.insert(key.clone(), StoredCounter { state: counter.clone(), version });
            }
        }
        let is_counted = |(tier, key): (&Tier, &Key)| {
            tier.algorithm != Algorithm::FixedWindow && self.counters.contains_key(key)
        };
        let version = if target.tiers.iter().zip(&keys).any(is_counted) { version } else { 0 };
        if self.keeps > Period::default() {
            let before = keys.into_iter().zip(before).collect();
            self.journal.push_back(Written { at: now, before, hits });
            while self.journal.front().is_some_and(|written| now.since(written.at) > self.keeps) {
                self.journal.pop_front();
            }
        }
        self.sweep(now);
        let granted = match op {
            Op::Add { report } => report.change.hits,
            _ => hits,
        };
        Reply { granted: u64::try_from(granted).unwrap_or(0), counters, version, matched }
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
        counter.map_or(0, |counter| counter.state.probe(&target.tiers[0], now, Hits(0)).used.0)
    }

    fn sweep(&mut self, now: Timestamp) {
        self.since_sweep += 1;
        if self.since_sweep >= SWEEP_EVERY {
            self.since_sweep = 0;
            self.counters.retain(|_, counter| counter.state.idle_at().after(LINGER) > now);
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

fn is_bucket(tier: &Tier) -> bool {
    matches!(tier.algorithm, Algorithm::TokenBucket(_))
}

/// Returns whether a state that has counted all hits since the instant `since` may take the place of `state`. A bucket must
/// have been full then, and not counted since.
fn is_replaceable(tier: &Tier, state: &CounterState, since: Timestamp, now: Timestamp) -> bool {
    match state {
        CounterState::TokenBucket(bucket, _) => bucket.as_of() <= since && state.is_unused(tier, since),
        _ => state.is_unused(tier, now),
    }
}

fn unused(tier: &Tier, key: &Key, now: Timestamp) -> CounterState {
    match tier.algorithm {
        Algorithm::FixedWindow => CounterState::FixedWindow(FixedWindow::new(key.window, Hits(0))),
        _ => CounterState::unused(tier, now),
    }
}

/// The counters of a target while a command is carried out.
struct Counted<'a> {
    target: &'a Target,
    keys: &'a [Key],
    counters: SmallVec<[CounterState; 1]>,
    now: Timestamp,
    /// Whether a sliding window or bucket has changed.
    has_changed: bool,
}

impl Counted<'_> {
    /// Edits the counter of tier `i`, and notes whether it has changed.
    fn edit<T>(&mut self, i: usize, edit: impl FnOnce(&Tier, &mut CounterState) -> T) -> T {
        let (tier, counter) = (&self.target.tiers[i], &mut self.counters[i]);
        let before = counter.clone();
        let result = edit(tier, counter);
        self.has_changed |= match (counter, &before) {
            (CounterState::FixedWindow(_), _) => false,
            // without the time from which they are idle, which follows from the limit too
            (CounterState::TokenBucket(after, _), CounterState::TokenBucket(before, _)) => after != before,
            (after, before) => after.sliding_window() != before.sliding_window(),
        };
        result
    }

    /// Applies `op`. Returns the hits that were taken; negative if they were given back. `may_replace` says whether the report
    /// replaces sliding windows and buckets.
    fn apply(&mut self, op: &Op, may_replace: bool) -> i64 {
        if let Some(report) = op.report() {
            self.report(report, may_replace);
        }
        let (tiers, now) = (&self.target.tiers, self.now);
        match *op {
            Op::Add { ref report } => {
                let unused = report.unused.map_or(0, |unused| i64::try_from(unused.hits).unwrap_or(i64::MAX));
                report.change.hits.saturating_sub(unused)
            }
            Op::Take { hits } => {
                let policy = self.target.over_limit_policy;
                let mut after = self.counters.clone();
                let taken = decide(tiers, &mut after, policy, Direction::Take, Hits(hits), now);
                for (i, after) in after.into_iter().enumerate() {
                    self.edit(i, |_, counter| *counter = after);
                }
                if taken.over { 0 } else { i64::try_from(hits).unwrap_or(i64::MAX) }
            }
            Op::Grant { least, want, hold, .. } => {
                let room = tiers
                    .iter()
                    .zip(&self.counters)
                    .map(|(tier, counter)| counter.availability(tier, now).remaining);
                let granted = want.min(room.min().unwrap_or(0).into());
                if granted < least {
                    return 0;
                }
                for i in 0..tiers.len() {
                    self.edit(i, |tier, counter| {
                        counter.reserve(tier, now, now.after(hold), Hits(granted));
                    });
                }
                i64::try_from(granted).unwrap_or(i64::MAX)
            }
        }
    }

    fn report(&mut self, report: &Report, may_replace: bool) {
        let now = self.now;
        let at = report.at.min(now);
        let rejected_at = report.rejected_at.map(|rejected| rejected.min(now));
        for (i, tier) in self.target.tiers.iter().enumerate() {
            if tier.algorithm == Algorithm::FixedWindow {
                if self.keys[i].window == report.at.window_end(tier.period) {
                    let counter = &mut self.counters[i];
                    if let Some(unused) = report.unused {
                        counter.add(tier, report.at, CountChange::of(negative(unused.hits)), now);
                    }
                    counter.add(tier, report.at, report.change, now);
                }
                continue;
            }
            if let Some(replacement) = report.replaces.as_deref().filter(|_| may_replace) {
                self.counters[i].clone_from(&replacement.states[i]);
                continue;
            }
            if let Some(unused) = report.unused {
                self.edit(i, |tier, counter| counter.release(tier, now, unused.until, Hits(unused.hits)));
            }
            if let Some(rejected_at) = rejected_at.filter(|rejected| *rejected <= at) {
                self.edit(i, |tier, counter| counter.reject(tier, rejected_at));
            }
            self.edit(i, |tier, counter| counter.add(tier, at, report.change, now));
            if let Some(rejected_at) = rejected_at.filter(|rejected| *rejected > at) {
                self.edit(i, |tier, counter| counter.reject(tier, rejected_at));
            }
        }
    }
}

fn negative(hits: u64) -> i64 {
    i64::try_from(hits).map_or(i64::MIN, |hits| -hits)
}
