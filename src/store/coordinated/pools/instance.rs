//! One pool at this instance, without I/O and clock: what the store has counted as of the last table, and what has
//! happened here since.
//!
//! Under `lease` and `strict` the store grants hits to one member at a time, in the member's tier and in the pool's
//! together; nothing of the pool lies at an instance where no member has asked. Under `interval` this instance decides
//! by the last table and its own hits. Shares are computed outside of the lock, from tables that all instances read at
//! each step.

use std::{collections::HashMap, sync::Arc};

use tokio::{sync::oneshot, task::AbortHandle};

use super::member::{LocalMember, TryReply, Unreported};
use crate::{
    limit::{
        Coordination, LimitCheck, OnStoreFailure, Period, Timestamp,
        share::{Anonymous, Computation, MemberState, OTHER, Pool, PoolDecision, PoolRule, Shares, Sharing},
    },
    store::{
        coordinated::{counter::How, metrics::HitCounts},
        pool_command::{PoolCommand, PoolMember, PoolOp, PoolReport},
        pools::Pooled,
        remote::Target,
    },
};

#[derive(Debug)]
pub(super) struct InstancePool {
    pub(super) target: Arc<Target>,
    pub(super) sharing: Arc<Sharing>,
    pub(super) mode: Coordination,
    /// As of the last table, with what was granted here since; at the start of a cycle, as far as it is known.
    pub(super) view: Arc<Pool>,
    /// Decides while the store does not reply, until the cycle ends: a copy in which a hit counts once for each
    /// instance, and their number, which is unknown when the store comes back.
    fallback: Option<(Box<Pool>, u32)>,
    pub(super) cycle: u64,
    /// Begin and end of the last step, and the end of its cycle, so that not every request computes them.
    span: [Timestamp; 3],
    /// Whether there was a table of this cycle. Until then shares are those that are expected from the last one.
    pub(super) has_table: bool,
    pub(super) members: HashMap<Box<str>, LocalMember, foldhash::fast::RandomState>,
    /// What was asked for in the last cycle and is not reported yet.
    pub(super) late: Vec<PoolReport>,
    /// The task that exchanges tables, while there is something to exchange.
    pub(super) exchanges: Option<AbortHandle>,
    /// Whether hits came since the last exchange.
    pub(super) has_news: bool,
    /// The last cycle in which the store did not reply.
    pub(super) away_in: Option<u64>,
    pub(super) hits: Arc<HitCounts>,
}

#[derive(Debug)]
pub(super) enum Answer {
    Decided(PoolDecision, How),
    /// `fetch` names the member to send a command for, if none is on its way.
    Wait {
        reply: oneshot::Receiver<TryReply>,
        fetch: Option<Box<str>>,
    },
    Away,
}

impl Pooled for InstancePool {
    const SIZE: usize = 8;

    fn members(&self) -> usize {
        self.members.len().max(self.view.members().len())
    }

    fn usage(&self) -> (u32, u32) {
        self.view.usage()
    }

    fn is_due(&self) -> bool {
        self.view.is_due()
    }

    fn begin_shares(&mut self) -> Option<Computation> {
        if !self.is_due() {
            return None;
        }
        let tier = &self.target.tiers[0];
        Arc::make_mut(&mut self.view).begin_shares(tier.requests, tier.period, &self.sharing)
    }

    fn install(&mut self, shares: Shares) {
        // a table may have brought others meanwhile
        if self.view.has_begun(&shares) {
            Arc::make_mut(&mut self.view).install(shares);
        }
    }

    fn end(&mut self) {
        if let Some(exchanges) = self.exchanges.take() {
            exchanges.abort();
        }
        self.end_cycle(false);
    }

    fn report(&self) -> Vec<(Arc<str>, MemberState, [u64; 2])> {
        let totals = |name: &str| self.members.get(name).map_or([0; 2], |member| member.totals);
        self.view
            .copied()
            .into_iter()
            .map(|(name, member)| (Arc::clone(&name), member, totals(&name)))
            .collect()
    }
}

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
            fallback: None,
            cycle: 0,
            span: [Timestamp::default(); 3],
            has_table: false,
            members: HashMap::default(),
            late: Vec::new(),
            exchanges: None,
            has_news: false,
            away_in: None,
            hits,
        }
    }

    /// A reload may have changed the rule. Shares follow with the next table.
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

    /// From then on it is no different from a new one.
    pub(super) fn idle_at(&self) -> Timestamp {
        let cycles = self.cycle.saturating_add(u64::from(self.sharing.forget_after) + 1);
        Timestamp::from_nanos(cycles.saturating_mul(self.period().as_nanos()))
    }

    pub(super) fn period(&self) -> Period {
        self.target.tiers[0].period
    }

    /// When the step of `at` ends, and its cycle.
    pub(super) fn ends(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let [from, until, end] = self.span;
        if from <= at && at < until {
            return (until, end);
        }
        let [_, until, end] = rule(&self.target, &self.sharing).span(at);
        (until, end)
    }

    /// `at` is on the store's clock. `is_away`: the store does not reply; `stays_away`: it is not asked again this
    /// cycle.
    pub(super) fn decide(
        &mut self,
        value: &str,
        hits: u32,
        (is_away, stays_away): (bool, bool),
        at: Timestamp,
    ) -> Answer {
        self.roll(at);
        if is_away {
            self.away_in = Some(self.cycle);
        }
        if self.is_anonymous(value) {
            let is_admitted = self.sharing.anonymous == Anonymous::Allow;
            let reset = self.ends(at).1.since(at);
            let decision = PoolDecision { is_admitted, share: 0, before: 0, remaining: 0, reset };
            return Answer::Decided(decision, How::Counted);
        }
        let name = self.ask(value, hits);
        let is_away = is_away || stays_away && self.away_in.is_some_and(|away| away >= self.cycle);
        let Some(member) = self.members.get_mut(name) else { unreachable!("it has just been counted") };
        if member.held >= hits {
            member.held -= hits;
            member.is_used = true;
            member.count(hits, true);
            return Answer::Decided(self.status(name, hits, true, at), How::Spent);
        }
        if is_away {
            return Answer::Away;
        }
        if self.mode == Coordination::Interval {
            // by the last table, and what happened here since; what was given back is nobody's
            let held = i64::from(std::mem::take(&mut member.held));
            member.unreported.granted -= held;
            Arc::make_mut(&mut self.view).add(name, 0, -held);
            let reset = self.ends(at).1.since(at);
            let rule = rule(&self.target, &self.sharing);
            let decision = Arc::make_mut(&mut self.view).decide_in_step(&rule, name, hits, true, reset);
            self.count(name, hits, decision.is_admitted);
            return Answer::Decided(decision, How::Counted);
        }
        if member.is_denied(hits, at) {
            member.count(hits, false);
            return Answer::Decided(self.status(name, hits, false, at), How::Denied);
        }
        let reply = member.wait(hits);
        let fetch = (!std::mem::replace(&mut member.is_fetching, true)).then(|| name.into());
        Answer::Wait { reply, fetch }
    }

    /// Decides `hits`, which were counted as demand. `OnStoreFailure::Local`: by the N-th part, of N `instances`, of
    /// each share as of the last reply; otherwise, whatever the pool has left.
    pub(super) fn decide_without_store(
        &mut self,
        value: &str,
        hits: u32,
        policy: OnStoreFailure,
        instances: u32,
        at: Timestamp,
    ) -> PoolDecision {
        self.roll(at);
        let name = self.name_of(value);
        let mut decision = self.status(name, 0, true, at);
        match policy {
            OnStoreFailure::Local => {
                let rule = rule(&self.target, &self.sharing);
                let begun = || (Box::new((*self.view).clone()), instances.max(1));
                let (fallback, instances) = self.fallback.get_or_insert_with(begun);
                decision = fallback.decide(&rule, name, hits.saturating_mul(*instances), true, at);
                for number in [&mut decision.share, &mut decision.before, &mut decision.remaining] {
                    *number /= *instances;
                }
            }
            OnStoreFailure::Allow => decision.is_admitted = true,
            OnStoreFailure::Deny => {
                decision.is_admitted = false;
                (decision.remaining, decision.reset) = (0, OnStoreFailure::DENY_RETRY);
            }
        }
        self.count(name, hits, decision.is_admitted);
        decision
    }

    fn count(&mut self, name: &str, hits: u32, is_admitted: bool) {
        if let Some(member) = self.members.get_mut(name) {
            member.count(hits, is_admitted);
            member.unreported.granted += i64::from(if is_admitted { hits } else { 0 });
        }
    }

    /// At most the hits of this cycle. They are held for the next requests of `value`.
    pub(super) fn give_back(&mut self, value: &str, hits: u32, at: Timestamp) {
        self.roll(at);
        if let Some(member) = self.members.get_mut(self.name_of(value)) {
            let hits = hits.min(member.admitted);
            member.admitted -= hits;
            member.held += hits;
            self.has_news = true;
        }
    }

    /// Counts `hits` as demand, and returns the name of the member.
    pub(super) fn ask<'a>(&mut self, value: &'a str, hits: u32) -> &'a str {
        self.has_news = true;
        if let Some(member) = self.members.get_mut(value) {
            member.ask(hits);
            return value;
        }
        let rule = rule(&self.target, &self.sharing);
        let name = Arc::make_mut(&mut self.view).name_of(&rule, value);
        self.members.entry(name.into()).or_default().ask(hits);
        name
    }

    pub(super) fn is_anonymous(&self, value: &str) -> bool {
        value.is_empty() && self.sharing.anonymous != Anonymous::Share
    }

    /// Returns the name of the member that `value` is, or may be part of.
    fn name_of<'a>(&self, value: &'a str) -> &'a str {
        if self.members.contains_key(value) || self.view.has(value) { value } else { OTHER }
    }

    pub(super) fn look(&mut self, value: &str, at: Timestamp) -> PoolDecision {
        self.roll(at);
        let status = self.status(self.name_of(value), 0, true, at);
        PoolDecision { is_admitted: status.remaining > 0, ..status }
    }

    /// `hits` were counted already if they are admitted.
    pub(super) fn status(&self, name: &str, hits: u32, is_admitted: bool, at: Timestamp) -> PoolDecision {
        let (rule, reset) = (rule(&self.target, &self.sharing), self.ends(at).1.since(at));
        let PoolDecision { share, before, remaining, .. } = self.view.look_in_step(&rule, name, reset);
        let held = self.members.get(name).map_or(0, |member| member.held);
        let used = before.saturating_sub(held);
        let before = if is_admitted { used.saturating_sub(hits) } else { used };
        let left = if is_admitted || hits == 0 { remaining } else { 0 };
        PoolDecision { is_admitted, share, before, remaining: left.saturating_add(held), reset }
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

    /// Follows the store to its open `cycle`: also back if its clock was set back, as this instance's clock shows at
    /// `at`. The store has what was granted in it.
    pub(super) fn follow_store(&mut self, cycle: u64, at: Timestamp) {
        if rule(&self.target, &self.sharing).place(at).0 < self.cycle {
            self.begin(cycle);
        }
        self.roll_to(cycle);
    }

    fn begin(&mut self, cycle: u64) {
        self.end_cycle(cycle == self.cycle + 1);
        if let Some((fallback, _)) = self.fallback.take() {
            // it knows what was asked for since
            self.view = Arc::new(*fallback);
        }
        Arc::make_mut(&mut self.view).turn(&rule(&self.target, &self.sharing), cycle);
        let view = &self.view;
        self.members.retain(|name, member| member.is_waiting() || view.has(name));
        (self.cycle, self.has_table) = (cycle, false);
    }

    /// Held hits are of no use any more. What was asked for is reported only if the next cycle begins (`is_next`).
    fn end_cycle(&mut self, is_next: bool) {
        self.hits.lost_demand.add(self.late.drain(..).map(|report| u64::from(report.asked)).sum());
        for (name, member) in &mut self.members {
            let (Unreported { asked, granted }, held) = member.begin_cycle();
            self.hits.stranded.add(held.into());
            self.hits.unreported.add(u64::try_from(granted).unwrap_or(0));
            if asked > 0 && is_next {
                let member = PoolMember::new(name, &self.sharing);
                self.late.push(PoolReport { member, asked, granted: 0 });
            } else {
                self.hits.lost_demand.add(asked.into());
            }
        }
    }

    pub(super) fn command(&self, cycle: u64, op: PoolOp) -> PoolCommand {
        PoolCommand {
            target: Arc::clone(&self.target),
            cycle,
            // the default of everybody is one hit at least
            places: self.sharing.places().min(self.target.tiers[0].requests),
            forget_after: self.sharing.forget_after,
            op,
        }
    }
}
