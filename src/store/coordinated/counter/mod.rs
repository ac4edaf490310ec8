//! One local counter: this instance's copy of the counters of one target. Pure: it has no clock, no store and no lock.
//!
//! The *estimate* is the last reply of the shared store plus all hits counted here since. Hits counted here that the store
//! has not been sent yet are *pending*; they belong to the instant at which they were counted, since hits of one window must
//! not be counted in the next. Hits that the store granted in advance are a *lease*.

mod burst;
mod counting;
mod demand;
mod fetch;
mod leases;
mod pace;
mod pending;
mod place;
mod records;
mod reservations;
mod schedule;
mod tiers;
mod urgency;
mod usage;

use std::sync::Arc;

use smallvec::SmallVec;

use self::{
    demand::Demand,
    fetch::LeaseFetch,
    records::{HeldLease, PendingDelta},
    schedule::FlushSchedule,
    tiers::capacity,
    usage::UsageRate,
};
pub(super) use self::{
    fetch::LeaseReply,
    place::{QueuePlace, Slot, Turn, Urgency},
    records::{Dropped, negative, positive},
};
use crate::{
    limit::{Coordination, LimitCheck, Period, RuleId, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// One state for each tier.
type States = SmallVec<[CounterState; 1]>;

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
    pending: SmallVec<[PendingDelta; 1]>,
    /// In order of their ends.
    leases: SmallVec<[HeldLease; 1]>,
    pub(super) demand: Demand,
    pub(super) schedule: FlushSchedule,
    /// Its place in the queue of the flush loop.
    pub(super) place: QueuePlace,
    /// The coordination mode: the requested one, or the nearest that the store supports for the target.
    pub(super) mode: Coordination,
    /// Whether `auto` has chosen `lease` because of a burst, rather than because of the limit.
    pub(super) is_in_burst: bool,
    /// The mode that the rule requests. None until `mode` has been chosen for the current target.
    pub(super) requested_mode: Option<Coordination>,
    /// Hits that were sent to the store, which has not replied yet.
    in_flight: Vec<PendingDelta>,
    /// The instant of the store's last reply, on its clock.
    last_reply_at: Option<Timestamp>,
    /// The hits that remained as of the last reply.
    remaining_at_reply: u64,
    /// The number of instances as of the last decision.
    instances: usize,
    /// The instant until which the store has denied all hits.
    denied_until: Timestamp,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    fallback: Option<Box<States>>,
    pub(super) fetch: LeaseFetch,
    usage: UsageRate,
    /// Hits that the store has applied since its last reply.
    acknowledged: u64,
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Creates an unused counter of `target`, which is flushed every `interval`.
    pub(super) fn new(target: Arc<Target>, interval: Period, now: Timestamp) -> Self {
        Self {
            estimate: target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect(),
            rule: None,
            last_check_at: now,
            pending: SmallVec::new(),
            leases: SmallVec::new(),
            demand: Demand::default(),
            schedule: FlushSchedule::new(interval),
            place: QueuePlace::default(),
            mode: Coordination::Local,
            is_in_burst: false,
            requested_mode: None,
            in_flight: Vec::new(),
            last_reply_at: None,
            remaining_at_reply: capacity(&target.tiers),
            instances: 1,
            denied_until: Timestamp::default(),
            fallback: None,
            fetch: LeaseFetch::default(),
            usage: UsageRate::new(now),
            acknowledged: 0,
            target,
        }
    }

    /// Adopts the rule of `check`, which has the same key, if the rule has changed. Returns whether it may have changed. Only
    /// the limits can differ, since the key includes everything else.
    pub(super) fn update_rule(&mut self, check: &LimitCheck<'_>) -> bool {
        let rule = check.rule.id();
        if rule.is_some() && rule == self.rule {
            return false;
        }
        if !self.target.is_of(check) {
            // hits that were granted under another limit must not be spent under this one
            self.denied_until = Timestamp::default();
            self.return_leases();
            self.requested_mode = None;
            self.target = Arc::new(Target::of(check));
        }
        self.rule = rule;
        true
    }

    /// Returns whether there are hits that the store has not applied yet.
    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.pending.is_empty() || !self.in_flight.is_empty()
    }

    /// Returns whether it can be removed without a loss, because the store has all of its hits: nothing is pending, leased or
    /// in flight.
    pub(super) fn is_settled(&self) -> bool {
        !self.has_unacknowledged() && self.leases.is_empty() && !self.fetch.is_running
    }

    /// Returns whether it can be removed because it is settled and no different from an unused counter.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.is_settled()
            && now >= self.denied_until
            && self.estimate.iter().all(|state| state.idle_at() <= now)
    }
}
