//! The coordination modes together: picks the mode of a check, and has it decide within its budget.

use std::{pin::pin, sync::Arc};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    budget::{Budget, deadline},
    client::StoreClient,
    counter::{Ask, Asks, Decided, LocalCounter},
    delivery::{Delivery, Undecided},
    fallback::Fallback,
    metrics::CoordinationMetrics,
    pools::SharedPools,
    split::Split,
    store_time::StoreTime,
    table::{CounterTable, Waiting},
};
use crate::{
    limit::{Coordination, CounterKey, Decision, Hits, LimitCheck, Period, Scope, Timestamp},
    observe::DecisionRecord,
    store::{Decisions, MemoryStore, remote::Remote},
};

/// The coordination modes, and what they share.
pub(super) struct CoordinationModes<R: Remote> {
    /// The counters of `local` rules.
    pub(super) memory: MemoryStore,
    pub(super) table: Arc<CounterTable<R>>,
    pub(super) client: Arc<StoreClient<R>>,
    pub(super) split: Split<R>,
    pub(super) fallback: Fallback<R>,
    pub(super) pools: Arc<SharedPools<R>>,
    pub(super) metrics: Arc<CoordinationMetrics>,
    /// The longest that a decision waits for the store.
    pub(super) budget: Period,
}

/// A decision that needed no wait, or what it waits for.
pub(super) enum Step {
    Done(Decision),
    /// Done without the store, which is unavailable.
    Fallback(Decision),
    /// The store decides.
    Wait(Waiting),
    /// The hits were given back here; the store counts that and says how it stands.
    Report(Waiting),
    /// Too many decisions wait for the store.
    Full,
}

/// A decision, and how its hits are given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) decision: Decision,
    pub(super) counted: Counted,
    /// When the hits were counted, on the store's clock.
    pub(super) at: Timestamp,
}

/// Where the hits of a decision were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Where the coordination mode counts.
    ByMode,
    /// In the fallback. The store may have applied the command as well, as the delivery says.
    ByFallback(Delivery),
}

// === impl Made ===

impl Made {
    /// A decision whose hits were counted at `at` where the coordination mode counts.
    const fn by_mode(decision: Decision, at: Timestamp) -> Self {
        Self { decision, counted: Counted::ByMode, at }
    }
}

// === impl Step ===

impl Step {
    /// Returns whether the decision waits for the store.
    pub(super) const fn waits(&self) -> bool {
        self.decision().is_none()
    }

    /// Returns the decision, if there is one.
    pub(super) const fn decision(&self) -> Option<Decision> {
        match self {
            Self::Done(decision) | Self::Fallback(decision) => Some(*decision),
            Self::Wait(_) | Self::Report(_) | Self::Full => None,
        }
    }
}

// === impl CoordinationModes ===

impl<R: Remote> CoordinationModes<R> {
    /// Decides `check`, if that needs no wait.
    pub(super) fn step(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Step {
        let requested = self.table.requested_mode(check);
        if requested.is_coordinated() {
            let time = self.client.time_at(now);
            let step = self.table.with_counter_of(check, time.now, |key, counter| {
                let mode = self.table.mode_of(counter, check);
                if !mode.is_coordinated() {
                    return None;
                }
                record_mode(record, mode);
                Some(self.decide_on((key, counter), mode, check, scope, time, record))
            });
            if let Some(step) = step {
                return step;
            }
        }
        if requested == Coordination::Split {
            record_mode(record, requested);
            return Step::Done(self.split.decide(&self.memory, check, scope, self.split.time_at(now)));
        }
        // it is requested, or the store supports no other mode
        record_mode(record, Coordination::Local);
        Step::Done(self.decide_locally(check, scope, now))
    }

    /// Decides `check` on its counter, by the policy of `mode`.
    #[inline]
    fn decide_on(
        &self,
        (key, counter): (CounterKey, &mut LocalCounter),
        mode: Coordination,
        check: &LimitCheck<'_>,
        scope: Scope,
        time: StoreTime,
        record: Option<&DecisionRecord>,
    ) -> Step {
        let ask = &Ask::of(check, scope);
        self.table.record_dropped(counter.expire_leases(time));
        let situation = self.table.situation(time);
        if self.client.is_unavailable() && self.client.is_unavailable_for(&counter.target, time.now) {
            // what is held is used first
            let held =
                (mode == Coordination::Lease).then(|| counter.decide_from_held(ask, &situation)).flatten();
            if let Some(decision) = held {
                self.metrics.decisions.leased.add(1);
                return Step::Done(decision);
            }
            record_fallback(record);
            let decision = self.fallback.decide_on(counter, check, Delivery::NotApplied, time.now);
            return Step::Fallback(decision);
        }
        match counter.decide(mode, ask, &situation) {
            Decided::Now(decision, how) => {
                self.metrics.of(how).add(1);
                Step::Done(decision)
            }
            Decided::Wait(asks) => {
                let hits = if asks == Asks::Look { Hits(0) } else { ask.hits };
                let waiting = Waiting::ask((key, counter), ask.is_own, hits, asks);
                waiting.map_or(Step::Full, Step::Wait)
            }
            Decided::Report => {
                let status = counter.look(Hits(0), time.now);
                let waiting = Waiting::ask((key, counter), ask.is_own, Hits(0), Asks::Look);
                waiting.map_or(Step::Done(status), Step::Report)
            }
        }
    }

    fn decide_locally(&self, check: &LimitCheck<'_>, scope: Scope, now: Timestamp) -> Decision {
        self.metrics.decisions.local.add(1);
        self.memory.decide(std::slice::from_ref(check), scope, now)[0]
    }

    /// Decides `checks`, and counts their hits only if all of them are admitted, if instances split the limits of all
    /// of them.
    pub(super) fn split_together(
        &self,
        checks: &[LimitCheck<'_>],
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Option<Decisions> {
        if checks.iter().any(|check| self.table.requested_mode(check) != Coordination::Split) {
            return None;
        }
        let decisions = self.split.decide_together(&self.memory, checks, self.split.time_at(now))?;
        record_mode(record, Coordination::Split);
        Some(decisions)
    }

    /// Returns the coordination mode of `check`: the requested one, or the nearest that the store supports.
    pub(super) fn mode(&self, check: &LimitCheck<'_>, now: Timestamp) -> Coordination {
        match self.table.requested_mode(check) {
            mode @ (Coordination::Local | Coordination::Split) => mode,
            _ => self.table.with_counter(check, now, |counter| self.table.mode_of(counter, check)),
        }
    }

    /// Completes `step`, which waits no longer than `budget`.
    pub(super) fn finish(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        step: Step,
        Budget { longest: budget, is_of_caller }: Budget,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> impl Future<Output = Made> {
        let at = self.client.time_at(now).now;
        // a block, which has `step` once: an `async fn` would have its argument too
        async move {
            let decided = match step {
                Step::Done(decision) => return Made::by_mode(decision, at),
                Step::Fallback(decision) => {
                    return Made { decision, counted: Counted::ByFallback(Delivery::NotApplied), at };
                }
                Step::Wait(waiting) => {
                    let commands = waiting.commands;
                    let waited = pin!(self.wait(check, scope, waiting, budget, now, record));
                    recorded(record, commands, waited).await
                }
                Step::Report(waiting) => {
                    let status = recorded(record, 1, pin!(self.status_of(waiting, budget))).await;
                    let Ok((decision, at)) = status else {
                        record_fallback(record);
                        self.metrics.decisions.fallback.add(1);
                        return Made::by_mode(self.look(check, Hits(0), now), at);
                    };
                    Ok(Made::by_mode(decision, at))
                }
                Step::Full => Err(Undecided { delivery: Delivery::NotApplied, late: false }),
            };
            match decided {
                Ok(made) => {
                    if made.counted == Counted::ByMode {
                        self.metrics.decisions.waited.add(1);
                    }
                    made
                }
                Err(undecided) => {
                    if !is_of_caller {
                        self.record_late(check, undecided);
                    }
                    record_fallback(record);
                    let (delivery, at) = (undecided.delivery, self.client.time_since(now).now);
                    let decision = self.fallback.decide(check, delivery, at);
                    Made { decision, counted: Counted::ByFallback(delivery), at }
                }
            }
        }
    }

    /// Decides `checks`, of which some are for one counter: those one after the other, in one `budget`.
    pub(super) async fn take_in_turn(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        budget: Budget,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Decisions {
        let begun = Instant::now();
        let is_first = |i: &usize| checks[..*i].iter().all(|other| other.key != checks[*i].key);
        let turns = (0..checks.len()).filter(is_first).map(async |first| {
            let (mut decided, mut now) = (SmallVec::<[(usize, Decision); 1]>::new(), now);
            for (i, check) in
                (first..).zip(&checks[first..]).filter(|(_, check)| check.key == checks[first].key)
            {
                let step = self.step(check, scope, now, record);
                let (waits, budget) = (step.waits(), budget.rest(begun));
                decided.push((i, self.finish(check, scope, step, budget, now, record).await.decision));
                if waits {
                    now = self.client.local_time_since(now);
                }
            }
            decided
        });
        let mut decided: Vec<(usize, Decision)> = join_all(turns).await.into_iter().flatten().collect();
        decided.sort_unstable_by_key(|(i, _)| *i);
        decided.into_iter().map(|(_, decision)| decision).collect()
    }

    /// Waits until the store has decided `check`, or until this instance can.
    async fn wait(
        &self,
        check: &LimitCheck<'_>,
        scope: Scope,
        mut waiting: Waiting,
        budget: Period,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Result<Made, Undecided> {
        let deadline = deadline(budget);
        loop {
            if let Some(outcome) = self.table.outcome(waiting, deadline).await {
                return outcome.map(|tried| Made::by_mode(tried.decision, tried.at));
            }
            // its counter was evicted: the one that takes its place is asked
            let now = self.client.local_time_since(now);
            let at = self.client.time_at(now).now;
            waiting = match self.step(check, scope, now, record) {
                Step::Wait(waiting) | Step::Report(waiting) => waiting,
                Step::Done(decision) => return Ok(Made::by_mode(decision, at)),
                Step::Fallback(decision) => {
                    return Ok(Made { decision, counted: Counted::ByFallback(Delivery::NotApplied), at });
                }
                Step::Full => return Err(Undecided { delivery: Delivery::NotApplied, late: false }),
            };
        }
    }

    /// Returns the status that `waiting` asks for, which counts nothing.
    pub(super) async fn status_of(
        &self,
        waiting: Waiting,
        budget: Period,
    ) -> Result<(Decision, Timestamp), Undecided> {
        let undecided = Undecided { delivery: Delivery::NotApplied, late: false };
        match self.table.outcome(waiting, deadline(budget)).await {
            Some(Ok(tried)) => Ok((tried.decision, tried.at)),
            Some(Err(failed)) => Err(Undecided { delivery: Delivery::NotApplied, ..failed }),
            None => Err(undecided),
        }
    }

    pub(super) fn record_late(&self, check: &LimitCheck<'_>, undecided: Undecided) {
        if undecided.late {
            let now = self.client.time().now;
            let (target, at) = self.table.with_counter(check, now, |counter| {
                // it may have waited for what another node counts
                (Arc::clone(&counter.target), counter.unanswered_since().unwrap_or(now))
            });
            self.client.record_late_decision(&target, at);
        }
    }
}

/// Waits for `call`, which sends `commands` and those that it records itself, and adds the wait to `record`.
pub(super) async fn recorded<T>(
    record: Option<&DecisionRecord>,
    commands: u32,
    call: impl Future<Output = Result<T, Undecided>> + Unpin,
) -> Result<T, Undecided> {
    let begun = record.map(|record| (record, std::time::Instant::now()));
    let outcome = call.await;
    if let Some((record, begun)) = begun {
        let error = outcome.as_ref().err().map(|undecided| undecided.reason());
        record.add_commands(commands);
        record.add_wait(begun, error);
    }
    outcome
}

#[inline]
pub(super) fn record_mode(record: Option<&DecisionRecord>, mode: Coordination) {
    if let Some(record) = record {
        record.add_mode(mode.name());
    }
}

pub(super) fn record_fallback(record: Option<&DecisionRecord>) {
    if let Some(record) = record {
        record.set_fallback();
    }
}
