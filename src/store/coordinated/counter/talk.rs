//! The tries of decisions that wait for the store, and the commands that carry them.
//!
//! Tries wait until a call to their node leaves. Those that wait then share a command, and equal ones in a row cost the store what one
//! costs: on a hot key under `strict`, all decisions of a round trip do.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{LocalCounter, order::CommandPlace, records::negative, tiers::flows};
use crate::{
    limit::{
        CounterKey, Decision, Hits, OverLimitPolicy, Tier, Timestamp,
        algorithm::{CountChange, CounterState},
        decision_from_store,
    },
    store::{
        coordinated::delivery::Undecided,
        remote::{Command, Exchange, Op, Reply, Run, Target},
    },
};

/// The most tries of one counter that wait.
const MAX_TRIES: usize = 4_096;

/// What becomes of a try: the decision of the store, and its instant.
pub(in super::super) type TryOutcome = Result<(Decision, Timestamp), Undecided>;

/// What one decision asks the store.
#[derive(Debug)]
pub(in super::super) struct Try {
    /// The limit that it is decided by.
    pub(in super::super) target: Arc<Target>,
    /// Whether the limit came with the request.
    pub(in super::super) is_own: bool,
    pub(in super::super) hits: Hits,
    pub(in super::super) asks: Asks,
    /// Receives the outcome, unless the caller does not wait any more.
    pub(in super::super) outcome: oneshot::Sender<TryOutcome>,
}

/// What a try does with its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Asks {
    /// Takes them. Rejected hits count under [`OverLimitPolicy::Count`].
    Take(OverLimitPolicy),
    /// Looks whether they fit, without counting them.
    Look,
}

/// The tries of a counter that wait for the next call to their node, and those that were sent.
#[derive(Debug)]
pub(in super::super) struct Talk {
    /// The number of the command that those that wait will share, among those of the counter.
    number: u32,
    /// Those that wait, in order of arrival. While there are some, the sender has the counter in its queue.
    tries: SmallVec<[Try; 1]>,
    /// The commands that were sent and have no reply yet.
    on_way: u32,
}

/// Equal tries in a row.
#[derive(Debug)]
struct SentRun {
    run: Run,
    tries: SmallVec<[Try; 1]>,
}

/// A command with tries that was sent.
#[derive(Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) key: CounterKey,
    pub(in super::super) place: CommandPlace,
    pub(in super::super) target: Arc<Target>,
    /// Whether the limit came with the requests.
    pub(in super::super) is_own: bool,
    runs: SmallVec<[SentRun; 1]>,
}

/// The commands of a counter, and what is remembered of each until its reply.
pub(in super::super) type Composed = SmallVec<[(Command, Sent); 1]>;

/// Decisions, and whom they are for.
pub(in super::super) type Decided = SmallVec<[(oneshot::Sender<TryOutcome>, TryOutcome); 1]>;

// === impl Try ===

impl Try {
    /// Returns the run that it is alone.
    const fn run(&self) -> Run {
        let (hits, counts_rejected) = match self.asks {
            Asks::Take(policy) => (self.hits.0, matches!(policy, OverLimitPolicy::Count)),
            Asks::Look => (0, false),
        };
        Run { hits, tries: 1, counts_rejected }
    }
}

// === impl Talk ===

impl Talk {
    /// Returns whether tries wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.tries.is_empty()
    }
}

// === impl Sent ===

impl Sent {
    /// Creates a command with one try of the counter of `key`.
    pub(in super::super) fn of(key: CounterKey, place: CommandPlace, first: Try) -> Self {
        let (target, is_own, run) = (Arc::clone(&first.target), first.is_own, first.run());
        let tries = SmallVec::from_buf([first]);
        Self { key, place, target, is_own, runs: SmallVec::from_buf([SentRun { run, tries }]) }
    }

    /// Adds `next`, if the store can decide it in the same command. Returns it otherwise.
    fn add(&mut self, next: Try) -> Result<(), Try> {
        if *self.target != *next.target || self.is_own != next.is_own {
            return Err(next);
        }
        let (run, is_full) = (next.run(), self.runs.len() == Exchange::MAX_RUNS);
        match self.runs.last_mut() {
            Some(last) if last.run.hits == run.hits && last.run.counts_rejected == run.counts_rejected => {
                last.run.tries = last.run.tries.saturating_add(1);
                last.tries.push(next);
            }
            // the states after other hits would not say when the status before them ends
            _ if is_full || flows(&self.target.tiers) => return Err(next),
            _ => self.runs.push(SentRun { run, tries: SmallVec::from_buf([next]) }),
        }
        Ok(())
    }

    /// Returns the operation that decides its tries.
    pub(in super::super) fn op(&self) -> Op {
        let runs = self.runs.iter().map(|sent| sent.run).collect();
        Op::Exchange(Exchange { runs, ..Exchange::default() })
    }

    /// Returns whether `reply` rejects some tries, and whether it admits some.
    pub(in super::super) fn outcomes(&self, reply: &Reply, now: Timestamp) -> (bool, bool) {
        let (mut rejects, mut admits) = (false, false);
        for (i, SentRun { run, tries }) in self.runs.iter().enumerate() {
            if run.hits > 0 {
                let taken = taken(reply, i, run);
                rejects |= taken < run.tries;
                admits |= taken > 0;
            } else {
                let is_over = |asked: &Try| {
                    asked.hits > Hits(0) && !fits(&self.target.tiers, &reply.counters, asked.hits, now)
                };
                rejects |= tries.iter().any(is_over);
            }
        }
        (rejects, admits)
    }

    /// Decides its tries by `reply`, of the instant `now`: those whose callers still wait take their hits first. `counter` is the local one
    /// if the reply was applied to it.
    pub(in super::super) fn decide(
        self,
        reply: &Reply,
        counter: Option<&LocalCounter>,
        now: Timestamp,
    ) -> Decided {
        let Self { target, runs, .. } = self;
        let tiers = &target.tiers;
        let mut states = reply.counters.clone();
        let mut decided = Decided::new();
        let mut is_last = true;
        // from the last one on, whose hits the states include too
        for (i, SentRun { run, mut tries }) in runs.into_iter().enumerate().rev() {
            let taken = taken(reply, i, &run) as usize;
            if tries.len() > 1 {
                tries.sort_by_key(|asked| asked.outcome.is_closed());
            }
            for (j, asked) in tries.into_iter().enumerate().rev() {
                let hits = asked.hits;
                let (decision, is_counted) = match asked.asks {
                    Asks::Take(policy) => {
                        let over = j >= taken;
                        // the reply counts the leases of the rule, which are left for this limit too
                        let known = counter.filter(|counter| counter.leased_hits() > 0);
                        let by_reply = || decision_from_store(tiers, &states, policy, over, hits, now);
                        let decision =
                            known.map_or_else(by_reply, |known| known.decided(policy, over, hits, now));
                        (decision, !over || run.counts_rejected)
                    }
                    Asks::Look => {
                        // the estimate leaves out leased hits that are not used, and has those that are not reported yet
                        let known = counter.filter(|_| is_last);
                        (
                            known.map_or_else(
                                || look(tiers, &states, hits, now),
                                |known| known.look(hits, now),
                            ),
                            false,
                        )
                    }
                };
                decided.push((asked.outcome, Ok((decision, now))));
                if is_counted && hits > Hits(0) {
                    is_last = false;
                    take_off(tiers, &mut states, hits, now);
                }
            }
        }
        decided.reverse();
        decided
    }

    /// Leaves its tries undecided.
    pub(in super::super) fn fail(self, undecided: Undecided) -> Decided {
        let tries = self.runs.into_iter().flat_map(|sent| sent.tries);
        tries.map(|asked| (asked.outcome, Err(undecided))).collect()
    }
}

/// Returns how many tries of run `i` have taken their hits.
fn taken(reply: &Reply, i: usize, run: &Run) -> u32 {
    let all = if run.hits == 0 { run.tries } else { 0 };
    reply.taken.get(i).copied().unwrap_or(all).min(run.tries)
}

/// Takes `hits` that were counted last from `states`.
fn take_off(tiers: &[Tier], states: &mut [CounterState], hits: Hits, now: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        match state {
            CounterState::FixedWindow(_) => state.add(tier, now, CountChange::of(negative(hits.0)), now),
            _ => state.release(tier, now, now, hits),
        }
    }
}

/// Returns whether `hits` fit.
fn fits(tiers: &[Tier], states: &[CounterState], hits: Hits, now: Timestamp) -> bool {
    tiers.iter().zip(states).all(|(tier, state)| state.probe(tier, now, hits).fits)
}

/// Returns how `states` stand; over, if `hits` do not fit.
fn look(tiers: &[Tier], states: &[CounterState], hits: Hits, now: Timestamp) -> Decision {
    let over = !fits(tiers, states, hits, now);
    let hits = if over { hits } else { Hits(0) };
    decision_from_store(tiers, states, OverLimitPolicy::Ignore, over, hits, now)
}

impl LocalCounter {
    /// Adds `next` to the tries that wait. Returns the number of the command that it will be part of, and whether the counter has to be
    /// queued for that; or the try, if too many wait.
    pub(in super::super) fn add_try(&mut self, next: Try) -> Result<(u32, bool), Try> {
        if let Some(talk) = self.rare.talk_mut().filter(|talk| talk.is_waiting()) {
            if talk.tries.len() >= MAX_TRIES {
                talk.tries.retain(|asked| !asked.outcome.is_closed());
            }
            if talk.tries.len() >= MAX_TRIES {
                return Err(next);
            }
            talk.tries.push(next);
            return Ok((talk.number, false));
        }
        let number = self.next_number();
        match self.rare.talk_mut() {
            Some(talk) => {
                talk.number = number;
                talk.tries.push(next);
            }
            None => self.rare.set_talk(Talk { number, tries: SmallVec::from_buf([next]), on_way: 0 }),
        }
        Ok((number, true))
    }

    /// Returns whether the tries of command `number` still wait for it to be composed.
    pub(in super::super) fn is_waiting(&self, number: u32) -> bool {
        self.rare.talk().is_some_and(|talk| talk.number == number && talk.is_waiting())
    }

    /// Notes that there will be no other reply to a command that was composed.
    pub(in super::super) fn end_command(&mut self) {
        if let Some(talk) = self.rare.talk_mut() {
            talk.on_way = talk.on_way.saturating_sub(1);
            if talk.on_way == 0 && !talk.is_waiting() {
                self.rare.take_talk();
            }
        }
    }

    /// Removes the tries that wait.
    pub(in super::super) fn take_tries(&mut self) -> SmallVec<[Try; 1]> {
        let Some(talk) = self.rare.talk_mut() else { return SmallVec::new() };
        let tries = std::mem::take(&mut talk.tries);
        if talk.on_way == 0 {
            self.rare.take_talk();
        }
        tries
    }

    /// Returns the commands that decide the tries that wait, as of `at`. `key` is that of the counter.
    pub(in super::super) fn compose(&mut self, key: CounterKey, at: Timestamp) -> Composed {
        let Some(talk) = self.rare.talk_mut() else { return Composed::new() };
        let (number, tries) = (talk.number, std::mem::take(&mut talk.tries));
        let place = self.place_of(number);
        let mut sent: SmallVec<[Sent; 1]> = SmallVec::new();
        // the hits of a decision that waits no longer must not count twice
        for asked in tries.into_iter().filter(|asked| !asked.outcome.is_closed()) {
            let first = match sent.last_mut() {
                Some(last) => last.add(asked),
                None => Err(asked),
            };
            if let Err(first) = first {
                sent.push(Sent::of(key, place, first));
            }
        }
        if let Some(talk) = self.rare.talk_mut() {
            talk.on_way += u32::try_from(sent.len()).unwrap_or_default();
            if talk.on_way == 0 {
                self.rare.take_talk();
            }
        }
        let command = |sent: &Sent| Command { target: Arc::clone(&sent.target), at, op: sent.op() };
        sent.into_iter().map(|sent| (command(&sent), sent)).collect()
    }
}
