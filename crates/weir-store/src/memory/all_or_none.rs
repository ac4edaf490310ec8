//! Checks of one request that count together: all or none of them, or several on one counter.

use std::task::Waker;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::{
    MemoryStore, Notes,
    pooled_checks::BesidePool,
    shard::{CheckStates, Shard, TakeRequest},
};
use crate::{Decisions, places_by_counter};
use weir_limit::{Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Scope, Timestamp};

/// Up to so many checks are decided exactly, under locks taken together. A larger request takes hits group by group:
/// until it gives them back after a rejection, they may reject others. So may hits of a pool, locked for each check.
const GROUP: usize = 16;

enum Undo {
    /// The states before and, if other requests may count meanwhile, after it.
    Restore(CheckStates, Option<CheckStates>),
    /// Callers wait for the counters, and the check may have let some in: the earlier states must not be restored.
    GiveBack,
    Nothing,
}

pub(super) struct LockedShards<'a, N: Notes> {
    indexes: SmallVec<[usize; 4]>,
    shards: SmallVec<[MutexGuard<'a, Shard<N>>; 4]>,
}

impl<N: Notes> MemoryStore<N> {
    /// Decides checks of which some [stand](LimitCheck::stands): these first, and the others beside them.
    #[cold]
    pub(super) fn decide_beside_standing(&self, checks: &[LimitCheck<'_>], now: Timestamp) -> Decisions {
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for check in checks {
            if check.stands() { &mut first } else { &mut others }.push(check.copied());
        }
        let stood = self.decide_by_counter(&first, now);
        let over = first.iter().zip(&stood).any(|(check, decision)| check.is_cost() && decision.over);
        let decided = self.decide_together(&others, over, now);
        let (mut stood, mut decided) = (stood.into_iter(), decided.into_iter());
        let next = |check: &LimitCheck<'_>| if check.stands() { stood.next() } else { decided.next() };
        checks.iter().filter_map(next).collect()
    }

    /// Decides one check after the other, and undoes all if one is over its limit, or the request is `over` already.
    pub(super) fn decide_together(&self, checks: &[LimitCheck<'_>], over: bool, now: Timestamp) -> Decisions {
        let groups: SmallVec<[&[LimitCheck<'_>]; 1]> = checks.chunks(GROUP).collect();
        // a single group keeps its locks
        let mut only = None;
        // with what each check took of its pool
        let mut undos: SmallVec<[(Undo, i64); 4]> = SmallVec::new();
        let (mut decisions, mut over) = (Decisions::new(), over);
        for group in &groups {
            let mut locked = self.lock_all(group);
            for check in *group {
                let shard = locked.of(self.index(check.key));
                let before = (!shard.has_line(check.key, check.tiers())).then(|| shard.states(check));
                let (decision, granted) =
                    self.decide_locked(shard, check, OverLimitPolicy::Ignore, !over, now);
                over |= decision.over;
                let undo = match before {
                    Some(before) => Undo::Restore(before, (groups.len() > 1).then(|| shard.states(check))),
                    None if decision.over => Undo::Nothing,
                    None => Undo::GiveBack,
                };
                undos.push((undo, granted));
                decisions.push(decision);
            }
            if groups.len() == 1 {
                only = Some(locked);
            }
        }
        if !over {
            return decisions;
        }
        for group in groups.iter().rev() {
            let mut locked = only.take().unwrap_or_else(|| self.lock_all(group));
            for check in group.iter().rev() {
                let Some((undo, granted)) = undos.pop() else { continue };
                let shard = locked.of(self.index(check.key));
                self.counting(shard, |shard| match undo {
                    Undo::Restore(before, after) => shard.restore(check, before, after, now),
                    Undo::GiveBack => {
                        let request = TakeRequest::of(check, OverLimitPolicy::Ignore);
                        let request = TakeRequest { direction: Direction::GiveBack, ..request };
                        shard.take(&request, Some(check), now);
                    }
                    Undo::Nothing => {}
                });
                if granted != 0 {
                    self.pools.with(check, now, |pool| pool.undo(granted));
                }
            }
            if groups.len() == 1 {
                only = Some(locked);
            }
        }
        for (group, decisions) in groups.iter().zip(decisions.chunks_mut(GROUP)) {
            let mut locked = only.take().unwrap_or_else(|| self.lock_all(group));
            for (check, decision) in group.iter().zip(decisions) {
                let shard = locked.of(self.index(check.key));
                if decision.over {
                    shard.reject(check, now);
                } else {
                    let in_pool = self.pools.with(check, now, |pool| {
                        pool.look_at(Hits(0), &BesidePool::new(check, Some(&mut *shard), now))
                    });
                    *decision = in_pool.unwrap_or_else(|| shard.look(check, Hits(0), now));
                }
            }
        }
        decisions
    }

    /// Decides each check by itself. Those on one counter are one change, in their order: nobody takes between them what
    /// one of them gives back.
    pub(super) fn decide_by_counter(&self, checks: &[LimitCheck<'_>], now: Timestamp) -> Decisions {
        let mut decided: SmallVec<[(usize, Decision); 4]> = SmallVec::new();
        for places in places_by_counter(checks) {
            let mut locked = self.lock_all(&checks[places[0]..=places[0]]);
            for i in places {
                let check = &checks[i];
                let shard = locked.of(self.index(check.key));
                let policy = check.over_limit_policy_in(Scope::Descriptor);
                decided.push((i, self.decide_locked(shard, check, policy, true, now).0));
            }
        }
        decided.sort_unstable_by_key(|(i, _)| *i);
        decided.into_iter().map(|(_, decision)| decision).collect()
    }

    /// Returns the decision, and what it took of its pool, of which it takes only if it `may_take`.
    pub(super) fn decide_locked(
        &self,
        shard: &mut Shard<N>,
        check: &LimitCheck<'_>,
        policy: OverLimitPolicy,
        may_take: bool,
        now: Timestamp,
    ) -> (Decision, i64) {
        self.counting(shard, |shard| {
            let in_pool = self.pools.with(check, now, |pool| {
                pool.decide(check, &mut BesidePool::new(check, Some(&mut *shard), now), may_take)
            });
            in_pool.unwrap_or_else(|| (shard.take(&TakeRequest::of(check, policy), Some(check), now), 0))
        })
    }

    /// In ascending order, so that requests cannot deadlock.
    pub(super) fn lock_all(&self, checks: &[LimitCheck<'_>]) -> LockedShards<'_, N> {
        let mut indexes: SmallVec<[usize; 4]> = checks.iter().map(|check| self.index(check.key)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let shards = indexes.iter().map(|index| self.shards[*index].lock()).collect();
        LockedShards { indexes, shards }
    }
}

impl<N: Notes> Drop for LockedShards<'_, N> {
    /// Unlocks the shards, then wakes the callers that were let in meanwhile.
    fn drop(&mut self) {
        let woken: SmallVec<[Waker; 4]> =
            self.shards.iter_mut().flat_map(|shard| shard.take_woken()).collect();
        self.shards.clear();
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<N: Notes> LockedShards<'_, N> {
    /// `index` must be one of the locked ones.
    pub(super) fn of(&mut self, index: usize) -> &mut Shard<N> {
        &mut self.shards[self.indexes.partition_point(|other| *other < index)]
    }
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use weir_limit::{
        Algorithm, AlgorithmKind, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request,
        Rule, RuleNode, RuleSet, Tier, Values,
    };

    const CHECKS: usize = 100;

    fn rules(algorithm: Algorithm, requests: u32) -> RuleSet {
        let tier = Tier::new(requests, Period::from_secs(60), algorithm);
        let limit =
            Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
        let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
        RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random())
    }

    fn with_checks<T>(
        rules: &RuleSet,
        values: impl Iterator<Item = usize>,
        act: impl FnOnce(&[LimitCheck<'_>]) -> T,
    ) -> T {
        let values: Vec<String> = values.map(|value| value.to_string()).collect();
        let descriptors = values.iter().map(|value| Descriptor {
            entries: [Entry { key: "k", value }].into_iter().collect(),
            ..Descriptor::default()
        });
        let descriptors = descriptors.collect();
        let request = Request { domain: "d", descriptors, hits: 1 };
        act(&Matched::new(rules, &request).checks)
    }

    fn now() -> Timestamp {
        Timestamp::from_secs(1_000_020)
    }

    fn take(shard: &mut Shard<()>, check: &LimitCheck<'_>, at: Timestamp) {
        shard.take(&TakeRequest::of(check, OverLimitPolicy::Ignore), Some(check), at);
    }

    #[test]
    fn nobody_takes_between_the_checks_on_one_counter() {
        let (store, rules) = (MemoryStore::new(1_000), rules(Algorithm::default(), 100));
        with_checks(&rules, [7, 7].into_iter(), |checks| {
            let check = |direction, hits| LimitCheck { direction, hits: Hits(hits), ..checks[0].copied() };
            let both = [check(Direction::GiveBack, 96), check(Direction::Take, 96)];
            let other = [check(Direction::Take, 10)];
            assert!(!store.decide(&both[1..], Scope::Descriptor, now())[0].over);
            thread::scope(|scope| {
                let thief = scope.spawn(|| {
                    let tries = (0..50_000).map(|_| store.decide(&other, Scope::Descriptor, now()));
                    tries.filter(|decisions| !decisions[0].over).count()
                });
                while !thief.is_finished() {
                    let decisions = store.decide(&both, Scope::Descriptor, now());
                    assert!(!decisions[1].over, "somebody took what was given back");
                }
                assert_eq!(thief.join().expect("no panic"), 0);
            });
        });
    }

    #[test]
    fn a_request_holds_a_bounded_number_of_locks() {
        let (store, rules) = (MemoryStore::new(1_000_000), rules(Algorithm::default(), 10));
        let index = |check: &LimitCheck<'_>| store.index(check.key);
        let tried = (0..).step_by(CHECKS).any(|from| {
            with_checks(&rules, from..from + CHECKS, |checks| {
                let (others, group) = checks.split_at(CHECKS - CHECKS % GROUP);
                let last = index(&checks[CHECKS - 1]);
                // while the last group waits, its other shards may stay locked too
                if others.iter().any(|other| group.iter().any(|check| index(check) == index(other))) {
                    return false;
                }
                thread::scope(|scope| {
                    let held = store.shards[last].lock();
                    let request = scope.spawn(|| store.decide(checks, Scope::Request, now()));
                    // all but the last group are counted, and unlocked
                    let deadline = Instant::now() + Duration::from_mins(1);
                    let is_counted = |check: &LimitCheck<'_>| {
                        let shard = store.shards[index(check)].try_lock();
                        shard.is_some_and(|shard| shard.states(check)[0].is_some())
                    };
                    while !others.iter().all(is_counted) {
                        assert!(Instant::now() < deadline, "shards stay locked");
                        thread::yield_now();
                    }
                    drop(held);
                    let decisions = request.join().expect("no panic");
                    assert!(decisions.iter().all(|decision| !decision.over && decision.remaining == 9));
                });
                true
            })
        });
        assert!(tried);
    }

    #[test]
    fn a_rejected_request_of_several_groups_counts_nothing() {
        for algorithm in AlgorithmKind::ALL.map(|kind| kind.for_limit(3)) {
            let (store, rules) = (MemoryStore::new(1_000_000), rules(algorithm, 3));
            let late = now().after(Period::from_millis(1));
            with_checks(&rules, (0..CHECKS).step_by(2), |checks| {
                assert!(store.decide(checks, Scope::Request, now()).iter().all(|decision| !decision.over));
            });
            with_checks(&rules, [70, 70].into_iter(), |checks| {
                assert!(store.decide(checks, Scope::Request, now()).iter().all(|decision| !decision.over));
            });
            let states = |checks: &[LimitCheck<'_>]| -> Vec<CheckStates> {
                checks.iter().map(|check| store.shards[store.index(check.key)].lock().states(check)).collect()
            };
            with_checks(&rules, 0..CHECKS, |checks| {
                let before = (states(checks), store.usage());
                let decisions = store.decide(checks, Scope::Request, late);
                for (i, decision) in decisions.iter().enumerate() {
                    assert_eq!(decision.over, i == 70, "{algorithm:?}, {i}");
                    let left = if i == 70 {
                        0
                    } else if i % 2 == 0 {
                        2
                    } else {
                        3
                    };
                    assert_eq!(decision.remaining, left, "{algorithm:?}, {i}");
                }
                assert_eq!((states(checks), store.usage()), before, "{algorithm:?}");
            });
        }
    }

    /// What has ended or flowed back since is no hit of the request.
    #[test]
    fn hits_are_taken_back_from_a_state_with_older_hits() {
        for algorithm in AlgorithmKind::ALL.map(|kind| kind.for_limit(5)) {
            let (store, rules) = (MemoryStore::new(1_000), rules(algorithm, 5));
            with_checks(&rules, [1].into_iter(), |checks| {
                let check = &checks[0];
                let mut shard = store.shards[store.index(check.key)].lock();
                for _ in 0..4 {
                    take(&mut shard, check, now());
                }
                let later = now().after(Period::from_secs(120));
                let before = shard.states(check);
                take(&mut shard, check, later);
                let after = shard.states(check);
                take(&mut shard, check, later);
                shard.restore(check, before, Some(after), later);
                assert_eq!(shard.look(check, Hits(0), later).remaining, 4, "{algorithm:?}");
            });
        }
    }

    /// Hits that other requests count meanwhile stay.
    #[test]
    fn hits_are_taken_back_from_a_state_that_has_changed() {
        for kind in AlgorithmKind::ALL.into_iter().filter(|kind| !kind.refills()) {
            let (store, rules) = (MemoryStore::new(1_000), rules(kind.for_limit(5), 5));
            with_checks(&rules, [1].into_iter(), |checks| {
                let check = &checks[0];
                let mut shard = store.shards[store.index(check.key)].lock();
                let before = shard.states(check);
                take(&mut shard, check, now());
                let after = shard.states(check);
                take(&mut shard, check, now());
                take(&mut shard, check, now());
                shard.restore(check, before, Some(after), now());
                assert_eq!(shard.look(check, Hits(0), now()).remaining, 3, "{kind:?}");
            });
        }
    }
}
