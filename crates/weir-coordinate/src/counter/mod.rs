//! One local counter: this instance's copy of the counters of one target. Pure: it has no clock, no store and no lock.
//!
//! The *estimate* is this instance's knowledge of the shared counters: the last reply of the shared store, unless nobody
//! else has changed them, plus all hits counted here since, at their true times, without hits that are leased and not
//! used. Every mode answers from it; the modes differ in when a hit may be admitted without asking the store. Hits counted
//! here that the store has not been sent yet are *pending*; they belong to the instant at which they were counted, since
//! hits of one window must not be counted in the next. Hits that the store granted in advance are a *lease*.

pub(super) mod auto;
mod decide;
mod exchange;
mod leases;
mod ledger;
mod reply;
mod schedule;
#[cfg(test)]
mod tests;
mod traffic;

use std::sync::Arc;

use smallvec::SmallVec;

pub(super) use self::{
    auto::Switch,
    decide::{DecisionRequest, How, reservation},
    exchange::{FlushUrgency, Outbox, Sent},
    leases::LEASE_GRID,
    ledger::DroppedHits,
    traffic::{Group, PendingOutcome, Tries, TryKind, TryOutcome, TryVerdict},
};
use self::{
    ledger::Ledger,
    schedule::{Demand, FlushSchedule, UsageRate},
    traffic::Traffic,
};
use weir_limit::{
    Coordination, Hits, LimitCheck, Period, RuleId, Tier, Timestamp,
    algorithm::{CounterState, IdleAt},
    capacity,
};
use weir_store::remote::{Reply, Target, TierSet};

/// The time without a check after which a counter forgets its wish to read the store's count.
const FORGOTTEN_AFTER: Period = Period::from_secs(1);

/// The age of the last reply from which this instance looks for hits that others have given back, unless the sync
/// interval is longer.
const FIRST_LOOK: Period = Period::from_millis(250);

/// So often that age doubles.
const MOST_DOUBLINGS: u8 = 20;

/// One for each tier: most limits have one.
pub(crate) type CounterStates = SmallVec<[CounterState; 1]>;

/// The rule of a counter, and its mode.
#[derive(Debug)]
pub(super) struct ModeChoice {
    /// Whose limit the target has; none if it came with a request.
    rule: Option<RuleId>,
    /// The requested one, or the nearest that the store supports for the target.
    pub(super) mode: Coordination,
    /// Whether `auto` has chosen `lease` because of a burst.
    pub(super) is_in_burst: bool,
    /// None until `mode` has been chosen for the current target.
    pub(super) requested_mode: Option<Coordination>,
    /// Whether another counter of this instance shares some of the tiers: it counts as one more instance.
    pub(super) has_sibling: bool,
}

/// The number of a counter in this process, modulo 2^32: a late reply is not applied to a successor of its counter. A
/// call ends long before the numbers repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(pub(super) u32);

/// This instance's copy of the counters of one target. Fields that every decision reads come first, in this order: with
/// thousands of counters most are not in the CPU cache, and every additional cache line costs a memory access.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LocalCounter {
    pub(super) target: Arc<Target>,
    pub(super) choice: ModeChoice,
    pub(super) last_check_at: Timestamp,
    pub(super) estimate: CounterStates,
    pub(super) ledger: Ledger,
    pub(super) traffic: Traffic,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    fallback: Option<Box<CounterStates>>,
    pub(super) demand: Demand,
    numbers: Numbers,
    last_reply: LastReply,
    pub(super) plan: FlushPlan,
}

/// Numbers of commands, modulo 2^32.
#[derive(Debug)]
struct Numbers {
    /// That of the last command or try.
    sent: u32,
    /// That of the command whose reply was applied last.
    applied: u32,
    generation: Generation,
}

/// What the store's replies say besides its states.
#[derive(Debug, Default)]
struct LastReply {
    /// Sliding windows and buckets whose estimate has all that the store counted as of the last reply. While nobody
    /// else changes them, it is more exact than the store's state, which dates reported hits by the last of them.
    exact: TierSet,
    /// Whether it was about the present limit. After another one, the store may have forgotten what others gave back.
    is_of_limit: bool,
    /// The commands that it has not replied to.
    lost: u16,
    /// On the store's clock. The epoch before the first one.
    replied_at: Timestamp,
    /// The instant from which the store counts none of the granted hits, used or not.
    granted_until: IdleAt,
}

/// When the store is asked next, and what that depends on.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct FlushPlan {
    denied_until: Timestamp,
    pub(super) schedule: FlushSchedule,
    remaining_at_reply: u32,
    usage: UsageRate,
    instances: u16,
    /// How many milliseconds before the end of a pause the next lease is requested. Zero once it was.
    asks_before: u16,
    /// Whether the last reply carried its instant.
    is_reply_dated: bool,
    /// How often this instance has looked for hits that others have given back since it was granted or reported any.
    looks: u8,
    /// Whether a bucket has run out of hits, and has not had enough for all instances again since.
    is_scarce: bool,
    /// Whether the next flush reads the store's count, even if there is nothing to report.
    wants_read: bool,
}

// === impl LocalCounter ===

impl LocalCounter {
    pub(super) fn new(target: Arc<Target>, interval: Period, generation: Generation, now: Timestamp) -> Self {
        Self {
            estimate: target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect(),
            last_check_at: Timestamp::default(),
            ledger: Ledger::default(),
            traffic: Traffic::default(),
            fallback: None,
            demand: Demand::default(),
            choice: ModeChoice {
                rule: None,
                mode: Coordination::Local,
                is_in_burst: false,
                requested_mode: None,
                has_sibling: false,
            },
            numbers: Numbers { sent: 0, applied: 0, generation },
            last_reply: LastReply::default(),
            plan: FlushPlan {
                schedule: FlushSchedule::new(interval),
                remaining_at_reply: saturated(capacity(&target.tiers)),
                instances: 1,
                is_reply_dated: true,
                ..FlushPlan::default()
            },
            target,
        }
    }

    pub(super) const fn generation(&self) -> Generation {
        self.numbers.generation
    }

    /// Follows the limit of `check`, of a rule or of the request, unless its rule is older: after a reload, late requests
    /// do not bring the old rule back. Only the numbers of the limits can differ, since the key includes the rest.
    /// Returns whether it may have changed.
    pub(super) fn follow_limit(&mut self, check: &LimitCheck<'_>, now: Timestamp) -> bool {
        let rule = check.rule.id();
        let is_known = rule == self.choice.rule && (rule.is_some() || self.target.is_of(check));
        if is_known || rule.zip(self.choice.rule).is_some_and(|(rule, own)| rule.is_older_than(own)) {
            return false;
        }
        if !self.target.is_of(check) {
            self.plan.denied_until = Timestamp::default();
            self.choice.requested_mode = None;
            // they were granted by the other limit
            self.return_leases();
            let (path, over_limit_policy) = (self.target.path.clone(), check.over_limit_policy());
            self.target = Arc::new(Target { path, tiers: check.shared_tiers(), over_limit_policy });
            self.last_reply.is_of_limit = false;
            self.plan_flush(now);
        }
        self.choice.rule = rule;
        true
    }

    /// Returns whether `target` has the limit that the counter follows now.
    pub(super) fn serves(&self, target: &Arc<Target>) -> bool {
        Arc::ptr_eq(target, &self.target)
    }

    /// Begins with what `other` knows of tiers that both have. From now on each is as another instance to the other.
    pub(super) fn begin_as_sibling(&mut self, other: &mut Self) {
        if !self.target.shares_counters(&other.target) {
            return;
        }
        other.return_leases();
        (self.choice.has_sibling, other.choice.has_sibling) = (true, true);
        self.know_as(other);
    }

    /// Takes over what its sibling `other` knows, which goes, if that is more recent. What was counted here and `other`
    /// has not heard of must not be forgotten.
    pub(super) fn outlive(&mut self, other: &Self) {
        let is_older = self.last_reply.replied_at < other.last_reply.replied_at;
        if is_older && self.is_settled() && self.target.shares_counters(&other.target) {
            self.lose_exactness();
            self.know_as(other);
        }
    }

    fn know_as(&mut self, other: &Self) {
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter_mut()) {
            let mut known = other.target.tiers.iter().zip(other.estimate.iter());
            if let Some((_, known)) = known.find(|(its, _)| its.shares_counter(tier)) {
                state.clone_from(known);
            }
        }
    }

    /// The store has cleared its counters.
    pub(super) fn begin_anew(&mut self, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
            *state = CounterState::unused(tier, now);
        }
        self.lose_exactness();
        (self.fallback, self.last_reply.granted_until) = (None, IdleAt::default());
        self.plan.denied_until = Timestamp::default();
        self.choice.requested_mode = None;
        self.plan_flush(now);
    }

    /// Leases and pending hits are not reported.
    pub(super) fn drop_unreported(&mut self) -> DroppedHits {
        self.ledger.drop_unreported()
    }

    pub(super) fn change_mode(&mut self, mode: Coordination) {
        if mode != self.choice.mode {
            // a pause of leases and the local cache of `strict` have different rules
            self.plan.denied_until = Timestamp::default();
            self.choice.mode = mode;
            self.return_leases();
        }
    }

    /// Never changes: the table subtracts it when the counter is removed.
    pub(super) fn name_bytes(&self) -> usize {
        self.target.path.len()
    }

    /// Returns whether the counter can be removed without a loss, because the store has all of its hits.
    pub(super) fn is_settled(&self) -> bool {
        self.ledger.is_empty()
            && self.traffic.tries.is_empty()
            && !self.has_ledger_on_way()
            && self.traffic.given_up_hits() == 0
    }

    /// For checks that report nothing: the next flush reads the store's count, if the last reply is older than `age`.
    pub(super) fn refresh(&mut self, age: Period, now: Timestamp) {
        self.plan.wants_read |= self.is_outdated(age, now);
    }

    /// For rejections by what the store has said: others may have given hits back. Looks for them in doubling pauses.
    pub(super) fn look_for_returned(&mut self, now: Timestamp) {
        let pause =
            FIRST_LOOK.max(self.plan.schedule.interval()) * (1 << self.plan.looks.min(MOST_DOUBLINGS));
        if !self.is_alone() && !self.plan.wants_read && self.is_outdated(pause, now) {
            self.plan.wants_read = true;
            self.plan.looks = self.plan.looks.saturating_add(1);
        }
    }

    fn is_outdated(&self, age: Period, now: Timestamp) -> bool {
        self.last_reply.last_reply_at().is_none_or(|last| now.since(last) >= age)
    }

    /// Returns whether it is no different from an unused counter, so that it can be removed.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        // the estimate first: it decides most often, and the sweep, which visits every counter, reads it anyway
        self.estimate.iter().all(|state| state.idle_at() <= now)
            && self.is_settled()
            && now >= self.plan.denied_until
            // a reply is on its way
            && self.traffic.is_none()
            // the estimate knows which of the hits that the store counts were used
            && !self.has_granted_hits(now)
            // a check without hits has just asked for the count
            && !(self.plan.wants_read && now.since(self.last_check_at) < FORGOTTEN_AFTER)
    }

    /// Returns whether the sweep has nothing to do for it: nothing is pending, in flight, leased or requested.
    pub(super) fn is_quiet(&self) -> bool {
        self.ledger.is_empty() && self.traffic.is_none() && self.fallback.is_none() && !self.plan.wants_read
    }

    #[inline]
    pub(super) const fn is_alone(&self) -> bool {
        self.plan.instances <= 1
    }

    /// Returns whether the store counts granted hits at `now`, used or not.
    pub(super) fn has_granted_hits(&self, now: Timestamp) -> bool {
        self.last_reply.granted_until.instant() > now
    }

    pub(super) fn lose_exactness(&mut self) {
        self.last_reply.exact = TierSet::default();
    }

    /// Tiers whose estimate stays: nobody else has changed them since it was exact, or the store did not have them.
    const fn kept_in(&self, reply: &Reply) -> TierSet {
        let own = self.last_reply.exact.and(reply.own);
        if self.is_alone() || self.last_reply.is_of_limit { own.or(reply.missing) } else { own }
    }

    /// Returns whether all sliding windows and buckets are among `tiers`.
    fn has_all_flowing(&self, tiers: TierSet) -> bool {
        let mut all = self.target.tiers.iter().enumerate();
        all.all(|(i, tier)| tier.has_windows() || tiers.contains(i))
    }
}

// === impl LastReply ===

impl LastReply {
    fn last_reply_at(&self) -> Option<Timestamp> {
        (self.replied_at > Timestamp::default()).then_some(self.replied_at)
    }
}

pub(super) fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn remaining(tiers: &[Tier], states: &[CounterState], now: Timestamp) -> u64 {
    let left = states.iter().zip(tiers).map(|(state, tier)| state.availability(tier, now).remaining.into());
    left.min().unwrap_or_default()
}

#[inline]
pub(super) fn fits(tiers: &[Tier], states: &[CounterState], hits: Hits, now: Timestamp) -> bool {
    tiers.iter().zip(states).all(|(tier, state)| state.probe(tier, now, hits).fits)
}

/// Returns whether hits become available again gradually, rather than with the next window.
pub(super) fn flows(tiers: &[Tier]) -> bool {
    !tiers.iter().all(Tier::has_windows)
}

pub(super) fn is_mixed(tiers: &[Tier]) -> bool {
    flows(tiers) && tiers.iter().any(Tier::has_windows)
}

pub(super) fn has_bucket(tiers: &[Tier]) -> bool {
    tiers.iter().any(Tier::refills)
}

/// The holds of one of several instances in the time in which a bucket receives its requests.
const BUCKET_HOLDS: u32 = 20;

/// How long a lease may be used if no window ends it. A sliding window counts leased hits as if used at the end of it.
/// The estimate of an instance that `is_alone` is exact: the lease only says what another one would see.
pub(super) fn hold(tiers: &[Tier], is_alone: bool) -> Period {
    let holds = tiers.iter().filter(|tier| !tier.has_windows()).map(|tier| match tier.refills() {
        _ if is_alone => tier.period / 2,
        false => tier.period / 100,
        true => tier.period / u64::from(BUCKET_HOLDS),
    });
    let longest = Period::from_secs(if is_alone { 30 } else { 1 });
    holds.min().unwrap_or_default().clamp(Period::from_millis(1), longest)
}

/// Returns how long no call is sent at most although tokens return to a bucket: two holds.
pub(super) fn longest_pause(tiers: &[Tier]) -> Period {
    hold(tiers, false) * 2
}

pub(super) fn same_windows(tiers: &[Tier], a: Timestamp, b: Timestamp) -> bool {
    tiers.iter().all(|tier| tier.is_one_window(a, b))
}

pub(super) fn has_ended(tier: &Tier, at: Timestamp, now: Timestamp) -> bool {
    // a full bucket has forgotten all hits, but only its state shows when it is full
    !tier.refills() && tier.window_end(at).unwrap_or_else(|| at.after(tier.period)) <= now
}

/// Returns whether no tier counts hits of `at` at `now`.
pub(super) fn all_ended(tiers: &[Tier], at: Timestamp, now: Timestamp) -> bool {
    tiers.iter().all(|tier| has_ended(tier, at, now))
}

/// Whether it is too late to return hits that were granted at `at`, to be used until `until`: others may have taken the
/// inflow, so that a bucket would exceed its burst. An instance that `is_alone`, whose estimate of a bucket is exact,
/// still has to return those of fixed windows beside it. Hits that were for use at once are no lease: what a request has
/// reserved for its cost goes back to a bucket whenever the cost is known.
pub(super) fn has_flowed_back(
    tiers: &[Tier],
    is_alone: bool,
    at: Timestamp,
    until: Timestamp,
    now: Timestamp,
) -> bool {
    let is_late = until > at && now >= at.after(hold(tiers, false)).max(until);
    has_bucket(tiers) && is_late && !(is_alone && is_mixed(tiers))
}

/// `hits` must be the last that were counted. Windows that have begun since `at` stay.
pub(super) fn take_off(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        state.put_back(tier, at, at, hits);
    }
}

pub(super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

pub(super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}
