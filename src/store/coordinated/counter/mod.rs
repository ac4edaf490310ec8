//! One local counter: this instance's copy of the counters of one target. Pure: it has no clock, no store and no lock.
//!
//! The *estimate* is this instance's knowledge of the shared counters: the last reply of the shared store, unless nobody
//! else has changed them, plus all hits counted here since, at their true times, without hits that are leased and not
//! used. Every mode answers from it; the modes differ in when a hit may be admitted without asking the store. Hits counted
//! here that the store has not been sent yet are *pending*; they belong to the instant at which they were counted, since
//! hits of one window must not be counted in the next. Hits that the store granted in advance are a *lease*.

mod audit;
mod beside;
mod books;
mod counting;
mod decide;
mod demand;
mod exchange;
mod given_up;
mod heard;
mod leases;
mod pending;
mod place;
mod policy;
mod rare;
mod records;
mod reply;
mod reservations;
mod schedule;
mod states;
mod talk;
#[cfg(test)]
mod tests;
mod tiers;
mod unacknowledged;
mod urgency;
mod usage;

use std::sync::Arc;

use self::{
    books::Books,
    demand::Demand,
    heard::Heard,
    policy::{AutoPolicy, Leasing, ModeChoice, View},
    rare::Rare,
    schedule::FlushSchedule,
    states::States,
    tiers::{has_bucket, saturated},
    unacknowledged::Unacknowledged,
    usage::UsageRate,
};
pub(super) use self::{
    decide::{Decided, How},
    exchange::Sent,
    place::{QueuePlace, Slot, Turn, Urgency},
    policy::{Answer, Ask, Asks, Denial, Switch, auto},
    records::Dropped,
    reply::Applied,
    talk::{Group, Outcome, Tried, Tries, TryOutcome},
};
use crate::{
    limit::{
        Coordination, LimitCheck, Period, RuleId, Timestamp,
        algorithm::{CounterState, IdleAt},
        capacity,
    },
    store::remote::{Target, TierSet},
};

/// The time without a check after which a counter forgets how it got its last lease, and that it should read the
/// store's count.
const FORGOTTEN_AFTER: Period = Period::from_secs(1);

/// What the limit of a request replaces while the request is decided.
#[derive(Debug)]
pub(super) struct ReplacedLimit {
    target: Arc<Target>,
    denied_until: Timestamp,
}

/// The number of a counter among those of this process, modulo 2^32: a late reply is not applied to a counter that has
/// taken the place of the one it is for. A call ends long before the numbers repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(pub(super) u32);

/// This instance's copy of the counters of one target. Fields that every decision reads come first, in this order: with
/// thousands of counters most are not in the CPU cache, and every additional cache line costs a memory access.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LocalCounter {
    pub(super) target: Arc<Target>,
    /// The rule that the target was last compared with; none if the request carried its own limit.
    rule: Option<RuleId>,
    pub(super) last_check_at: Timestamp,
    estimate: States,
    /// What few counters have at a time, such as leases.
    rare: Rare,
    /// Hits that are pending, and hits that were sent to the store, which has not replied yet.
    unacknowledged: Unacknowledged,
    pub(super) demand: Demand,
    /// Its place in the queue of the flush loop.
    pub(super) place: QueuePlace,
    pub(super) choice: ModeChoice,
    /// Whether there is a counter of other tiers of the same entries that has some of these.
    pub(super) is_beside: bool,
    numbers: Numbers,
    heard: Heard,
    pub(super) plan: Plan,
    /// Of no size unless debug assertions are compiled.
    books: Books,
}

/// The numbers of the commands of a counter, modulo 2^32.
#[derive(Debug)]
struct Numbers {
    /// That of the last command.
    sent: u32,
    /// That of the counter.
    generation: Generation,
}

/// When the store is asked next, and what that depends on.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Plan {
    /// The instant until which the store has denied all hits.
    denied_until: Timestamp,
    pub(super) schedule: FlushSchedule,
    /// The hits that remained as of the last reply.
    remaining_at_reply: u32,
    /// Hits that the store has applied since its last reply, up to 2^32 - 1.
    acknowledged: u32,
    usage: UsageRate,
    /// The number of instances when it was found last, up to 65,535.
    instances: u16,
    /// The number of replies that `usage` was measured from while that matters.
    measured_replies: u8,
    /// Whether to ask the store for its count with the next flush, although there may be nothing to report.
    wants_read: bool,
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Creates an unused counter of `target`, for which nobody has asked yet, which is flushed every `interval`. No other
    /// counter has its `generation`.
    pub(super) fn new(target: Arc<Target>, interval: Period, generation: Generation, now: Timestamp) -> Self {
        Self {
            estimate: target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect(),
            rule: None,
            last_check_at: Timestamp::default(),
            rare: Rare::default(),
            unacknowledged: Unacknowledged::default(),
            demand: Demand::default(),
            place: QueuePlace::default(),
            choice: ModeChoice { mode: Coordination::Local, is_in_burst: false, requested_mode: None },
            is_beside: false,
            numbers: Numbers { sent: 0, generation },
            heard: Heard::default(),
            plan: Plan {
                denied_until: Timestamp::default(),
                schedule: FlushSchedule::new(interval),
                remaining_at_reply: saturated(capacity(&target.tiers)),
                acknowledged: 0,
                usage: UsageRate::new(now),
                instances: 1,
                measured_replies: 0,
                wants_read: false,
            },
            books: Books::default(),
            target,
        }
    }

    /// Returns its number.
    pub(super) const fn generation(&self) -> Generation {
        self.numbers.generation
    }

    /// Adopts the rule of `check`, which has the same key, if the rule has changed. Returns whether it may have
    /// changed. Only the numbers of the limits can differ, since the key includes everything else. A limit that comes
    /// with a request is no rule. A rule from before a reload does not come back: requests that still have it are
    /// decided under the one that has replaced it.
    pub(super) fn update_rule(&mut self, check: &LimitCheck<'_>, now: Timestamp) -> bool {
        let Some(rule) = check.rule.id() else { return false };
        if self.rule.is_some_and(|own| rule == own || rule.is_older_than(own)) {
            return false;
        }
        if !self.target.is_of(check) {
            self.plan.denied_until = Timestamp::default();
            self.choice.requested_mode = None;
            if has_bucket(&self.target.tiers) {
                // one that holds less forgets some of the hits, and it would not be known whether leased ones are among
                // them
                self.return_leases();
            }
            self.target = Arc::new(Target::of(check));
            self.plan_flush(now);
        }
        self.rule = Some(rule);
        true
    }

    /// Applies the limit that comes with the request of `check`, if it is another one than that of the counter. Returns
    /// the counter's, which has to be restored.
    pub(super) fn use_limit_of(&mut self, check: &LimitCheck<'_>) -> Option<ReplacedLimit> {
        if check.rule.id().is_some() || self.target.is_of(check) {
            return None;
        }
        let target = Arc::new(Target { tiers: check.shared_tiers(), ..(*self.target).clone() });
        let target = std::mem::replace(&mut self.target, target);
        Some(ReplacedLimit { target, denied_until: std::mem::take(&mut self.plan.denied_until) })
    }

    /// Restores the limit that [`LocalCounter::use_limit_of`] has returned.
    pub(super) fn restore_limit(&mut self, replaced: ReplacedLimit) {
        self.target = replaced.target;
        self.plan.denied_until = replaced.denied_until;
    }

    /// Notes that a check arrives at `now`.
    pub(super) fn see_check(&mut self, now: Timestamp) {
        self.last_check_at = now;
        self.books.see(now);
    }

    /// Changes the coordination mode. Leases, which only `lease` has, are returned.
    pub(super) fn change_mode(&mut self, mode: Coordination) {
        if mode != self.choice.mode {
            // a pause of leases and the local cache of `strict` have different rules
            self.plan.denied_until = Timestamp::default();
            self.choice.mode = mode;
            self.return_leases();
        }
    }

    /// Returns the bytes of its name, which stays the same.
    pub(super) fn name_bytes(&self) -> usize {
        self.target.path.len()
    }

    /// Returns whether there are hits that the store has not applied yet.
    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Returns whether it can be removed without a loss, because the store has all of its hits: nothing is pending,
    /// leased or in flight.
    pub(super) fn is_settled(&self) -> bool {
        !self.has_unacknowledged()
            && self.leases().is_empty()
            && !self.has_tries()
            && !self.has_ledger_on_way()
            && self.given_up_hits() == 0
    }

    /// Requests a read of the store's count, if the last reply is older than `age`: a check with no hits, for example,
    /// reports nothing, so the store sends no reply.
    pub(super) fn refresh(&mut self, age: Period, now: Timestamp) {
        self.plan.wants_read |= self.heard.last_reply_at.get().is_none_or(|last| now.since(last) >= age);
    }

    /// Returns whether it can be removed because it is settled and no different from an unused counter.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        // the estimate first: it decides most often, and is where the sweep, which visits every counter, has to read
        // anyway
        self.estimate.iter().all(|state| state.idle_at() <= now) && self.is_free(now)
    }

    /// Returns whether there is nothing that only the sweep would notice: nothing is pending, in flight, leased or
    /// requested.
    pub(super) fn is_quiet(&self) -> bool {
        self.rare.is_nothing() && self.unacknowledged.is_empty() && !self.plan.wants_read
    }

    /// Returns the estimate of the shared counters, one for each tier.
    pub(in super::super) fn estimated(&self) -> &[CounterState] {
        &self.estimate
    }

    /// Returns what policies see of it.
    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        View {
            target: &self.target,
            estimate: &self.estimate,
            demand: &self.demand,
            leases: self.leases(),
            unacknowledged: &self.unacknowledged,
            last_reply_at: self.heard.last_reply_at.get(),
            instances: self.plan.instances.into(),
            denied_until: self.plan.denied_until,
            last_check_at: self.last_check_at,
            sync_interval: self.plan.schedule.interval(),
        }
    }

    /// Returns what decides whether its mode changes under `auto`, as one of `instances`.
    pub(super) fn auto_policy(&self, instances: Option<usize>, round_trip: Period) -> AutoPolicy<'_> {
        AutoPolicy::new(self.view(), instances, round_trip)
    }

    /// Returns whether it is settled, and nothing but its estimate differs from an unused counter.
    fn is_free(&self, now: Timestamp) -> bool {
        self.is_settled()
            && now >= self.plan.denied_until
            // a reply is on its way
            && self.rare.talk().is_none()
            // the estimate knows which of the hits that the store counts were used
            && !self.has_grants(now)
            // a check without hits has just asked for the count
            && !(self.plan.wants_read && now.since(self.last_check_at) < FORGOTTEN_AFTER)
    }

    /// Returns what is known of leasing; none if nothing has to be known.
    fn leasing(&self) -> Option<&Leasing> {
        self.rare.more()?.leasing.as_deref()
    }

    /// As [`LocalCounter::leasing`]. Not for counters in other modes, for which it would take space.
    fn leasing_mut(&mut self) -> &mut Leasing {
        self.rare.make_more().leasing_mut()
    }

    /// Forgets the states of the time in which the store was unavailable.
    pub(super) fn end_fallback(&mut self) {
        if self.rare.more_mut().is_some_and(|more| more.fallback.take().is_some()) {
            self.rare.shrink();
        }
    }

    /// Returns whether the store counts granted hits at `now`, used or not.
    pub(super) fn has_grants(&self, now: Timestamp) -> bool {
        self.heard.granted_until.instant() > now
    }

    /// Frees what is of no use to a counter that has not been checked lately.
    pub(in super::super) fn shrink(&mut self, now: Timestamp) {
        if now.since(self.last_check_at) >= FORGOTTEN_AFTER {
            self.forget(now, Leasing::is_forgettable);
        }
    }

    /// Frees what was needed to lease hits, and to remember them, if that is not needed any more. Most keys have few
    /// hits, so most counters have no lease most of the time.
    pub(super) fn forget_leasing(&mut self, now: Timestamp) {
        self.forget(now, Leasing::is_over);
    }

    /// Notes that it is not known what the store counts besides the estimate.
    pub(super) fn lose_exactness(&mut self) {
        self.heard.exact = TierSet::default();
    }

    fn forget(&mut self, now: Timestamp, is_over: fn(&Leasing) -> bool) {
        if !self.has_grants(now) {
            self.heard.granted_until = IdleAt::default();
        }
        if let Some(more) = self.rare.more_mut() {
            more.leasing.take_if(|leasing| is_over(leasing));
            self.rare.shrink();
        }
    }
}
