//! The counters of the simulated store. It carries out every [`Exchange`](weir_store::remote::Exchange) as
//! documented, with the pure algorithms.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use smallvec::SmallVec;

use weir_limit::{
    Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
    decide,
};
use weir_store::remote::{
    Command, Exchange, Heartbeat, LeaseRequest, Members, Reply, Report, Run, Target, TierSet,
};

/// Real stores keep counters after their expiry, too, so that late hits still count in them.
const LINGER: Period = Period::from_secs(60);

const SWEEP_EVERY: u32 = 65_536;

/// The counters of a store. The caller passes the time.
#[derive(Debug, Default)]
pub struct SimulatedServer {
    counters: HashMap<StoredKey, SimulatedCounter>,
    members: BTreeMap<String, Timestamp>,
    /// The latest writes, which a failover can lose. Empty unless writes are recorded.
    journal: VecDeque<Written>,
    keeps: Period,
    since_sweep: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StoredKey {
    path: Arc<str>,
    algorithm: char,
    period: Period,
    /// The format of envoyproxy/ratelimit has separate keys.
    compatible: bool,
    /// Each window is a separate counter.
    window: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SimulatedCounter {
    state: CounterState,
    /// Zero for fixed windows.
    writer: u64,
    /// When a real store forgets it: no earlier than what it has replaced.
    until: Timestamp,
}

#[derive(Debug)]
struct Written {
    at: Timestamp,
    before: SmallVec<[(StoredKey, Option<SimulatedCounter>); 2]>,
    /// Negative if hits were given back.
    hits: i64,
}

// === impl SimulatedServer ===

impl SimulatedServer {
    /// Records the writes of the last `period` from now on, so that a failover can lose them.
    pub const fn keep_writes(&mut self, period: Period) {
        self.keeps = period;
    }

    pub fn execute(&mut self, command: &Command, now: Timestamp) -> Reply {
        let Command { target, exchange, .. } = command;
        let counted_at = if exchange.decides() { now } else { command.counted_at() };
        let keys: SmallVec<[StoredKey; 2]> = keys(target, counted_at).collect();
        let before: SmallVec<[Option<SimulatedCounter>; 2]> =
            keys.iter().map(|key| self.counters.get(key).cloned()).collect();
        let loaded = target.tiers.iter().zip(&before).map(|(tier, before)| match before {
            Some(before) => before.state.clone(),
            None => CounterState::unused(tier, if tier.has_windows() { counted_at } else { now }),
        });
        let mut counters: TierStates = loaded.collect();
        for (tier, counter) in target.tiers.iter().zip(&mut counters) {
            if !tier.has_windows() {
                // drops expired spans, so that only changes are found
                counter.give_back(tier, now, Hits(0));
            }
        }
        let (mut own, mut missing) = (TierSet::default(), TierSet::default());
        for (i, before) in before.iter().enumerate() {
            if !target.tiers[i].has_windows() {
                let kept = before.as_ref().filter(|stored| stored.until > now);
                missing.set(i, kept.is_none());
                own.set(i, kept.is_some_and(|stored| stored.writer == exchange.writer));
            }
        }
        let mut counted = CountedHits { target, keys: &keys, counters, now, changed: TierSet::default() };
        let (replied, (mut hits, taken, granted)) = counted.apply(exchange);
        let CountedHits { counters, changed, .. } = counted;
        for (i, (key, counter)) in keys.iter().zip(&counters).enumerate() {
            let is_fixed = target.tiers[i].has_windows();
            // a counter that counts nothing need not be created, but for a bucket, whose refill has an instant
            let is_created = counter.used() > Hits(0) || target.tiers[i].refills();
            if (is_fixed || changed.contains(i)) && (before[i].is_some() || is_created) {
                let writer = if is_fixed { 0 } else { exchange.writer };
                let kept = before[i].as_ref().map_or(Timestamp::default(), |stored| stored.until);
                let until = counter.idle_at().max(kept);
                self.counters.insert(key.clone(), SimulatedCounter { state: counter.clone(), writer, until });
            }
        }
        let mut before: SmallVec<[_; 2]> = keys.iter().cloned().zip(before).collect();
        for report in &exchange.reports {
            hits = hits.saturating_add(report.change.hits).saturating_sub(unused_hits(report));
            before.extend(self.count_in_other_windows(target, &keys, report, now));
        }
        if self.keeps > Period::default() {
            self.journal.push_back(Written { at: now, before, hits });
            while self.journal.front().is_some_and(|written| now.since(written.at) > self.keeps) {
                self.journal.pop_front();
            }
        }
        self.sweep(now);
        Reply { granted, taken, at: Some(now), counters: replied, own, missing }
    }

    /// Returns the windows as they were before.
    fn count_in_other_windows(
        &mut self,
        target: &Target,
        open: &[StoredKey],
        report: &Report,
        now: Timestamp,
    ) -> SmallVec<[(StoredKey, Option<SimulatedCounter>); 2]> {
        let mut changed = SmallVec::new();
        if target.over_limit_policy == OverLimitPolicy::Count {
            return changed;
        }
        for (tier, key) in target.tiers.iter().zip(keys(target, report.at)) {
            if !tier.has_windows() || open.contains(&key) {
                continue;
            }
            let before = self.counters.get(&key).cloned();
            let unused = || CounterState::unused(tier, report.at);
            let mut state = before.as_ref().map_or_else(unused, |stored| stored.state.clone());
            add_to_window(tier, &mut state, report, now);
            if before.is_some() || state.used() > Hits(0) {
                self.counters
                    .insert(key.clone(), SimulatedCounter { until: state.idle_at(), state, writer: 0 });
            }
            changed.push((key, before));
        }
        changed
    }

    /// Registers an instance, or removes it if its time is zero. Returns the instances.
    pub fn heartbeat(&mut self, heartbeat: Heartbeat<'_>, now: Timestamp) -> Members {
        let Heartbeat { instance, ttl } = heartbeat;
        self.members.retain(|_, until| *until > now);
        if ttl > Period::default() {
            self.members.insert(instance.to_owned(), now.after(ttl));
        } else {
            self.members.remove(instance);
        }
        let rank = self.members.keys().position(|name| name == instance);
        let rank = rank.and_then(|rank| u32::try_from(rank).ok());
        Members { instances: self.members.len(), rank, now: Some(now) }
    }

    pub fn flush(&mut self) {
        self.counters.clear();
        self.members.clear();
        self.journal.clear();
    }

    /// Loses [recorded](Self::keep_writes) writes of the last `lost`. Returns their hits, which may be taken again.
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

fn keys(target: &Target, at: Timestamp) -> impl Iterator<Item = StoredKey> {
    let path: Arc<str> = Arc::from(&*target.path);
    target.tiers.iter().map(move |tier| StoredKey {
        path: Arc::clone(&path),
        algorithm: tier.algorithm.kind().letter(),
        period: tier.period,
        compatible: target.over_limit_policy == OverLimitPolicy::Count,
        window: tier.window_end(at).unwrap_or_default(),
    })
}

/// One for each tier.
type TierStates = SmallVec<[CounterState; 1]>;

struct CountedHits<'a> {
    target: &'a Target,
    keys: &'a [StoredKey],
    counters: TierStates,
    now: Timestamp,
    changed: TierSet,
}

impl CountedHits<'_> {
    fn edit<T>(&mut self, i: usize, edit: impl FnOnce(&Tier, &mut CounterState) -> T) -> T {
        let (tier, counter) = (&self.target.tiers[i], &mut self.counters[i]);
        let before = counter.clone();
        let result = edit(tier, counter);
        if !tier.has_windows() && !counter.counts_as(&before) {
            self.changed.set(i, true);
        }
        result
    }

    /// Returns the counters after the reports, and the hits that runs and the lease took, the tries that were taken of
    /// each run, and the hits of the lease.
    fn apply(&mut self, exchange: &Exchange) -> (TierStates, (i64, SmallVec<[u32; 1]>, u64)) {
        for report in &exchange.reports {
            self.report(report);
        }
        let mut all = 0_i64;
        let mut taken = SmallVec::new();
        let (before, changed) = (self.counters.clone(), self.changed);
        for run in &exchange.runs {
            let admitted = self.make_run(*run);
            let hits = i64::try_from(run.hits.saturating_mul(admitted.into())).unwrap_or(i64::MAX);
            all = all.saturating_add(if run.direction == Direction::Take { hits } else { -hits });
            taken.push(admitted);
        }
        if exchange.all_or_none && exchange.runs.iter().zip(&taken).any(|(run, taken)| *taken < run.tries) {
            (self.counters, self.changed, all) = (before.clone(), changed, 0);
            let rejected = exchange.runs.iter().zip(&taken).filter(|(run, taken)| **taken < run.tries);
            rejected.for_each(|(run, _)| self.note_rejected(*run));
        }
        let leased = exchange.lease.map_or(0, |lease| self.lease(lease));
        (before, (all.saturating_add_unsigned(leased), taken, leased))
    }

    fn make_run(&mut self, run: Run) -> u32 {
        if run.hits == 0 {
            return run.tries;
        }
        if run.direction == Direction::GiveBack {
            let (change, now) = (CountChange::of(negative(run.all_hits())), self.now);
            for i in 0..self.counters.len() {
                self.edit(i, |tier, counter| counter.add(tier, now, change, now));
            }
            return run.tries;
        }
        let (tiers, now) = (&self.target.tiers, self.now);
        let policy = if run.counts_rejected { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore };
        let mut after: TierStates = self.counters.clone();
        let mut admitted = 0;
        for _ in 0..run.tries {
            let decision = decide(tiers, &mut after, policy, Direction::Take, Hits(run.hits), now);
            admitted += u32::from(!decision.over);
        }
        for (i, after) in after.into_iter().enumerate() {
            self.edit(i, |_, counter| *counter = after);
        }
        admitted
    }

    /// Has strict buckets notice that `run` was rejected, where it does not fit.
    fn note_rejected(&mut self, run: Run) {
        let now = self.now;
        for i in 0..self.counters.len() {
            self.edit(i, |tier, counter| {
                if !counter.probe(tier, now, Hits(run.hits)).fits {
                    counter.reject(tier, now);
                }
            });
        }
    }

    fn lease(&mut self, LeaseRequest { least, want, hold }: LeaseRequest) -> u64 {
        let (tiers, now) = (&self.target.tiers, self.now);
        let room =
            tiers.iter().zip(&self.counters).map(|(tier, state)| state.availability(tier, now).remaining);
        let leased = want.min(room.min().unwrap_or(0).into());
        if leased < least {
            return 0;
        }
        for i in 0..tiers.len() {
            self.edit(i, |tier, counter| counter.reserve(tier, now, now.after(hold), Hits(leased)));
        }
        leased
    }

    fn report(&mut self, report: &Report) {
        let now = self.now;
        let at = report.at.min(now);
        let rejected_at = report.rejected_at.map(|rejected| rejected.min(now));
        for (i, tier) in self.target.tiers.iter().enumerate() {
            if tier.has_windows() {
                if self.keys[i].window == tier.window(report.at).1 {
                    add_to_window(tier, &mut self.counters[i], report, now);
                }
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

fn add_to_window(tier: &Tier, window: &mut CounterState, report: &Report, now: Timestamp) {
    if let Some(unused) = report.unused {
        window.add(tier, report.at, CountChange::of(negative(unused.hits)), now);
    }
    window.add(tier, report.at, report.change, now);
}

fn unused_hits(report: &Report) -> i64 {
    report.unused.map_or(0, |unused| i64::try_from(unused.hits).unwrap_or(i64::MAX))
}

fn negative(hits: u64) -> i64 {
    i64::try_from(hits).map_or(i64::MIN, |hits| -hits)
}
