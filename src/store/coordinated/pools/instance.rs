//! One pool at this instance, without I/O and clock: what the store has counted as of the last table, and what has
//! happened here since.
//!
//! Under `lease` and `strict` the store grants hits to one member at a time, in the member's tier and in the pool's
//! together; nothing of the pool lies at an instance where no member has asked. Under `interval` this instance decides
//! by the last table and its own hits. Shares are computed outside of the lock, from tables that all instances read at
//! each step.

use std::{collections::HashMap, sync::Arc};

use tokio::{sync::oneshot, task::AbortHandle};

use super::{
    alone::Alone,
    member::{LocalMember, TryReply, Unreported},
};
use crate::{
    limit::{
        Coordination, LimitCheck, Period, Timestamp,
        share::{
            Anonymous, Computation, MAX_WEIGHTS, MemberState, OTHER, Pool, PoolDecision, PoolRule, Shares,
            Sharing,
        },
    },
    store::{
        coordinated::metrics::HitCounts,
        pool_command::{PoolCommand, PoolMember, PoolOp},
        pools::Pooled,
        remote::Target,
    },
};

/// A pool at this instance.
#[derive(Debug)]
pub(super) struct InstancePool {
    pub(super) target: Arc<Target>,
    pub(super) sharing: Arc<Sharing>,
    pub(super) mode: Coordination,
    /// The pool as of the last table, or at the start of the cycle as far as it was known before.
    pub(super) view: Arc<Pool>,
    /// The pool at the start of the next cycle, as of the table of the last step.
    pub(super) next: Option<Arc<Pool>>,
    pub(super) cycle: u64,
    /// Where the last step begins and ends, and its cycle ends, so that not every request computes it.
    span: [Timestamp; 3],
    /// The number of tables so far.
    pub(super) tables: u64,
    /// What the view is of.
    pub(super) known: Known,
    /// The hits granted to all in this cycle, as of the last reply.
    pub(super) total: u32,
    /// The same in the last cycle.
    pub(super) used: u32,
    pub(super) members: HashMap<Box<str>, LocalMember, foldhash::fast::RandomState>,
    /// Places of the last table that are not named, and of members here that it does not have.
    pub(super) taken: u32,
    /// The hits of the last cycle that were asked for and not reported.
    pub(super) late: Vec<(PoolMember, u32)>,
    /// The task that exchanges tables, while there is something to exchange.
    pub(super) exchanges: Option<AbortHandle>,
    /// Whether hits came since the last exchange.
    pub(super) has_news: bool,
    /// The pool without the store, and the last cycle in which there was none.
    pub(super) alone: Option<Alone>,
    pub(super) away_in: Option<u64>,
    /// Counts what could not be told to the store.
    pub(super) hits: Arc<HitCounts>,
}

/// How well the pool is known in this cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// There was no table yet: shares are those that were expected in the last cycle.
    Guess,
    /// There was a table, but the demand of the last cycle may still change.
    Table,
    /// All demand of the last cycle is known.
    Demand,
}

/// How a request is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) value: &'a str,
    pub(super) hits: u32,
    pub(super) mode: Coordination,
    /// Whether the store does not reply.
    pub(super) is_away: bool,
    /// Whether a cycle in which the store did not reply ends without it: each instance has its part of what was left
    /// then.
    pub(super) stays_away: bool,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    Decided(PoolDecision, By),
    /// The store has to decide, and `fetch` names the member to send a command for, if none is on its way.
    Wait {
        reply: oneshot::Receiver<TryReply>,
        fetch: Option<Box<str>>,
    },
    /// The store does not reply.
    Away,
}

/// Who has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Hits that this instance holds.
    Lease,
    /// An earlier rejection of the store.
    Denial,
    /// This instance's own count.
    Count,
}

impl Pooled for InstancePool {
    const SIZE: usize = 8;

    fn members(&self) -> usize {
        self.members.len().max(self.view.members().len())
    }

    fn usage(&self) -> (u32, u32) {
        (self.used, self.view.usage().1)
    }

    fn is_due(&self) -> bool {
        self.alone.as_ref().map_or_else(|| self.view.is_due(), Alone::is_due)
    }

    fn begin_shares(&mut self) -> Option<Computation> {
        if !self.is_due() {
            return None;
        }
        let (capacity, cycle) = (self.target.tiers[0].requests, self.target.tiers[0].period);
        match &mut self.alone {
            Some(alone) => alone.begin_shares(cycle, &self.sharing),
            None => Arc::make_mut(&mut self.view).begin_shares(capacity, cycle, &self.sharing),
        }
    }

    fn end(&mut self) {
        if let Some(exchanges) = self.exchanges.take() {
            exchanges.abort();
        }
        self.end_cycle(false);
    }

    fn install(&mut self, shares: Shares) {
        let left = match &mut self.alone {
            Some(alone) => alone.install(shares),
            None => Some(shares),
        };
        // a table may have brought others meanwhile
        if let Some(shares) = left.filter(|shares| self.view.has_begun(shares)) {
            Arc::make_mut(&mut self.view).install(shares);
        }
    }

    fn report(&self) -> Vec<(Arc<str>, MemberState, [u64; 2])> {
        let members = self.view.copied().into_iter();
        members
            .map(|(name, member)| {
                let totals = self.members.get(&*name).map_or([0; 2], |member| member.totals);
                (name, member, totals)
            })
            .collect()
    }
}

/// Returns the rule of a pool.
pub(super) fn rule<'a>(target: &Target, sharing: &'a Sharing) -> PoolRule<'a> {
    let tier = &target.tiers[0];
    PoolRule { capacity: tier.requests, cycle: tier.period, sharing }
}

// === impl InstancePool ===

impl InstancePool {
    pub(super) fn new(target: Target, sharing: Arc<Sharing>, hits: Arc<HitCounts>) -> Self {
        Self {
            target: Arc::new(target),
            sharing,
            mode: Coordination::Lease,
            view: Arc::new(Pool::beside()),
            next: None,
            cycle: 0,
            span: [Timestamp::default(); 3],
            tables: 0,
            known: Known::Guess,
            total: 0,
            used: 0,
            members: HashMap::default(),
            taken: 0,
            late: Vec::new(),
            exchanges: None,
            has_news: false,
            alone: None,
            away_in: None,
            hits,
        }
    }

    /// Follows the rule of `check`, which a reload may have changed. Shares follow with the next table.
    pub(super) fn follow(&mut self, check: &LimitCheck<'_>, sharing: &Arc<Sharing>, mode: Coordination) {
        self.mode = mode;
        if !Arc::ptr_eq(sharing, &self.sharing) {
            self.sharing = Arc::clone(sharing);
        }
        if check.tiers()[0].requests != self.target.tiers[0].requests {
            let tiers = [check.tiers()[0].clone()].into();
            self.target = Arc::new(Target { tiers, ..(*self.target).clone() });
        }
    }

    /// Returns the instant from which it is no different from a new one.
    pub(super) fn idle_at(&self) -> Timestamp {
        let cycles = self.cycle.saturating_add(u64::from(self.sharing.forget_after) + 1);
        Timestamp::from_nanos(cycles.saturating_mul(self.period().as_nanos()))
    }

    pub(super) const fn mode(&self) -> Coordination {
        self.mode
    }

    pub(super) fn period(&self) -> Period {
        self.target.tiers[0].period
    }

    /// Returns the instants at which the step of `at` ends, and its cycle.
    pub(super) fn ends(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let [from, until, end] = self.span;
        if from <= at && at < until {
            return (until, end);
        }
        let [_, until, end] = rule(&self.target, &self.sharing).span(at);
        (until, end)
    }

    /// Decides `asked` at the instant `at` on the store's clock, or has the store decide.
    pub(super) fn decide(&mut self, asked: &Asked<'_>, at: Timestamp) -> Answer {
        self.roll(at);
        let Asked { value, hits, mode, is_away, stays_away, .. } = *asked;
        if is_away {
            self.away_in = Some(self.cycle);
        }
        let reset = self.ends(at).1.since(at);
        if value.is_empty() && self.sharing.anonymous != Anonymous::Share {
            let is_admitted = self.sharing.anonymous == Anonymous::Allow;
            let decision = PoolDecision { is_admitted, share: 0, before: 0, remaining: 0, reset };
            return Answer::Decided(decision, By::Count);
        }
        let name = self.ask(value, hits);
        let is_away = is_away || stays_away && self.is_away();
        let Some(member) = self.members.get_mut(name) else { unreachable!("it has just been counted") };
        if member.held >= hits {
            member.held -= hits;
            member.is_used = true;
            member.count(hits, true);
            return Answer::Decided(self.status(name, hits, true, at), By::Lease);
        }
        if is_away {
            return Answer::Away;
        }
        if mode == Coordination::Interval {
            return Answer::Decided(self.decide_by_count(name, hits, reset), By::Count);
        }
        if member.is_denied(hits, at) {
            member.count(hits, false);
            return Answer::Decided(self.status(name, hits, false, at), By::Denial);
        }
        let reply = member.wait(hits);
        let fetch = (!std::mem::replace(&mut member.is_fetching, true)).then(|| name.into());
        Answer::Wait { reply, fetch }
    }

    /// Counts `hits` of `value` as demand, and returns the name of its place.
    pub(super) fn ask<'a>(&mut self, value: &'a str, hits: u32) -> &'a str {
        self.has_news = true;
        if let Some(member) = self.members.get_mut(value) {
            member.ask(hits);
            return value;
        }
        let name = self.place(value);
        if !self.members.contains_key(name) {
            self.taken += u32::from(!self.view.has(name) && !self.is_named(name));
            self.members.insert(name.into(), LocalMember::default());
        }
        if let Some(member) = self.members.get_mut(name) {
            member.ask(hits);
        }
        name
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        name == OTHER || self.sharing.weights.contains_key(name)
    }

    /// Returns the name of the member that `value` is, or is part of.
    pub(super) fn place<'a>(&self, value: &'a str) -> &'a str {
        if self.members.contains_key(value) || self.view.has(value) || self.is_named(value) {
            return value;
        }
        // the default of everybody is one hit at least
        let weights = self.view.weights() - self.view.unnamed() + self.taken;
        let has_place = self.taken + 1 < self.sharing.places()
            && weights < self.target.tiers[0].requests.min(MAX_WEIGHTS);
        if has_place { value } else { OTHER }
    }

    /// Decides by the last table and what happened here since.
    fn decide_by_count(&mut self, name: &str, hits: u32, reset: Period) -> PoolDecision {
        let rule = rule(&self.target, &self.sharing);
        let decision = Arc::make_mut(&mut self.view).decide_in_step(&rule, name, hits, true, reset);
        self.total = self.view.granted();
        if let Some(member) = self.members.get_mut(name) {
            member.count(hits, decision.is_admitted);
            if decision.is_admitted {
                member.unreported.granted += i64::from(hits);
            }
        }
        decision
    }

    /// Returns how the member of `value` stands, without counting.
    pub(super) fn look(&mut self, value: &str, at: Timestamp) -> PoolDecision {
        self.roll(at);
        let name = self.place(value);
        let status = self.status(name, 0, true, at);
        PoolDecision { is_admitted: status.remaining > 0, ..status }
    }

    /// Returns the decision about `hits` of the member `name`, which are counted if they are admitted.
    pub(super) fn status(&self, name: &str, hits: u32, is_admitted: bool, at: Timestamp) -> PoolDecision {
        let rule = rule(&self.target, &self.sharing);
        let known = self.view.member(name);
        let local = self.members.get(name);
        let held = local.map_or(0, |local| local.held);
        let granted = local.and_then(|local| local.granted.filter(|(tables, _)| *tables == self.tables));
        let granted = granted.map_or_else(|| known.map_or(0, |known| known.granted), |(_, granted)| granted);
        let limit = known.map_or_else(|| self.view.terms(&rule, name).limit, |known| known.allowance);
        let share = limit.max(granted);
        let used = granted.saturating_sub(held);
        let before = if is_admitted { used.saturating_sub(hits) } else { used };
        let left = rule.capacity.saturating_sub(self.total);
        let remaining = (share - granted).min(left).saturating_add(held);
        let remaining = if is_admitted || hits == 0 { remaining } else { held };
        PoolDecision { is_admitted, share, before, remaining, reset: self.ends(at).1.since(at) }
    }

    pub(super) fn is_away(&self) -> bool {
        self.away_in.is_some_and(|away| away >= self.cycle)
    }

    /// Begins the cycle of `at`, if it has not begun.
    pub(super) fn roll(&mut self, at: Timestamp) {
        let [from, until, _] = self.span;
        if from <= at && at < until {
            return;
        }
        let rule = rule(&self.target, &self.sharing);
        let (cycle, span) = (rule.place(at).0, rule.span(at));
        self.span = span;
        self.roll_to(cycle);
    }

    pub(super) fn roll_to(&mut self, cycle: u64) {
        // a clock that steps back does not bring a cycle back
        if cycle > self.cycle {
            self.begin(cycle);
        }
    }

    /// Follows the store to the `cycle` that is open there, also back if its clock was set back: by that of this
    /// instance, which follows it, that cycle is over at `at`, too. The store has what was granted in it.
    pub(super) fn follow_store(&mut self, cycle: u64, at: Timestamp) {
        if rule(&self.target, &self.sharing).place(at).0 < self.cycle {
            self.begin(cycle);
        }
        self.roll_to(cycle);
    }

    fn begin(&mut self, cycle: u64) {
        let is_next = cycle == self.cycle + 1;
        self.end_cycle(is_next);
        let next = self.next.take().filter(|next| is_next && next.cycle() == Some(cycle));
        self.view = next.unwrap_or_else(|| {
            let mut turned = std::mem::take(&mut self.view);
            Arc::make_mut(&mut turned).turn(&rule(&self.target, &self.sharing), cycle);
            turned
        });
        let view = &self.view;
        self.members.retain(|name, member| !member.is_idle() || view.has(name));
        self.used = if is_next { self.total } else { 0 };
        (self.cycle, self.total, self.known) = (cycle, 0, Known::Guess);
        self.alone = None;
    }

    /// Ends the cycle: hits that are held are of no use any more, and what was asked for is reported only if the cycle
    /// that `is_next` to it begins.
    fn end_cycle(&mut self, is_next: bool) {
        self.hits.lost_demand.add(self.late.drain(..).map(|(_, asked)| u64::from(asked)).sum());
        for (name, member) in &mut self.members {
            let (Unreported { asked, granted }, held) = member.begin_cycle(!is_next);
            self.hits.stranded.add(held.into());
            self.hits.unreported.add(u64::try_from(granted).unwrap_or(0));
            if asked > 0 && is_next {
                self.late.push((PoolMember::new(name, &self.sharing), asked));
            } else {
                self.hits.lost_demand.add(asked.into());
            }
        }
    }

    pub(super) fn command(&self, op: PoolOp) -> PoolCommand {
        PoolCommand {
            target: Arc::clone(&self.target),
            cycle: self.cycle,
            // the default of everybody is one hit at least
            places: self.sharing.places().min(self.target.tiers[0].requests),
            forget_after: self.sharing.forget_after,
            op,
        }
    }
}
