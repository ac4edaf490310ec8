//! When to request a lease, and how many hits: one call should serve many decisions, and no instance should hold hits that
//! another one lacks.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    LocalCounter,
    fetch::{LeaseFetch, LeaseReply},
    records::{Dropped, HeldLease, PendingDelta},
    tiers::{flows, has_bucket, hold, lone_hold, longest_pause, same_windows},
    used_up::LONGEST_IDLE_HOLD,
};
use crate::{
    limit::{
        Algorithm, Hits, Period, Timestamp,
        algorithm::{CounterState, IdleAt},
        capacity,
    },
    store::remote::{Command, Exchange, Hold, Op, Reply, Report},
};

/// The fewest expected hits that make a pause worthwhile.
const MIN_PAUSE_HITS: u64 = 4;

/// The fewest hits of a window that one of several instances leases ahead.
const MIN_AHEAD: u64 = 3;

/// The first wait before a look whether another instance has given hits back, unless the sync interval is longer. The next
/// waits double.
const FIRST_PROBE: Period = Period::from_millis(250);

/// The command of a fetch.
#[derive(Debug, Default)]
pub(in super::super) struct FetchCommand {
    /// None if there is nothing to send.
    pub(in super::super) command: Option<Command>,
    /// Whether it carries reports.
    pub(in super::super) reports: bool,
    /// The hits that it requests.
    pub(in super::super) want: u64,
    /// Those of them that no decision waits for yet.
    pub(in super::super) ahead: u64,
    pub(in super::super) dropped: Dropped,
}

impl LocalCounter {
    /// Returns the command that reports what is pending and fetches the next lease. A lease that ends within `lead` is returned
    /// with it, so that it is not lost, and is requested again if it is likely to be used.
    pub(in super::super) fn fetch_command(
        &mut self,
        instances: usize,
        at_least: Period,
        lead: Period,
        now: Timestamp,
    ) -> FetchCommand {
        self.follow_instances(instances);
        let mut fetched = FetchCommand::default();
        let returned = self.return_leases_before(now.after(lead));
        let is_flushing = self.unacknowledged.is_in_flight();
        let mut reports = SmallVec::new();
        if !is_flushing {
            (reports, fetched.dropped) = self.take_reports(now);
        }
        fetched.reports = !reports.is_empty();
        let (needed, ahead, time) = self.next_lease(at_least, returned, is_flushing, lead, now);
        let want = needed + ahead;
        (fetched.want, fetched.ahead) = (want, ahead);
        let hold = (want > 0).then(|| {
            // the store has this instance's exact state before it grants
            let replaces = if reports.is_empty() && !is_flushing { self.replacement(now) } else { None };
            reports.extend(replaces.map(|replaces| Report {
                at: now,
                since: now,
                replaces: Some(replaces),
                ..Report::default()
            }));
            Hold { least: self.fetch().map_or(1, |fetch| fetch.least.max(1)), want, time }
        });
        let op = match (hold, reports.len()) {
            (None, 0) => None,
            (None, 1) => reports.pop().map(|report| Op::Add { report }),
            (Some(Hold { least, want, time: hold }), 0 | 1) => {
                Some(Op::Grant { report: reports.pop(), least, want, hold })
            }
            (hold, _) => Some(Op::Exchange(Exchange { reports, hold, ..Exchange::default() })),
        };
        fetched.command = op.map(|op| Command { target: Arc::clone(&self.target), at: now, op });
        // the reply has the counts
        self.wants_read &= fetched.command.is_none();
        let number = self.next_number();
        let fetch = self.fetch_mut();
        fetch.take_waiting();
        (fetch.want, fetch.hold, fetch.number) = (want, time, number);
        fetched
    }

    /// Returns whether a decision about `hits` has to wait for the reply after the next one: others wait for what the running fetch
    /// requests. In a fixed window enough may be left of it nevertheless. The store can decide instead if it has all that this instance has
    /// counted, and enough besides what it grants to it.
    pub(in super::super) fn needs_second_reply(&self, hits: Hits, now: Timestamp) -> bool {
        let needs = |fetch: &LeaseFetch| {
            fetch.is_running
                && fetch.waiting.saturating_add(hits.0) > fetch.ahead
                && self.fits(hits.plus(Hits(fetch.want)), now)
        };
        self.instances > 1
            && flows(&self.target.tiers)
            && self.leases().is_empty()
            && self.unacknowledged.pending().is_empty()
            && self.fetch().is_some_and(needs)
    }

    /// Returns the hits that commands in flight request, to be leased.
    pub(in super::super) fn requested_hits(&self) -> u64 {
        let running = self.fetch().filter(|fetch| fetch.is_running);
        self.requested_ahead().saturating_add(running.map_or(0, |fetch| fetch.want))
    }

    /// Returns whether a lease has to be requested only after the reply to a flush or to a single request: the store may have to count
    /// hits first that were counted before the mode has changed, or to give some back. An instance that is alone decides as in memory
    /// then; several must not wait in a burst.
    pub(in super::super) fn must_wait_for_reply(&self, instances: usize) -> bool {
        let gives_back = |delta: &PendingDelta| !delta.change.is_addition();
        let in_flight = self.unacknowledged.in_flight();
        !in_flight.is_empty() && (instances <= 1 || in_flight.iter().any(gives_back))
            || self.must_report_after_request()
    }

    /// Returns how many hits to request for decisions that wait, how many ahead, and for how long.
    fn next_lease(
        &mut self,
        at_least: Period,
        returned: u64,
        is_flushing: bool,
        lead: Period,
        now: Timestamp,
    ) -> (u64, u64, Period) {
        let leased = self.usable_hits(now);
        let fetch = self.fetch_mut();
        let needed = fetch.waiting.saturating_sub(leased).max(fetch.least);
        // the estimate cannot replace the store's state while a flush is in flight, or a lease would end before it could be used
        if flows(&self.target.tiers) && (is_flushing || self.longest_hold() < self.shortest_hold(lead)) {
            // so only hits that are used at once
            return (needed, 0, Period::default());
        }
        let ahead = self.ahead(needed, returned, at_least, now);
        if needed == 0 && ahead == 0 {
            return (0, 0, Period::default());
        }
        let longest = self.longest_hold();
        let hold = if self.instances <= 1 {
            longest
        } else if ahead == 0 {
            Period::default()
        } else if has_bucket(&self.target.tiers) {
            longest
        } else {
            // as long as the hits are expected to last, since a sliding window counts them until then
            let used_up = self.demand.time_for(needed + ahead, now).as_nanos();
            let time = used_up.saturating_add(used_up / 2).saturating_add(2 * lead.as_nanos());
            Period::from_nanos(time).min(longest)
        };
        (needed, ahead, hold)
    }

    /// Returns how long a grant may be used at most if no window ends it.
    fn longest_hold(&self) -> Period {
        if self.instances <= 1 { lone_hold(&self.target.tiers) } else { hold(&self.target.tiers) }
    }

    /// Returns how long hits that are leased ahead have to be usable at least, so that some of them are used: they arrive after a round
    /// trip, by the latest clock that the store may have. Others of a bucket have to be returned before they flow back. `lead` is the time
    /// that a return takes, two round trips and what the queue may be late.
    fn shortest_hold(&self, lead: Period) -> Period {
        let returns = self.instances > 1 && has_bucket(&self.target.tiers);
        if returns { lead } else { Period::from_nanos(lead.as_nanos() / 2 + 2_000_000) }
    }

    /// Returns how many hits to lease beyond the `needed` ones of decisions that wait: those that are likely to be used within the
    /// time that a lease should last, and those that are kept for after a lull, but for those that were requested already. `returned`
    /// hits were held until now.
    pub(super) fn ahead(&self, needed: u64, returned: u64, at_least: Period, now: Timestamp) -> u64 {
        let requested = self.requested_ahead();
        let mut likely = 0;
        if self.demand.is_known(now) {
            let leased = self.usable_hits(now).saturating_add(requested);
            likely = self.demand.in_the_next(self.horizon(at_least, now), now).saturating_sub(leased);
            let share = self.share(now).max(returned);
            likely = likely.min(if self.instances > 1 { share.saturating_sub(leased) } else { share });
            // so few save hardly a call, and are missing elsewhere; tokens that return to a bucket are rarely more
            let least = if has_bucket(&self.target.tiers) { 2 } else { MIN_AHEAD };
            likely = if self.instances > 1 && likely < least { 0 } else { likely };
        }
        let kept = if needed > 0 { self.kept_ahead(now).saturating_sub(requested) } else { 0 };
        likely.saturating_sub(needed).max(kept).min(self.most_ahead(needed, now))
    }

    /// Returns the most hits that one of several instances may lease ahead. A bucket that is full again before such hits are used
    /// would admit them beyond its burst, so all instances together must lack more than flows back meanwhile.
    fn most_ahead(&self, needed: u64, now: Timestamp) -> u64 {
        if self.instances <= 1 {
            return u64::MAX;
        }
        let leased = self.leased_hits();
        let buckets = self.estimate.iter().zip(&self.target.tiers).filter_map(|(state, tier)| {
            let Algorithm::TokenBucket(bucket) = tier.algorithm else { return None };
            let left = u64::from(state.availability(tier, now).remaining);
            let lacks = u64::from(bucket.burst).saturating_sub(left).saturating_add(needed);
            let flows_back = u64::from(tier.requests) / 20 + 1;
            Some(lacks.saturating_sub(flows_back) / u64::from(self.instances))
        });
        buckets.min().map_or(u64::MAX, |most| most.saturating_sub(leased))
    }

    /// Records that `hits` were asked for: as many as the limit could admit at most.
    pub(in super::super) fn record_demand(&mut self, hits: Hits, now: Timestamp) {
        self.demand.record(hits.0.min(capacity(&self.target.tiers)), now);
    }

    /// Returns how long a lease should last: a quarter of the window's remaining time, or as long as it may be used or is kept.
    fn horizon(&self, at_least: Period, now: Timestamp) -> Period {
        let times = self.target.tiers.iter().map(|tier| match tier.algorithm {
            Algorithm::FixedWindow => {
                let rest = now.window_end(tier.period).since(now);
                let quarter = Period::from_nanos(rest.as_nanos() / 4);
                // more would be returned before it is used
                let most = if self.is_shared_count() { LONGEST_IDLE_HOLD } else { Period::MAX };
                quarter.min(most).max(at_least)
            }
            _ => hold(std::slice::from_ref(tier)),
        });
        times.min().unwrap_or_default()
    }

    /// Returns how many of the remaining hits one instance may hold: an equal share. In a fixed window half of that, since
    /// hits that one instance still holds when it ends are lost to the others.
    fn share(&self, now: Timestamp) -> u64 {
        let parts = u64::from(self.instances) * if flows(&self.target.tiers) { 1 } else { 2 };
        (self.remaining(now) / parts).max(1)
    }

    /// Applies the reply to a request for a lease. `round_trip` is the time that the store takes to reply.
    pub(in super::super) fn apply_grant(&mut self, reply: &Reply, round_trip: Period, now: Timestamp) {
        let fetch = self.fetch_mut();
        let (want, hold, number) = (fetch.want, fetch.hold, fetch.number);
        fetch.is_exact = reply.matched;
        fetch.last_reply = if reply.granted >= want { LeaseReply::Full } else { LeaseReply::Partial };
        self.hold_granted(reply.granted, reply, hold, now);
        self.keep_granted(reply.granted, now);
        // a later reply was applied, which counts what is granted as if others had it
        self.wants_read |= !self.apply_reply_to(reply, number, now) && reply.granted > 0;
        self.pause_if_scarce(round_trip, now);
    }

    /// Holds `hits` of those that `reply` grants, which must be used within `hold`. To be called before the reply is applied to the
    /// estimate, which does not count them.
    pub(super) fn hold_granted(&mut self, hits: u64, reply: &Reply, hold: Period, now: Timestamp) {
        if hits == 0 || reply.counters.len() != self.target.tiers.len() {
            return;
        }
        let ends = reply.counters.iter().map(|state| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold),
        });
        let until = ends.min().unwrap_or(now);
        self.rare.add_lease(HeldLease::new(Hits(hits), now, until));
        let idle_at = reply.counters.iter().map(CounterState::idle_at).max();
        self.granted_until = self.granted_until.max(IdleAt::of(idle_at.unwrap_or_default()));
    }

    /// Has the store keep `hits` that it has just granted: those that were given back before the reply must not take them along.
    pub(super) fn keep_granted(&mut self, hits: u64, now: Timestamp) {
        if hits > 0 {
            self.note_admission();
        }
        for delta in self.unacknowledged.pending_mut() {
            if !delta.change.is_addition() && same_windows(&self.target.tiers, delta.at, now) {
                delta.change.floor = delta.change.floor.saturating_add(hits);
            }
        }
    }

    /// Applies the reply to a fetch that only reported.
    pub(in super::super) fn apply_fetched_report(&mut self, reply: &Reply, now: Timestamp) {
        self.apply_flush_reply(reply, now);
        self.fetch_mut().last_reply = LeaseReply::Full;
        if self.leases().is_empty() {
            // the store knows which of the granted hits were used, or the estimate does not any more
            self.granted_until = IdleAt::default();
        }
    }

    /// Denies all hits that are not leased until another call is worthwhile.
    fn pause_if_scarce(&mut self, round_trip: Period, now: Timestamp) {
        self.denied_until = match self.scarcity_pause(now) {
            // a call that is sent a little earlier has its reply when the pause ends, so that no decision waits for it
            Some(pause) => {
                let lead = self.demand.time_for(3, now).as_nanos().saturating_add(2 * round_trip.as_nanos());
                let lead = lead.min(pause.as_nanos() / 2);
                self.fetch_mut().probe_at = now.after(Period::from_nanos(pause.as_nanos() - lead));
                now.after(pause)
            }
            None => Timestamp::default(),
        };
    }

    /// Denies all hits until one fits, if none does now.
    pub(in super::super) fn deny_while_empty(&mut self, now: Timestamp) {
        let wait = self.wait_for(1, now);
        self.denied_until = if wait == Period::default() { Timestamp::default() } else { now.after(wait) };
    }

    /// Returns how long to send no call although tokens return to a bucket. Under steady overload every one of several instances
    /// would request each single token as soon as it is available, at the cost of a call. The pause lasts until there is enough
    /// for every instance, and loses nothing, since the bucket does not overflow meanwhile. There is no pause if there is
    /// enough already, or no overload.
    fn scarcity_pause(&mut self, now: Timestamp) -> Option<Period> {
        let tiers = &self.target.tiers;
        if self.instances <= 1 || !has_bucket(tiers) {
            return None;
        }
        let (hold, longest) = (hold(tiers), longest_pause(tiers));
        let usable = self.demand.in_the_next(hold, now);
        // 50 % more, because random arrivals are spread unevenly
        let all = usable.saturating_mul(u64::from(self.instances)).saturating_mul(3) / 2;
        let plenty = all.min(capacity(tiers) / 2).max(1);
        let wait = self.wait_for(plenty, now);
        // a scarcity begins only when the store has run out, or has less than one for each instance
        let is_empty = self.remaining(now) < u64::from(self.instances);
        let fetch = self.fetch_mut();
        let empty = fetch.last_reply == LeaseReply::Partial || is_empty;
        fetch.is_scarce = wait > Period::default() && (fetch.is_scarce || empty);
        let is_scarce = fetch.is_scarce;
        let pause = wait.min(longest);
        let worthwhile = self.demand.in_the_next(pause, now) >= MIN_PAUSE_HITS;
        (is_scarce && worthwhile).then_some(pause)
    }

    /// Returns the time until `hits` fit, if no others are taken.
    fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }

    /// Returns whether the pause is so nearly over that a lease should be requested for its end.
    pub(in super::super) fn is_pause_ending(&mut self, now: Timestamp) -> bool {
        let denied_until = self.denied_until;
        if now >= denied_until {
            return false;
        }
        let probe_at = &mut self.fetch_mut().probe_at;
        let is_ending = now >= *probe_at;
        if is_ending {
            *probe_at = denied_until;
        }
        is_ending
    }

    /// Notes that the store has admitted hits: when it rejects the next ones, the first look for returned hits comes soon.
    pub(in super::super) fn note_admission(&mut self) {
        if let Some(fetch) = self.existing_fetch_mut() {
            fetch.probe_after = Period::default();
        }
    }

    /// Wishes to know the store's count from time to time while this instance rejects hits, because another one may have given
    /// some back. The time between two looks doubles.
    pub(in super::super) fn look_for_returned(&mut self, now: Timestamp) {
        if self.instances <= 1 {
            return;
        }
        let first = FIRST_PROBE.max(self.schedule.interval());
        let fetch = self.fetch_mut();
        if fetch.probe_after == Period::default() {
            fetch.probe_after = first;
            fetch.probe_at = now.after(first);
        } else if now >= fetch.probe_at {
            fetch.probe_after = Period::from_nanos(fetch.probe_after.as_nanos().saturating_mul(2));
            fetch.probe_at = now.after(fetch.probe_after);
            self.wants_read = true;
        }
    }
}
