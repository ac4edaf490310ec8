//! The one place where replies are applied to a counter: they acknowledge what was reported, bring hits to hold and
//! states to adopt, and decide the tries that they carried.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    LocalCounter,
    asks::Asks,
    exchange::Sent,
    records::{Dropped, PendingDelta},
    talk::{Early, Talk, Tried, Try},
    tiers::{fits, flows, look, negative, put_back, take_off},
};
use crate::{
    limit::{
        Algorithm, Coordination, Decision, Direction, Hits, OverLimitPolicy, Period, ReservationRequest,
        ReservedSpan, Tier, Timestamp,
        algorithm::{CountChange, CounterState, SlidingWindow},
        decision_from_store,
    },
    store::{
        coordinated::{client::ExchangeOutcome, delivery::Delivery, link::Link},
        remote::{Reply, Run, TierSet},
    },
    wakeup::Wakeups,
};

/// The inaccuracy of the time of a reply that does not carry it.
const INACCURACY: Period = Period::from_millis(20);

/// A reply is at most this much earlier than that to an earlier command, unless the store's clock has stepped back.
const CLOCK_STEP: Period = Period::from_secs(1);

/// What the outcome of a command has led to.
#[derive(Debug, Default)]
pub(in super::super) struct Applied {
    /// Hits that the store may or may not have counted.
    pub(in super::super) unknown: u64,
    /// Reported hits above a limit.
    pub(in super::super) overshoot: u64,
    pub(in super::super) dropped: Dropped,
    /// To be woken when the counter is not locked.
    pub(in super::super) woken: Wakeups,
}

/// Returns how many tries of run `i` have taken their hits.
fn taken(reply: &Reply, i: usize, run: &Run) -> u32 {
    let all = if run.hits == 0 { run.tries } else { 0 };
    reply.taken.get(i).copied().unwrap_or(all).min(run.tries)
}

/// State `i` of `reply` replaces `state` unless that `is_kept`, being more exact, or the reply is of an earlier window.
fn adopts(state: &CounterState, reply: &Reply, i: usize, is_kept: bool) -> bool {
    match (state, &reply.counters[i]) {
        (CounterState::FixedWindow(known), CounterState::FixedWindow(stored)) => stored.end() >= known.end(),
        _ => !is_kept,
    }
}

/// Drops empty spans, so that the next hit begins its own: unused leases have the newest one begin at their end.
fn close_empty_span(tier: &Tier, state: &mut CounterState) {
    if let Some(window) = state.sliding_window()
        && window.spans().last().is_some_and(|span| span.hits == 0)
    {
        let spans = window.spans().iter().filter(|span| span.hits > 0).copied();
        let window = SlidingWindow::new(Timestamp::default(), spans);
        *state = CounterState::from_sliding_window(window, tier);
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

// === impl Sent ===

impl Sent {
    /// Returns whether `reply` rejects some tries, and the hits that it takes for others.
    fn outcomes(&self, reply: &Reply, now: Timestamp) -> (bool, u64) {
        let is_over = |asked: &Try| {
            asked.hits > Hits(0)
                && asked.looks()
                && !fits(&self.target.tiers, &reply.counters, asked.hits, now)
        };
        let (mut rejects, mut hits) = (self.tries.iter().any(is_over), 0_u64);
        let is_counted = self.is_counted(reply);
        let may_reject = |run: &Run| run.direction == Direction::Take && run.hits > 0;
        for (i, run) in self.runs.iter().enumerate().filter(|(_, run)| may_reject(run)) {
            let taken = taken(reply, i, run);
            rejects |= taken < run.tries;
            if is_counted {
                hits = hits.saturating_add(run.hits.saturating_mul(taken.into()));
            }
        }
        (rejects, hits)
    }

    fn is_counted(&self, reply: &Reply) -> bool {
        !self.all_or_none || self.runs.iter().enumerate().all(|(i, run)| taken(reply, i, run) == run.tries)
    }

    /// `states` are those after all of the tries, `before` those that this instance knew before them.
    fn decide(
        &self,
        reply: &Reply,
        before: Option<&[CounterState]>,
        mut states: Cow<'_, [CounterState]>,
        now: Timestamp,
    ) -> Verdicts {
        let tiers = &self.target.tiers;
        let mut decided = Verdicts::with_capacity(self.tries.len());
        if let [Try { asks: Asks::Reserve(request), .. }] = &self.tries[..] {
            let reserved = Hits(reply.granted);
            let over = reserved == Hits(0);
            let of = if over { request.fit(request.least.max(Hits(1))) } else { reserved };
            let decision = decision_from_store(tiers, &states, OverLimitPolicy::Ignore, over, of, now);
            decided.push(Tried { decision, at: now, is_counted: true, reserved });
            return decided;
        }
        // those before the tries are known if they lead to those after them
        let before = if self.is_counted(reply) { before } else { Some(&states[..]) };
        if let Some((decided, found)) = before.map(|before| self.decide_from(reply, before, now)) {
            let used = |state: &CounterState, tier| state.probe(tier, now, Hits(0)).used;
            let mut tiers = tiers.iter().zip(found.iter().zip(&*states));
            if tiers.all(|(tier, (found, state))| used(found, tier) == used(state, tier)) {
                return decided;
            }
        }
        // from the last one on, whose hits the states include too
        let mut end = self.tries.len();
        for (i, run) in self.runs.iter().enumerate().rev() {
            let taken = taken(reply, i, run) as usize;
            let begin = end.saturating_sub(run.tries as usize);
            for (j, asked) in self.tries[begin..end].iter().enumerate().rev() {
                let hits = asked.hits;
                let (decision, changes) = match asked.asks {
                    Asks::Take(policy) | Asks::Lease(policy) => {
                        let over = j >= taken;
                        // the estimate may be finer than the state that rejects it
                        let is_finer = over && fits(tiers, &states, hits, now);
                        let by = if is_finer { &reply.counters[..] } else { &states[..] };
                        let decision = decision_from_store(tiers, by, policy, over, hits, now);
                        (decision, !over || run.counts_rejected)
                    }
                    Asks::GiveBack(_) => (self.look_after_return(&states, now), true),
                    Asks::Look | Asks::Reserve(_) => (look(tiers, &states, hits, now), false),
                };
                decided.push(Tried { decision, at: now, is_counted: true, reserved: Hits(0) });
                // no try needs those before the first one
                if changes && hits > Hits(0) && begin + j > 0 {
                    match run.direction {
                        Direction::Take => take_off(tiers, states.to_mut(), hits, now),
                        Direction::GiveBack => put_back(tiers, states.to_mut(), hits, now),
                    }
                }
            }
            end = begin;
        }
        decided.reverse();
        decided
    }

    /// Decides its tries in order. Also returns the states after them: `before`, if the store has counted none.
    fn decide_from(
        &self,
        reply: &Reply,
        before: &[CounterState],
        now: Timestamp,
    ) -> (Verdicts, Vec<CounterState>) {
        let (tiers, is_counted) = (&self.target.tiers, self.is_counted(reply));
        let (mut found, mut tries) = (Vec::from(before), self.tries.iter());
        let mut decided = Verdicts::with_capacity(self.tries.len());
        for (i, run) in self.runs.iter().enumerate() {
            let taken = taken(reply, i, run) as usize;
            for (j, asked) in tries.by_ref().take(run.tries as usize).enumerate() {
                let (hits, over) = (asked.hits, j >= taken);
                for (tier, state) in tiers.iter().zip(&mut found) {
                    match run.direction {
                        Direction::GiveBack => state.give_back(tier, now, hits),
                        Direction::Take if run.hits == 0 => {}
                        Direction::Take if !over || run.counts_rejected => state.take(tier, now, hits),
                        Direction::Take if !state.probe(tier, now, hits).fits => state.reject(tier, now),
                        Direction::Take => {}
                    }
                }
                let decision = match asked.asks {
                    Asks::Take(policy) | Asks::Lease(policy) if over || is_counted => {
                        decision_from_store(tiers, &found, policy, over, hits, now)
                    }
                    Asks::GiveBack(_) if is_counted => self.look_after_return(&found, now),
                    Asks::Look => look(tiers, &found, hits, now),
                    _ => look(tiers, before, Hits(0), now),
                };
                decided.push(Tried { decision, at: now, is_counted, reserved: Hits(0) });
            }
        }
        (decided, if is_counted { found } else { Vec::from(before) })
    }

    /// Hits that were given back reject no others.
    fn look_after_return(&self, states: &[CounterState], now: Timestamp) -> Decision {
        let decision = look(&self.target.tiers, states, Hits(0), now);
        Decision { over: decision.over && !self.all_or_none, ..decision }
    }

    /// Decides its tries without the counter, which was evicted.
    pub(in super::super) fn decide_alone(&mut self, outcome: ExchangeOutcome<'_>) -> Applied {
        let mut applied = Applied::default();
        let want = self.hold_ahead().map_or(0, |hold| hold.want);
        match outcome {
            Ok((reply, now)) if reply.counters.len() == self.target.tiers.len() => {
                applied.dropped.add(0, if want > 0 { reply.granted } else { 0 });
                let decided =
                    self.decide(reply, None, Cow::Borrowed(&reply.counters), self.dated(reply, now));
                for (asked, tried) in self.tries.drain(..).zip(decided) {
                    asked.succeed(tried, &mut applied.woken);
                }
            }
            outcome => {
                let delivery = outcome.err().map_or(Delivery::Unknown, Delivery::of_error);
                applied.unknown = if delivery == Delivery::Unknown { want } else { 0 };
                for asked in self.tries.drain(..) {
                    if asked.gives_back() {
                        match delivery {
                            Delivery::Unknown => {
                                applied.unknown = applied.unknown.saturating_add(asked.hits.0);
                            }
                            // who waits counts them in the counter that takes its place
                            _ if asked.is_awaited() => {}
                            _ => applied.dropped.add(0, asked.hits.0),
                        }
                    }
                    asked.fail(delivery, &mut applied.woken);
                }
            }
        }
        applied
    }

    /// `now` is when the store carried out the call. The result is in the windows that `reply` is about.
    fn dated(&self, reply: &Reply, now: Timestamp) -> Timestamp {
        // a report may be of a window that has ended
        if self.decides() { reply.instant(&self.target.tiers, now) } else { now }
    }
}

type Verdicts = SmallVec<[Tried; 1]>;

impl LocalCounter {
    /// Returns whether exchange `number` is later than the one whose reply was applied last.
    pub(super) const fn is_later(&self, number: u32) -> bool {
        number != self.heard.applied && number.wrapping_sub(self.heard.applied) < u32::MAX / 2
    }

    pub(super) fn end_command(&mut self, number: u32) {
        let Some(talk) = self.rare.talk_mut() else { return };
        if let Some(i) = talk.on_way.iter().position(|sent| sent.number == number) {
            talk.on_way[i].left = talk.on_way[i].left.saturating_sub(1);
            if talk.on_way[i].left == 0 {
                talk.on_way.remove(i);
            }
        }
        if talk.given_up().is_empty() {
            // before leases arrive, beside which it would take more space
            self.end_talk();
        }
    }

    pub(in super::super) fn apply(
        &mut self,
        sent: &mut Sent,
        outcome: ExchangeOutcome<'_>,
        link: &Link,
    ) -> Applied {
        self.end_command(sent.number);
        let mut applied = Applied::default();
        let mut admitted = 0;
        if let Some(carried) = sent.carried {
            debug_assert_eq!(carried, self.carried_hits(), "they stay what was sent");
            let delivery = Delivery::of(&outcome);
            admitted = self.apply_delivery(delivery);
            applied.unknown = if delivery == Delivery::Unknown { carried.all() } else { 0 };
        }
        match outcome {
            Ok((reply, now)) if reply.counters.len() == sent.target.tiers.len() => {
                let now = sent.dated(reply, now);
                if sent.carried.is_some() {
                    applied.overshoot = overshoot(reply, &sent.target.tiers, admitted, now);
                }
                self.apply_reply_of(sent, reply, link, now, &mut applied);
            }
            // the reply may not be about what was asked
            Ok(_) => self.fail(sent, Delivery::Unknown, &mut applied),
            Err(error) => self.fail(sent, Delivery::of_error(error), &mut applied),
        }
        self.apply_early();
        self.end_talk();
        applied
    }

    /// Reports that were not applied are pending again. Returns the admitted hits of the last one, if it was applied.
    pub(super) fn apply_delivery(&mut self, delivery: Delivery) -> u64 {
        if delivery == Delivery::NotApplied {
            self.unacknowledged.return_flight(&self.target.tiers);
            return 0;
        }
        let last = self.unacknowledged.in_flight().last().filter(|_| delivery == Delivery::Applied);
        let admitted = last.map_or(0, PendingDelta::admitted);
        self.unacknowledged.end_flight();
        admitted
    }

    /// Adopts the store's counters, with what it does not know yet and without unused leases, and plans the next flush.
    /// Returns false if a later reply has overtaken this one: then the counts stay.
    pub(super) fn apply_reply_to(&mut self, reply: &Reply, number: u32, now: Timestamp) -> bool {
        let precedes = |other: u32| number != other && other.wrapping_sub(number) < u32::MAX / 2;
        let is_dated = reply.at.is_some();
        let is_exact = is_dated && self.plan.is_reply_dated;
        let inaccuracy = if is_exact { Period::default() } else { INACCURACY };
        let is_late = self.heard.last_reply_at().is_some_and(|last| {
            // the clock has stepped back if the reply to a later command is of a much earlier time
            let is_earlier =
                now.after(inaccuracy) < last && (now.after(CLOCK_STEP) > last || !self.is_later(number));
            is_earlier || (now <= last && precedes(self.heard.applied))
        });
        if reply.counters.len() != self.target.tiers.len() || is_late {
            // what the reply to the later command was applied to may have been incomplete
            self.lose_exactness();
            self.plan.wants_read |= is_late;
            return false;
        }
        self.heard.applied = number;
        let in_flight = self.unacknowledged.in_flight();
        let unknown = if precedes(self.unacknowledged.number()) { in_flight } else { &[] };
        let kept = self.kept_in(reply);
        let (held, talk) = (self.rare.leases(), self.rare.talk());
        for (i, tier) in self.target.tiers.iter().enumerate() {
            let state = &mut self.estimate[i];
            if !adopts(state, reply, i, kept.contains(i)) {
                continue;
            }
            state.clone_from(&reply.counters[i]);
            for delta in unknown
                .iter()
                .chain(self.unacknowledged.pending())
                .chain(talk.into_iter().flat_map(Talk::admitted))
            {
                delta.apply(tier, state, now);
            }
            for lease in held {
                lease.exclude(tier, state, now);
            }
            if !held.is_empty() {
                close_empty_span(tier, state);
            }
        }
        // whether the others include what is in flight already is only guessed, and one that waits includes more
        let is_early =
            talk.is_some_and(|talk| talk.aside.as_ref().is_some_and(|aside| aside.early.is_some()));
        let is_guessed = !in_flight.is_empty() || is_early;
        self.heard.exact = if is_guessed { kept } else { TierSet(u32::MAX) };
        self.rare.fallback = None;
        self.measure_usage(now);
        (self.heard.replied_at, self.plan.is_reply_dated) = (now, is_dated);
        self.plan_flush(now);
        self.return_useless(now);
        true
    }

    /// Hits that were admitted meanwhile become pending, unless the store may have counted them.
    fn fail(&mut self, sent: &mut Sent, delivery: Delivery, applied: &mut Applied) {
        let is_unknown = delivery == Delivery::Unknown;
        if is_unknown {
            self.lose_exactness();
            let want = sent.hold_ahead().map_or(0, |hold| hold.want);
            applied.unknown = applied.unknown.saturating_add(want);
        }
        for asked in sent.tries.drain(..) {
            if asked.is_awaited() {
                if asked.gives_back() && is_unknown {
                    // nobody else says so
                    applied.unknown = applied.unknown.saturating_add(asked.hits.0);
                }
                asked.fail(delivery, &mut applied.woken);
                continue;
            }
            let given_up = self.take_given_up(asked.id);
            if is_unknown {
                let hits = if asked.looks() { 0 } else { asked.hits.0 };
                applied.unknown = applied.unknown.saturating_add(hits);
            } else if let Some(delta) = given_up {
                self.push_pending(delta);
            } else {
                self.count_return(asked.hits, asked.asks);
            }
        }
    }

    /// Callers who still wait receive taken hits first, then tries that were admitted meanwhile: those without are
    /// pending, the others leave the estimate, which adopts the reply. Returns the hits that nobody wants.
    fn share_taken(&mut self, sent: &mut Sent, reply: &Reply) -> u64 {
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
                if asked.is_awaited() { 0 } else { 1 + u8::from(!self.is_admitted_meanwhile(asked.id)) }
            });
            let taken = if is_counted { taken(reply, i, run) as usize } else { 0 };
            for (j, asked) in tries.iter().enumerate().filter(|(_, asked)| !asked.is_awaited()) {
                match (self.take_given_up(asked.id), j < taken) {
                    (Some(admitted), true) => {
                        let hits = Hits(admitted.taken());
                        take_off(&sent.target.tiers, &mut self.estimate, hits, admitted.at);
                    }
                    (None, true) if !run.counts_rejected => unclaimed = unclaimed.saturating_add(run.hits),
                    // where rejected hits count, the store has counted them
                    (Some(admitted), false) if !run.counts_rejected => self.push_pending(admitted),
                    _ => {}
                }
            }
        }
        unclaimed
    }

    fn apply_reply_of(
        &mut self,
        sent: &mut Sent,
        reply: &Reply,
        link: &Link,
        now: Timestamp,
        applied: &mut Applied,
    ) {
        let number = sent.number;
        let before = sent.tries.iter().any(|asked| asked.group.is_some()).then(|| self.estimate.to_vec());
        let (rejects, taken) = sent.outcomes(reply, now);
        let is_leasing = self.choice.mode == Coordination::Lease;
        let asks_lease = Try::leases;
        let hold = sent.hold_ahead();
        let granted = hold.map_or(0, |_| reply.granted);
        let mut kept = granted;
        let mut unclaimed = self.share_taken(sent, reply);
        // before what is granted may go back at once
        self.keep_granted(taken.saturating_add(granted), now);
        if let Some(hold) = hold {
            self.hold_granted(granted, &sent.target, reply, hold.time, now);
        }
        if is_leasing && unclaimed > 0 && !flows(&sent.target.tiers) {
            // others can use them in the same windows
            kept = kept.saturating_add(unclaimed);
            self.hold_granted(std::mem::take(&mut unclaimed), &sent.target, reply, Period::default(), now);
        }
        // the cache is that of mode `strict`, which the counter need not have
        let is_cached = rejects && link.local_cache && self.choice.mode == Coordination::Strict;
        let stays = self.kept_in(reply);
        let is_applied = if self.has_hold_beside(number) {
            self.keep_early(sent, reply, number, now);
            false
        } else {
            self.apply_reply_to(reply, number, now)
        };
        if is_applied && !stays.is_empty() {
            self.repeat(sent, reply, stays, now);
        }
        // alone: others are decided about before what this instance admits is reported
        let knows_better = is_applied
            && self.plan.instances <= 1
            && self.is_silent()
            && flows(&self.target.tiers)
            && self.has_all_flowing(stays);
        self.plan.wants_read |= !is_applied && kept > 0;
        if is_cached {
            self.deny_while_empty(now);
        }
        if unclaimed > 0 {
            self.uncount(Hits(unclaimed), now);
        }
        if is_leasing && (hold.is_some() || sent.tries.iter().any(asks_lease)) {
            let is_partial = rejects || hold.is_some_and(|hold| granted < hold.want);
            self.pause_if_scarce(is_partial, link.round_trip, now);
        }
        let decided = match sent.tries[..] {
            [] => Verdicts::new(),
            _ => sent.decide(reply, before.as_deref(), self.states_after(sent, reply, is_applied), now),
        };
        // what is held may have ended on the way
        applied.dropped = self.expire_leases(link.time);
        for (asked, mut tried) in sent.tries.drain(..).zip(decided) {
            if knows_better
                && tried.decision.over
                && !fits(&asked.target.tiers, &reply.counters, asked.hits, now)
            {
                self.decide_better(&asked, &mut tried, now);
            }
            if asks_lease(&asked) && tried.decision.over {
                if let Some(asked) = self.decide_again(asked, link, &mut applied.woken) {
                    tried.decision = self.until_pause_ends(tried.decision, now);
                    asked.succeed(tried, &mut applied.woken);
                }
                continue;
            }
            if let Asks::Reserve(request) = asked.asks
                && !asked.is_awaited()
            {
                // of a caller who waits no longer; no run has forgotten it
                if let Some(admitted) = self.take_given_up(asked.id) {
                    self.push_pending(admitted);
                }
                if tried.reserved > Hits(0) {
                    self.give_back_reserved(request, tried);
                }
            }
            asked.succeed(tried, &mut applied.woken);
        }
        if granted > 0 {
            self.decide_waiting_from_held(link, &mut applied.woken);
        }
    }

    /// The estimate, which is exact, decides instead: the store's state counts some hits for too long, and leased ones.
    fn decide_better(&mut self, asked: &Try, tried: &mut Tried, now: Timestamp) {
        let is_taken =
            matches!(asked.asks, Asks::Take(OverLimitPolicy::Ignore) | Asks::Lease(OverLimitPolicy::Ignore));
        let is_alone = asked.group.is_none() && asked.is_awaited();
        if is_taken && is_alone && self.serves(&asked.target) && self.fits(asked.hits, now) {
            tried.decision = self.count(Direction::Take, OverLimitPolicy::Ignore, asked.hits, now);
        }
    }

    /// Decides `asked` from the leases. Returns it if they do not cover it.
    fn decide_again(&mut self, asked: Try, link: &Link, woken: &mut Wakeups) -> Option<Try> {
        let now = link.time.now;
        let Asks::Lease(policy) = asked.asks else { return Some(asked) };
        let is_covered = policy != OverLimitPolicy::Count
            && asked.is_awaited()
            && self.serves(&asked.target)
            && self.leased_hits() >= asked.hits.0
            && self.fits(asked.hits, now);
        if !is_covered {
            return Some(asked);
        }
        let decision = self.spend(policy, asked.hits, now);
        asked.succeed(Tried { decision, at: now, is_counted: true, reserved: Hits(0) }, woken);
        None
    }

    fn decide_waiting_from_held(&mut self, link: &Link, woken: &mut Wakeups) {
        let Some(talk) = self.rare.talk_mut() else { return };
        let tries = std::mem::take(&mut talk.tries);
        let waiting = tries.into_iter().filter_map(|asked| self.decide_again(asked, link, woken)).collect();
        if let Some(talk) = self.rare.talk_mut() {
            talk.tries = waiting;
        }
    }

    /// Keeps `reply` until that to the hold, which it may count. The estimate counts the taken hits meanwhile.
    fn keep_early(&mut self, sent: &Sent, reply: &Reply, number: u32, now: Timestamp) {
        let (_, taken) = sent.outcomes(reply, now);
        for (tier, state) in sent.target.tiers.iter().zip(self.estimate.iter_mut()) {
            state.take(tier, now, Hits(taken));
        }
        if !self.has_all_flowing(reply.own.or(reply.missing))
            || sent.is_reserving()
            || sent.runs.iter().any(|run| run.direction == Direction::GiveBack)
        {
            // the reply to the hold, or a later one, may hide it
            self.lose_exactness();
        }
        let early = &mut self.rare.make_talk().aside.get_or_insert_default().early;
        if early.as_ref().is_none_or(|early| early.now <= now) {
            *early = Some(Early { reply: reply.clone(), number, now });
        }
    }

    fn apply_early(&mut self) {
        if self.requested_hits() == 0
            && let Some(aside) = self.rare.talk_mut().and_then(|talk| talk.aside.as_mut())
            && let Some(Early { reply, number, now }) = aside.early.take()
        {
            self.apply_reply_to(&reply, number, now);
        }
    }

    /// Tiers whose estimate stays: nobody else has changed them since it was exact, or the store did not have them.
    const fn kept_in(&self, reply: &Reply) -> TierSet {
        self.heard.exact.and(reply.own).or(reply.missing)
    }

    /// Returns whether all sliding windows and buckets are among `tiers`.
    fn has_all_flowing(&self, tiers: TierSet) -> bool {
        let mut all = self.target.tiers.iter().enumerate();
        all.all(|(i, tier)| tier.algorithm == Algorithm::FixedWindow || tiers.contains(i))
    }

    /// Repeats in the states of the `kept` tiers what the store has done for the tries of `sent`.
    fn repeat(&mut self, sent: &Sent, reply: &Reply, kept: TierSet, now: Timestamp) {
        if sent.is_reserving() {
            let until = sent.hold.map_or(now, |hold| now.after(hold.time));
            let states = sent.target.tiers.iter().zip(self.estimate.iter_mut()).enumerate();
            for (_, (tier, state)) in states.filter(|(i, _)| kept.contains(*i)) {
                state.reserve(tier, now, until, Hits(reply.granted));
            }
        }
        if !sent.is_counted(reply) {
            return;
        }
        for (i, run) in sent.runs.iter().enumerate() {
            let taken = taken(reply, i, run);
            let counted = if run.counts_rejected { run.tries } else { taken };
            let hits = Hits(run.hits.saturating_mul(counted.into()));
            let states = sent.target.tiers.iter().zip(self.estimate.iter_mut()).enumerate();
            for (_, (tier, state)) in states.filter(|(i, _)| kept.contains(*i)) {
                if run.direction == Direction::GiveBack {
                    state.add(tier, now, CountChange::of(negative(hits.0)), now);
                    continue;
                }
                state.take(tier, now, hits);
                if run.hits > 0 && taken < run.tries && !state.probe(tier, now, Hits(run.hits)).fits {
                    state.reject(tier, now);
                }
            }
        }
    }

    /// Returns the estimate, which leaves out leases and has unreported hits, except for windows that it does not have.
    fn states_after<'a>(&self, sent: &Sent, reply: &'a Reply, is_applied: bool) -> Cow<'a, [CounterState]> {
        let is_better = is_applied
            && !sent.is_reserving()
            && (!self.kept_in(reply).is_empty()
                || self.leased_hits() > 0
                || sent.tries.iter().all(Try::looks));
        if !is_better {
            return Cow::Borrowed(&reply.counters);
        }
        let both = reply.counters.iter().zip(self.estimate.iter());
        let of_window = |(stored, known): (&CounterState, &CounterState)| match (stored, known) {
            (CounterState::FixedWindow(stored), CounterState::FixedWindow(own))
                if stored.end() != own.end() =>
            {
                CounterState::FixedWindow(*stored)
            }
            _ => known.clone(),
        };
        both.map(of_window).collect()
    }

    /// For a caller who waits no longer.
    pub(in super::super) fn give_back_reserved(&mut self, request: ReservationRequest, tried: Tried) {
        let span = ReservedSpan { from: tried.at, until: tried.at.after(request.hold), is_reported: true };
        self.release(span, tried.reserved, tried.at);
    }
}
