//! The one place where replies are applied to a counter: they acknowledge what was reported, bring states to adopt and
//! leases, and decide the tries that they carried.
//!
//! A reply says how the store's counters stood before the tries. These are repeated in the estimate, which so has exactly
//! what the store has done, and each is answered by what the estimate is then.

use smallvec::SmallVec;

use super::{
    CounterStates, LocalCounter,
    exchange::Sent,
    fits, flows,
    ledger::{Lease, PendingDelta},
    negative, take_off,
    traffic::{Try, TryKind, TryVerdict},
};
use crate::{
    client::{Delivery, ExchangeOutcome, Link},
    metrics::HitCounts,
};
use weir_limit::{
    Decision, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
    decide, decision_from_store, look,
};
use weir_store::{
    remote::{Reply, Run, TierSet},
    wakeup::Wakeups,
};

/// The inaccuracy of the time of a reply that does not carry it.
const INACCURACY: Period = Period::from_millis(20);

/// A reply is at most this much earlier than that to an earlier command, unless the store's clock has stepped back.
const CLOCK_STEP: Period = Period::from_secs(1);

/// What has arrived for a counter.
struct ReplyArrival<'a> {
    counter: &'a mut LocalCounter,
    sent: &'a mut Sent,
    link: &'a Link,
    hits: &'a HitCounts,
    /// To be woken when the counter is not locked.
    woken: &'a mut Wakeups,
}

/// Returns how many tries of run `i` have taken their hits.
fn taken(reply: &Reply, i: usize, run: &Run) -> u32 {
    let all = if run.hits == 0 { run.tries } else { 0 };
    reply.taken.get(i).copied().unwrap_or(all).min(run.tries)
}

/// Has strict buckets notice a try that they reject.
fn reject(tiers: &[Tier], states: &mut [CounterState], hits: Hits, now: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        if !state.probe(tier, now, hits).fits {
            state.reject(tier, now);
        }
    }
}

/// Returns how many of the `admitted` hits, which the store has just counted according to `reply`, are above a limit of
/// `tiers`. The hits counted last are the excess, so the instance that admitted an excess hit reports it, once.
pub(super) fn overshoot(reply: &Reply, tiers: &[Tier], admitted: u64, now: Timestamp) -> u64 {
    let over =
        reply.counters.iter().zip(tiers).map(|(state, tier)| {
            state.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
    over.max().unwrap_or_default().min(admitted)
}

/// A state of an earlier window is not adopted, and the other one not changed by what is decided in it.
fn is_of_window(state: &CounterState, of: &CounterState) -> bool {
    match (state, of) {
        (CounterState::FixedWindow(state), CounterState::FixedWindow(of)) => state.end() == of.end(),
        _ => true,
    }
}

type Verdicts = SmallVec<[TryVerdict; 1]>;

// === impl Sent ===

impl Sent {
    /// Applies `outcome` to `counter`.
    pub(crate) fn apply(
        &mut self,
        counter: &mut LocalCounter,
        outcome: ExchangeOutcome<'_>,
        link: &Link,
        hits: &HitCounts,
        woken: &mut Wakeups,
    ) {
        counter.traffic.end_command(self.number);
        let carried = self.carried.is_some();
        let mut arrival = ReplyArrival { counter, sent: self, link, hits, woken };
        let admitted = if carried { arrival.acknowledge(Delivery::of(&outcome)) } else { 0 };
        match outcome {
            Ok((reply, now)) if reply.counters.len() == arrival.sent.target.tiers.len() => {
                let now = arrival.sent.dated(reply, now);
                if carried {
                    hits.overshoot.add(overshoot(reply, &arrival.sent.target.tiers, admitted, now));
                }
                arrival.reply(reply, now);
            }
            // the reply may not be about what was asked
            Ok(_) => arrival.fail(Delivery::Unknown),
            Err(error) => arrival.fail(Delivery::of_error(error)),
        }
        arrival.counter.traffic.end();
    }

    /// Decides its tries without the counter, which was evicted.
    pub(crate) fn decide_alone(
        &mut self,
        outcome: ExchangeOutcome<'_>,
        hits: &HitCounts,
        woken: &mut Wakeups,
    ) {
        let want = self.own_lease().map_or(0, |lease| lease.want);
        let delivery = match outcome {
            Ok((reply, now)) if reply.counters.len() == self.target.tiers.len() => {
                hits.stranded.add(if want > 0 { reply.granted } else { 0 });
                let decided = self.decide(reply, &mut reply.counters.clone(), false, self.dated(reply, now));
                let tries = self.tries.drain(..).zip(decided);
                return tries.for_each(|(asked, verdict)| asked.succeed(verdict, woken));
            }
            outcome => outcome.err().map_or(Delivery::Unknown, Delivery::of_error),
        };
        let is_unknown = delivery == Delivery::Unknown;
        hits.delivery_unknown.add(if is_unknown { want } else { 0 });
        for asked in self.tries.drain(..) {
            match asked.gives_back() {
                true if is_unknown => hits.delivery_unknown.add(asked.hits.0),
                // who waits counts them in the counter that takes its place
                true if !asked.is_awaited() => hits.stranded.add(asked.hits.0),
                _ => {}
            }
            asked.fail(delivery, woken);
        }
    }

    /// Decides the tries in their order. `states` are those before them, and then those after them. If they `know_better`
    /// than the store, what it has counted above a limit may be within that.
    fn decide(
        &self,
        reply: &Reply,
        states: &mut [CounterState],
        know_better: bool,
        now: Timestamp,
    ) -> Verdicts {
        let tiers = &self.target.tiers;
        let mut decided = Verdicts::with_capacity(self.tries.len());
        if let [Try { kind: TryKind::Reserve(request), .. }] = &self.tries[..] {
            let (reserved, until) = (Hits(reply.granted), now.after(request.hold));
            for (tier, state) in tiers.iter().zip(&mut *states) {
                state.reserve(tier, now, until, reserved);
            }
            let over = reserved == Hits(0);
            let of = if over { request.fit(request.least.max(Hits(1))) } else { reserved };
            let decision = decision_from_store(tiers, states, OverLimitPolicy::Ignore, over, of, now);
            decided.push(TryVerdict { reserved, ..TryVerdict::new(decision, now) });
            return decided;
        }
        let before = (!self.is_counted(reply)).then(|| CounterStates::from(&*states));
        let mut tries = self.tries.iter();
        for (i, run) in self.runs.iter().enumerate() {
            let taken = taken(reply, i, run) as usize;
            for (j, asked) in tries.by_ref().take(run.tries as usize).enumerate() {
                let (hits, over) = (asked.hits, j >= taken);
                let mut rejected = None;
                match run.direction {
                    Direction::GiveBack => {
                        let change = CountChange::of(negative(hits.0));
                        let states = tiers.iter().zip(&mut *states);
                        states.for_each(|(tier, state)| state.add(tier, now, change, now));
                    }
                    Direction::Look => {}
                    Direction::Take if run.hits == 0 => {}
                    Direction::Take if over && !run.counts_rejected => reject(tiers, states, hits, now),
                    Direction::Take if over => {
                        // of several tiers, those that admit it do not once it is counted
                        let counts = OverLimitPolicy::Count;
                        rejected = Some(decide(tiers, states, counts, Direction::Take, hits, now));
                    }
                    Direction::Take => {
                        let states = tiers.iter().zip(&mut *states);
                        states.for_each(|(tier, state)| state.take(tier, now, hits));
                    }
                }
                let decision = match (asked.kind, &before) {
                    (_, None)
                        if let Some(rejected) = rejected.filter(|decision| know_better || decision.over) =>
                    {
                        rejected
                    }
                    (TryKind::Take(policy) | TryKind::Lease(policy), before) if over || before.is_none() => {
                        decision_from_store(tiers, states, policy, over, hits, now)
                    }
                    (TryKind::GiveBack(_), None) => {
                        let decision = look(tiers, states, Hits(0), now);
                        // hits that were given back reject no others
                        Decision { over: decision.over && !self.all_or_none, ..decision }
                    }
                    (TryKind::Look, _) | (_, None) => look(tiers, states, hits, now),
                    (_, Some(before)) => look(tiers, before, Hits(0), now),
                };
                decided.push(TryVerdict { is_counted: before.is_none(), ..TryVerdict::new(decision, now) });
            }
        }
        if let Some(before) = before {
            states.clone_from_slice(&before);
            let rejected = self.runs.iter().enumerate().filter(|(i, run)| taken(reply, *i, run) < run.tries);
            rejected.for_each(|(_, run)| reject(tiers, states, Hits(run.hits), now));
        }
        decided
    }

    /// Returns whether the runs were carried out.
    fn is_counted(&self, reply: &Reply) -> bool {
        !self.all_or_none || self.runs.iter().enumerate().all(|(i, run)| taken(reply, i, run) == run.tries)
    }

    /// Returns the hits that `reply` takes for tries.
    fn taken_hits(&self, reply: &Reply) -> u64 {
        let (is_counted, all) = (self.is_counted(reply), self.runs.iter().enumerate());
        let runs = all.filter(|(_, run)| is_counted && run.direction == Direction::Take);
        runs.fold(0, |hits, (i, run)| {
            hits.saturating_add(run.hits.saturating_mul(taken(reply, i, run).into()))
        })
    }

    /// `now` is when the store carried out the call. The result is in the windows that `reply` is about.
    fn dated(&self, reply: &Reply, now: Timestamp) -> Timestamp {
        // a report may be of a window that has ended
        if self.decides() { reply.instant(&self.target.tiers, now) } else { now }
    }
}

// === impl ReplyArrival ===

impl ReplyArrival<'_> {
    /// Reports that were not applied are pending again. Returns the admitted hits of the last one, if it was applied.
    fn acknowledge(&mut self, delivery: Delivery) -> u64 {
        let Self { counter: LocalCounter { ledger, target, .. }, sent, hits, .. } = self;
        let carried = ledger.carried();
        debug_assert_eq!(sent.carried, Some(carried), "they stay what was sent");
        if delivery == Delivery::NotApplied {
            ledger.return_flight(&target.tiers);
            return 0;
        }
        hits.delivery_unknown.add(if delivery == Delivery::Unknown { carried.all() } else { 0 });
        let last = ledger.in_flight().last().filter(|_| delivery == Delivery::Applied);
        let admitted = last.map_or(0, PendingDelta::admitted);
        ledger.end_flight();
        admitted
    }

    /// Hits that were admitted meanwhile become pending, unless the store may have counted them.
    fn fail(&mut self, delivery: Delivery) {
        let Self { counter, sent, hits, woken, .. } = self;
        let is_unknown = delivery == Delivery::Unknown;
        if is_unknown {
            // the estimate lacks what the command may have changed, or changes later
            counter.lose_exactness();
            counter.last_reply.lost = counter.last_reply.lost.wrapping_add(1);
            let want = sent.own_lease().map_or(0, |lease| lease.want);
            hits.delivery_unknown.add(want);
        }
        for asked in sent.tries.drain(..) {
            if asked.is_awaited() {
                if asked.gives_back() && is_unknown {
                    // nobody else says so
                    hits.delivery_unknown.add(asked.hits.0);
                }
                asked.fail(delivery, woken);
                continue;
            }
            let given_up = counter.traffic.take_given_up(asked.id);
            if is_unknown {
                hits.delivery_unknown.add(if asked.looks() { 0 } else { asked.hits.0 });
            } else if let Some(delta) = given_up {
                counter.pend(delta);
            } else {
                counter.count_return(asked.hits, asked.kind);
            }
        }
    }

    fn reply(&mut self, reply: &Reply, now: Timestamp) {
        let unclaimed = self.share_taken(reply);
        let adopted = self.adopt(reply, now);
        let is_adopted = adopted.is_ok();
        // alone: others are decided about before what this instance admits is reported
        let knows_better = self.counter.plan.instances <= 1
            && self.counter.is_silent()
            && flows(&self.counter.target.tiers)
            && adopted.is_ok_and(|stays| self.counter.has_all_flowing(stays));
        let decided = self.decide(reply, is_adopted, knows_better, now);
        let Self { counter, sent, link, hits, .. } = self;
        if is_adopted {
            counter.plan.is_reply_dated = reply.at.is_some();
            counter.measure_usage(now);
        }
        let (is_leasing, lease) = (counter.choice.mode.leases(), sent.own_lease());
        let granted = lease.map_or(0, |_| reply.granted);
        let kept = sent.taken_hits(reply).saturating_add(granted);
        if kept > 0 || sent.carried.is_some() {
            counter.plan.looks = 0;
        }
        if kept > 0 {
            counter.ledger.keep_granted(kept, &counter.target.tiers, now);
        }
        if granted > 0 || counter.has_granted_hits(now) {
            counter.note_granted(&sent.target.tiers, reply, kept, now);
        }
        if let Some(lease) = lease {
            // where the estimate has what is granted now, since a later reply had it
            let counted = adopted.err().unwrap_or_default();
            counter.add_granted(&sent.target, reply, lease.hold, counted, now);
        }
        if unclaimed > 0 {
            counter.uncount(Hits(unclaimed), now);
        }
        counter.return_useless(now);
        let is_rejected = |(asked, verdict): (&Try, &TryVerdict)| {
            verdict.decision.over && !matches!(asked.kind, TryKind::GiveBack(_) | TryKind::Reserve(_))
        };
        let rejects = sent.tries.iter().zip(&decided).any(is_rejected);
        // the cache is that of mode `strict`, which the counter need not have
        if rejects && link.local_cache && counter.choice.mode.asks_always() {
            counter.deny_while_empty(now);
        }
        if is_leasing
            && !counter.traffic.is_overtaken()
            && (lease.is_some() || sent.tries.iter().any(Try::leases))
        {
            let is_partial = rejects || lease.is_some_and(|lease| granted < lease.want);
            counter.pause_if_scarce(is_partial, link.round_trip, now);
        }
        // leases may have ended on the way
        hits.record(counter.expire_leases(link.time));
        let stored = (knows_better && rejects).then(|| {
            let mut stored = reply.counters.clone();
            sent.decide(reply, &mut stored, false, now);
            stored
        });
        self.answer(decided, stored.as_deref(), now);
        if granted > 0 {
            let Self { counter, link, woken, .. } = self;
            let mut traffic = std::mem::take(&mut counter.traffic);
            traffic.filter_tries(|asked| counter.decide_from_leases(asked, link, woken));
            counter.traffic = traffic;
        }
    }

    /// Callers who still wait receive taken hits first, then tries that were admitted meanwhile: those without are
    /// pending, the others leave the estimate, which adopts the reply. Returns the hits that nobody wants.
    fn share_taken(&mut self, reply: &Reply) -> u64 {
        let Self { counter, sent, .. } = self;
        if sent.tries.iter().all(Try::is_awaited) {
            return 0;
        }
        let is_counted = sent.is_counted(reply);
        let mut unclaimed = 0_u64;
        let mut rest = &mut sent.tries[..];
        for (i, run) in sent.runs.iter().enumerate() {
            let (tries, others) = rest.split_at_mut(rest.len().min(run.tries as usize));
            rest = others;
            if run.direction == Direction::GiveBack {
                continue;
            }
            // by keys that stay the same while it sorts: a caller may leave meanwhile
            tries.sort_by_cached_key(|asked| {
                (!asked.is_awaited(), !counter.traffic.is_admitted_meanwhile(asked.id))
            });
            let taken = if is_counted { taken(reply, i, run) as usize } else { 0 };
            for (j, asked) in tries.iter().enumerate().filter(|(_, asked)| !asked.is_awaited()) {
                // where rejected hits count, the store has counted them
                match (
                    counter.traffic.take_given_up(asked.id),
                    j < taken || is_counted && run.counts_rejected,
                ) {
                    (Some(admitted), true) => {
                        let hits = Hits(admitted.taken());
                        take_off(&sent.target.tiers, &mut counter.estimate, hits, admitted.at);
                    }
                    (None, true) if !run.counts_rejected => unclaimed = unclaimed.saturating_add(run.hits),
                    (Some(admitted), false) => counter.pend(admitted),
                    _ => {}
                }
            }
        }
        unclaimed
    }

    /// Adopts the store's counters, with what it does not know yet and without unused leases. Returns the tiers that stay,
    /// being exact. If a later reply has overtaken this one, all stay; the error is the tiers in which that had what this
    /// one grants.
    fn adopt(&mut self, reply: &Reply, now: Timestamp) -> Result<TierSet, TierSet> {
        let Self { counter, sent: Sent { number, runs, .. }, .. } = self;
        let (number, applied) = (*number, counter.numbers.applied);
        counter.fallback = None;
        let precedes = |other: u32| number != other && other.wrapping_sub(number) < u32::MAX / 2;
        let is_exact = reply.at.is_some() && counter.plan.is_reply_dated;
        let inaccuracy = if is_exact { Period::default() } else { INACCURACY };
        let is_late = counter.last_reply.last_reply_at().is_some_and(|last| {
            // the clock has stepped back if the reply to a later command is of a much earlier time
            let is_later = number != applied && !precedes(applied);
            let is_earlier = now.after(inaccuracy) < last && (now.after(CLOCK_STEP) > last || !is_later);
            is_earlier || (now <= last && precedes(applied))
        });
        if is_late {
            let mut counted = TierSet::default();
            for (i, tier) in counter.target.tiers.iter().enumerate() {
                let stays = !tier.has_windows() && counter.last_reply.exact.contains(i);
                counted.set(i, !stays);
            }
            // what the reply to the later command was applied to may have been incomplete
            counter.lose_exactness();
            counter.plan.wants_read = true;
            return Err(counted);
        }
        counter.numbers.applied = number;
        // a lease that has seen others' hits may hide them from this reply
        let is_overtaken = counter.traffic.overtake_leases(number);
        let kept = if is_overtaken { reply.missing } else { counter.kept_in(reply) };
        let LocalCounter { ledger, traffic, estimate, last_reply, target, .. } = &mut **counter;
        let in_flight = ledger.in_flight();
        let unknown = if precedes(ledger.number()) { in_flight } else { &[] };
        for (i, (tier, state)) in target.tiers.iter().zip(estimate).enumerate() {
            let stored = &reply.counters[i];
            let is_adopted = match (&*state, stored) {
                (CounterState::FixedWindow(known), CounterState::FixedWindow(stored)) => {
                    stored.end() >= known.end()
                }
                // more exact than the store's
                _ => !kept.contains(i),
            };
            if is_adopted {
                state.clone_from(stored);
                let missing = unknown.iter().chain(ledger.pending()).chain(traffic.admitted());
                missing.for_each(|delta| delta.apply(tier, state, now));
                Lease::exclude(ledger.leases(), tier, state, now);
            }
        }
        // whether the others include what is in flight or to be leased is only guessed, and hits that are not sent are counted
        // before the tries, which may come out differently
        let mut unsent = ledger.pending().iter().chain(traffic.admitted());
        let is_other_order = !runs.is_empty() && unsent.any(|delta| delta.admitted() > 0);
        let is_guessed = !in_flight.is_empty() || is_overtaken || is_other_order;
        last_reply.exact = if is_guessed { kept } else { TierSet(u32::MAX) };
        Ok(kept)
    }

    /// Decides the tries by the estimate; by the store's states where that has another window, or a later reply.
    fn decide(&mut self, reply: &Reply, is_adopted: bool, knows_better: bool, now: Timestamp) -> Verdicts {
        let Self { counter, sent, .. } = self;
        if sent.tries.is_empty() {
            return Verdicts::new();
        }
        let both = reply.counters.iter().zip(&counter.estimate);
        let mut states: CounterStates = both
            .map(
                |(stored, known)| {
                    if is_adopted && is_of_window(known, stored) { known.clone() } else { stored.clone() }
                },
            )
            .collect();
        let mut decided = sent.decide(reply, &mut states, knows_better, now);
        if !is_adopted {
            return decided;
        }
        for (state, known) in states.into_iter().zip(&mut counter.estimate) {
            if is_of_window(&state, known) {
                *known = state;
            }
        }
        let is_unexplained =
            |verdict: &TryVerdict| verdict.decision.over && verdict.decision.reset == Period::default();
        if decided.iter().any(is_unexplained) {
            // the estimate is finer than the state that rejects
            let by_store = sent.decide(reply, &mut reply.counters.clone(), false, now);
            let unexplained = decided.iter_mut().zip(by_store).filter(|(verdict, _)| is_unexplained(verdict));
            unexplained.for_each(|(verdict, by_store)| *verdict = by_store);
        }
        decided
    }

    /// `stored`: the store's states after the tries, if the estimate knows better.
    fn answer(&mut self, decided: Verdicts, stored: Option<&[CounterState]>, now: Timestamp) {
        let Self { counter, sent, link, woken, .. } = self;
        for (mut asked, mut verdict) in sent.tries.drain(..).zip(decided) {
            if verdict.decision.over
                && stored.is_some_and(|stored| !fits(&asked.target.tiers, stored, asked.hits, now))
            {
                counter.decide_better(&asked, &mut verdict, now);
            }
            if asked.leases() && verdict.decision.over {
                verdict.decision = counter.until_pause_ends(verdict.decision, now);
                let rejected = counter.decide_from_leases(asked, link, woken);
                let Some(rejected) = rejected else { continue };
                asked = rejected;
            }
            if let TryKind::Reserve(request) = asked.kind
                && !asked.is_awaited()
            {
                // of a caller who waits no longer; no run has forgotten it
                if let Some(admitted) = counter.traffic.take_given_up(asked.id) {
                    counter.pend(admitted);
                }
                if verdict.reserved > Hits(0) {
                    counter.give_back_reserved(request, verdict);
                }
            }
            asked.succeed(verdict, woken);
        }
    }
}
