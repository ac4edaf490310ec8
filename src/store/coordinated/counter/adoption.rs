//! What a reply brings into the estimate: it acknowledges what was reported, and its states replace those of the estimate
//! or are replaced by them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    LocalCounter,
    heard::Version,
    records::{DeliveryOutcome, PendingDelta},
    talk::Talk,
    tiers::{flows, saturated},
    usage::MeasuredReply,
};
use crate::{
    limit::{
        Algorithm, Hits, Period, Tier, Timestamp,
        algorithm::{CounterState, SlidingWindow},
    },
    store::{
        coordinated::delivery::Delivery,
        remote::{ExactState, Replacement, Reply, Target},
    },
};

/// The inaccuracy of the time of a reply.
const INACCURACY: Period = Period::from_millis(20);

/// The time by which a reply is at most earlier than that to an earlier command, unless the store's clock has stepped
/// back.
const CLOCK_STEP: Period = Period::from_secs(1);

/// Returns the sum of `hits`, of which a request may have any number.
fn sum(hits: impl Iterator<Item = u64>) -> u64 {
    hits.fold(0, u64::saturating_add)
}

/// Returns whether state `i` of `reply` replaces `state`. It does not if the state is exact, since the store has
/// adopted it or has not changed since (`is_exact`), or if the reply is about an earlier window.
fn adopts(state: &CounterState, reply: &Reply, i: usize, is_exact: bool) -> bool {
    match (state, &reply.counters[i]) {
        (CounterState::FixedWindow(known), CounterState::FixedWindow(stored)) => stored.end() >= known.end(),
        _ => !is_exact,
    }
}

/// Lets the next hit begin a span of its own if the newest one is empty: that one began with hits that were leased and
/// not used, at the end of their lease.
fn close_empty_span(tier: &Tier, state: &mut CounterState) {
    if let Some(window) = state.sliding_window()
        && window.spans().last().is_some_and(|span| span.hits == 0)
    {
        let spans = window.spans().iter().filter(|span| span.hits > 0).copied();
        let window = SlidingWindow::new(Timestamp::default(), spans);
        *state = CounterState::from_sliding_window(window, tier);
    }
}

impl LocalCounter {
    /// Applies the `delivery` of the reports that were taken last. If they were definitely not applied, they are
    /// pending again.
    pub(super) fn apply_delivery(&mut self, delivery: Delivery) -> DeliveryOutcome {
        let mut outcome = DeliveryOutcome::default();
        let sent = self.unacknowledged.in_flight();
        match delivery {
            Delivery::Applied => {
                outcome.admitted = sent.last().map_or(0, PendingDelta::admitted);
                let taken = sum(sent.iter().map(PendingDelta::taken));
                self.plan.acknowledged = self.plan.acknowledged.saturating_add(saturated(taken));
            }
            Delivery::NotApplied => {
                self.unacknowledged.return_flight();
                return outcome;
            }
            Delivery::Unknown | Delivery::OnWay(_) => {
                outcome.unknown = sum(sent.iter().map(|delta| delta.owed().all()));
                if !sent.is_empty() {
                    self.lose_versions();
                }
            }
        }
        let carried = self.carried_hits();
        self.books.settle(carried.unreported, carried.stranded);
        self.unacknowledged.end_flight();
        outcome
    }

    /// Lets a reply of the instant `now` be applied, although one of a later instant was.
    pub(super) fn accept_time(&mut self, now: Timestamp) {
        if let Some(last) = self.heard.last_reply_at.get() {
            self.heard.last_reply_at.set(last.min(now));
        }
    }

    /// Adopts the store's counters, adds what it does not know yet, takes away what only this instance may use, and
    /// plans the next flush. `number` is that of the command. A reply that a later one has overtaken changes nothing.
    /// Returns whether it was applied.
    pub(super) fn apply_reply_to(&mut self, reply: &Reply, number: u32, now: Timestamp) -> bool {
        let precedes = |other: u32| number != other && other.wrapping_sub(number) < u32::MAX / 2;
        let is_late = self.heard.last_reply_at.get().is_some_and(|last| {
            // some replies have an estimated time. The clock has stepped back if the reply to a later command is of a
            // much earlier one
            let is_earlier =
                now.after(INACCURACY) < last && (now.after(CLOCK_STEP) > last || !self.is_later(number));
            is_earlier || (now <= last && precedes(self.heard.applied))
        });
        if reply.counters.len() != self.target.tiers.len() || is_late {
            // what the reply to the later command was applied to may have been incomplete
            let before: SmallVec<[Version; 1]> =
                (0..self.target.tiers.len()).map(|i| self.version(i)).collect();
            self.set_versions(|i| {
                let is_same = is_late && before[i] == Version::of(reply.version(i));
                if is_same { before[i] } else { Version::LOST }
            });
            self.plan.wants_read |= is_late && number == self.numbers.flushed;
            return false;
        }
        self.heard.applied = number;
        let unknown = if precedes(self.numbers.flushed) { self.unacknowledged.in_flight() } else { &[][..] };
        let (held, talk) = (self.rare.leases(), self.rare.talk());
        let lease_limit = (!held.is_empty()).then(|| Arc::clone(self.lease_limit()));
        for (i, tier) in self.target.tiers.iter().enumerate() {
            let is_same = reply.version(i) > 0 && self.version(i).known() == Some(reply.version(i));
            let state = &mut self.estimate[i];
            if !adopts(state, reply, i, is_same || reply.adopted.contains(i)) {
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
            if lease_limit.as_ref().is_some_and(|limit| limit.counts_in(tier)) {
                for lease in held {
                    lease.exclude(tier, state, now);
                }
                close_empty_span(tier, state);
            }
        }
        self.set_versions(|i| Version::of(reply.version(i)));
        self.end_fallback();
        if self.is_away() {
            // says nothing about the limit of the rule
            self.heard.last_reply_at.set(now);
            return true;
        }
        // the hits counted here during the first flush are the first measurement of the rate
        let meanwhile = if self.heard.last_reply_at.get().is_none() { self.unacknowledged_hits() } else { 0 };
        let own = u64::from(std::mem::take(&mut self.plan.acknowledged)).saturating_add(meanwhile);
        let measured = MeasuredReply {
            used: self.used(now),
            own,
            instances: self.plan.instances.into(),
            interval: self.plan.schedule.interval(),
            last: self.heard.last_reply_at.get(),
            now,
        };
        self.plan.usage.record(&mut self.plan.measured_replies, measured);
        self.heard.last_reply_at.set(now);
        self.plan_flush(now);
        self.return_useless(now);
        true
    }

    /// Returns the hits that are counted in the tier that has the fewest left.
    fn used(&self, now: Timestamp) -> u64 {
        self.look(Hits(0), now).before.0
    }

    /// Returns how many of the `admitted` hits, which the store has just counted according to `reply`, are above a
    /// limit. The hits counted last are the excess, so every excess hit is reported once, by the instance that admitted
    /// it.
    pub(super) fn overshoot(&self, reply: &Reply, admitted: u64, now: Timestamp) -> u64 {
        let over = reply.counters.iter().zip(&self.target.tiers).map(|(state, tier)| {
            state.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
        over.max().unwrap_or_default().min(admitted)
    }

    /// Returns the exact states of the sliding windows and buckets of `target`, for a store in which they have not
    /// changed since its last reply. None if there are no such tiers, or if it is not known what the store has counted
    /// in any.
    pub(super) fn replacement(&self, target: &Target, now: Timestamp) -> Option<Box<Replacement>> {
        if !flows(&target.tiers) {
            return None;
        }
        let states: SmallVec<_> = (0..target.tiers.len()).map(|i| self.exact_state(target, i, now)).collect();
        states.iter().any(Option::is_some).then(|| Box::new(Replacement(states)))
    }

    /// Returns the exact state of tier `i` of `target`, if it is a sliding window or a bucket and it is known what the
    /// store has counted.
    fn exact_state(&self, target: &Target, i: usize, now: Timestamp) -> Option<ExactState> {
        let tier = &target.tiers[i];
        if tier.algorithm == Algorithm::FixedWindow {
            return None;
        }
        let (state, version) = self.known(target, i)?;
        let (mut state, version) = (state.clone(), version.known()?);
        let mut own = CounterState::unused(tier, now);
        self.unacknowledged.in_flight().iter().for_each(|delta| delta.apply(tier, &mut own, now));
        let leases = if self.lease_limit().counts_in(tier) { self.rare.leases() } else { &[] };
        for lease in leases {
            lease.include(tier, &mut state, now);
            lease.include(tier, &mut own, now);
        }
        let is_own = state.probe(tier, now, Hits(0)).used <= own.probe(tier, now, Hits(0)).used
            && state.availability(tier, now).reset <= own.availability(tier, now).reset;
        Some(ExactState { version, is_own, state })
    }
}
