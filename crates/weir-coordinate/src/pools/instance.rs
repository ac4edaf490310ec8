//! One pool at this instance, without I/O and clock: what the store has counted as of the last table, and what has
//! happened here since.
//!
//! Under `lease` and `strict` the store grants hits to one member at a time, in the member's tier and in the pool's
//! together; nothing of the pool lies at an instance where no member has asked. Under `interval` this instance decides
//! by the last table and its own hits.

use std::{mem::take, sync::Arc};

use hashbrown::HashMap;
use tokio::{
    sync::oneshot::{Receiver, Sender, channel},
    task::AbortHandle,
};

use crate::{counter::How, metrics::HitCounts};
use weir_limit::{
    Coordination, LimitCheck, OnStoreFailure, Period, Timestamp,
    share::{Anonymous, MemberState, OTHER, Pool, PoolDecision, PoolRule, PoolTable, Sharing},
};
use weir_store::{
    pool_command::{Leased, MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReply, PoolReport},
    pools::Pooled,
    remote::{RemoteError, Target},
};

const MAX_TRIES: usize = 256;

pub(super) type Replied = Result<PoolReply, RemoteError>;

/// The reply of the store; none if it is away.
pub(super) type AwaitedReply = Option<Receiver<PoolDecision>>;

#[derive(Debug)]
pub(super) struct InstancePool {
    pub(super) target: Arc<Target>,
    pub(super) sharing: Arc<Sharing>,
    pub(super) mode: Coordination,
    /// As of the last table, with what was granted here since; at the start of a cycle, as far as it is known.
    pub(super) view: Pool,
    /// Decides while the store does not reply, until the cycle ends: a copy in which a hit counts once for each
    /// instance, and their number, which is unknown when the store comes back.
    fallback: Option<(Box<Pool>, u32)>,
    /// When it is used, on the store's clock.
    pub(super) now: Timestamp,
    /// Begin and end of the step of `now`, and the end of its cycle, so that not every request computes them.
    pub(super) span: [Timestamp; 3],
    pub(super) members: HashMap<String, LocalMember, foldhash::fast::RandomState>,
    /// The task that exchanges tables, while there is something to exchange.
    pub(super) exchanges: Option<AbortHandle>,
    /// Whether the store does not know everything yet.
    pub(super) has_news: bool,
    pub(super) was_away: bool,
    pub(super) hits: Arc<HitCounts>,
}

#[derive(Debug, Default)]
pub(super) struct LocalMember {
    /// Granted in this cycle and not used yet.
    pub(super) leased: u32,
    pub(super) news: MemberNews,
    /// Asked for in the step before: so many are asked for ahead.
    pub(super) pace: u32,
    /// As long as there are any, a command for the first of them is on its way.
    pub(super) waiting: Vec<PoolTry>,
    /// Hits that were admitted, and rejected, here.
    totals: [u64; 2],
}

/// A request that waits for the store. It is decided without it if `reply` is dropped.
#[derive(Debug)]
pub(super) struct PoolTry {
    pub(super) hits: u32,
    pub(super) reply: Sender<PoolDecision>,
}

impl Pooled for InstancePool {
    const SIZE: usize = 8;

    fn members(&self) -> usize {
        self.members.len().max(self.view.members().len())
    }

    fn with_rule(&mut self) -> (&mut Pool, u32, Period, &Arc<Sharing>) {
        let tier = &self.target.tiers[0];
        (&mut self.view, tier.requests, tier.period, &self.sharing)
    }

    fn end(&mut self) {
        if let Some(exchanges) = self.exchanges.take() {
            exchanges.abort();
        }
        self.end_cycle(false);
    }

    fn report(&self) -> Vec<(Arc<str>, MemberState, [u64; 2])> {
        let totals = |name: &str| self.members.get(name).map_or([0; 2], |member| member.totals);
        let members = self.view.copied().into_iter();
        members.map(|(name, member)| (Arc::clone(&name), member, totals(&name))).collect()
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
            view: Pool::concurrent(),
            fallback: None,
            now: Timestamp::default(),
            span: [Timestamp::default(); 3],
            members: HashMap::default(),
            exchanges: None,
            has_news: false,
            was_away: false,
            hits,
        }
    }

    /// A reload may have changed the rule. Shares follow with the next table.
    pub(super) fn follow(&mut self, check: &LimitCheck<'_>, mode: Coordination) {
        self.mode = mode;
        if let Some(sharing) = check.sharing()
            && !Arc::ptr_eq(sharing, &self.sharing)
        {
            self.sharing = Arc::clone(sharing);
            Arc::make_mut(&mut self.target).tiers = [check.tiers()[0].clone()].into();
        }
    }

    pub(super) fn cycle(&self) -> u64 {
        self.view.cycle().unwrap_or_default()
    }

    pub(super) fn member(&mut self, name: &str) -> &mut LocalMember {
        self.members.entry_ref(name).or_default()
    }

    /// Decides `hits` at once, unless the store has to be asked: `fetch` sends a command for the member if none is on its
    /// way. The store is not asked if it `is_away`, nor about what it would reject by what is known.
    pub(super) fn decide(
        &mut self,
        value: &str,
        hits: u32,
        is_away: bool,
        fetch: impl FnOnce(&str),
    ) -> Result<(PoolDecision, How), AwaitedReply> {
        let name = self.ask(value, hits);
        let (rule, reset) = (rule(&self.target, &self.sharing), self.span[2].since(self.now));
        let Some(member) = self.members.get_mut(name) else {
            // one without a name
            return Ok((self.view.decide_in_step(&rule, name, hits, true, reset), How::Counted));
        };
        if member.leased >= hits {
            member.leased -= hits;
            member.count(hits, true);
            return Ok((self.status(name, hits, true), How::Spent));
        }
        if is_away {
            return Err(None);
        }
        if self.mode.syncs() {
            let decision = self.view.decide_in_step(&rule, name, hits, true, reset);
            member.count_here(hits, decision.is_admitted);
            return Ok((decision, How::Counted));
        }
        if !self.view.account(name).take(&self.view.terms(&rule, name), hits) {
            member.count(hits, false);
            return Ok((self.status(name, hits, false), How::Denied));
        }
        let (reply, receiver) = channel();
        member.waiting.push(PoolTry { hits, reply });
        if member.waiting.len() == 1 {
            fetch(name);
        }
        Err(Some(receiver))
    }

    /// Decides `hits`, which were counted as demand. `OnStoreFailure::Local`: by the N-th part, of N `instances`, of
    /// each share as of the last reply; otherwise, whatever the pool has left.
    pub(super) fn decide_without_store(
        &mut self,
        value: &str,
        hits: u32,
        policy: OnStoreFailure,
        instances: u32,
    ) -> PoolDecision {
        let name = self.name_of(value);
        let mut decision = self.status(name, 0, policy == OnStoreFailure::Allow);
        let mut asked = 0;
        match policy {
            OnStoreFailure::Local => {
                let begun = || (Box::new(self.view.clone()), instances.max(1));
                let (fallback, instances) = self.fallback.get_or_insert_with(begun);
                asked = hits.saturating_mul(*instances);
                decision = fallback.decide(&rule(&self.target, &self.sharing), name, asked, true, self.now);
                for number in [&mut decision.share, &mut decision.before, &mut decision.remaining] {
                    *number /= *instances;
                }
            }
            OnStoreFailure::Allow => {}
            OnStoreFailure::Deny => (decision.remaining, decision.reset) = (0, OnStoreFailure::DENY_RETRY),
        }
        // the next cycle begins with the demand of all instances, as far as it is known
        self.view.add(name, asked, if decision.is_admitted { hits.into() } else { 0 });
        self.member(name).count_here(hits, decision.is_admitted);
        decision
    }

    /// At most the hits of this cycle. They are held for the next requests of `value`.
    pub(super) fn give_back(&mut self, value: &str, hits: u32) {
        let name = self.name_of(value);
        let granted = self.view.account(name).granted;
        let leased = &mut self.member(name).leased;
        *leased += hits.min(granted.saturating_sub(*leased));
        self.has_news = true;
    }

    /// Counts `hits` as demand, unless `value` is no name, and returns the name of the member.
    pub(super) fn ask<'a>(&mut self, value: &'a str, hits: u32) -> &'a str {
        if value.is_empty() && self.sharing.anonymous != Anonymous::Share {
            return value;
        }
        let is_known = self.members.contains_key(value);
        let rule = rule(&self.target, &self.sharing);
        let name = if is_known { value } else { self.view.name_of(&rule, value) };
        let asked = &mut self.member(name).news.asked;
        *asked = asked.saturating_add(hits);
        self.has_news = true;
        name
    }

    /// Returns the name of the member that `value` is, or may be part of.
    fn name_of<'a>(&self, value: &'a str) -> &'a str {
        if self.members.contains_key(value) || self.view.has(value) { value } else { OTHER }
    }

    pub(super) fn look(&self, value: &str) -> PoolDecision {
        self.status(self.name_of(value), 0, true)
    }

    /// `hits` were counted already if they are admitted.
    pub(super) fn status(&self, name: &str, hits: u32, is_admitted: bool) -> PoolDecision {
        let (rule, reset) = (rule(&self.target, &self.sharing), self.span[2].since(self.now));
        let PoolDecision { share, before, remaining, .. } = self.view.look_in_step(&rule, name, reset);
        let leased = self.members.get(name).map_or(0, |member| member.leased);
        let before = before.saturating_sub(leased).saturating_sub(if is_admitted { hits } else { 0 });
        let left = if is_admitted || hits == 0 { remaining } else { 0 };
        PoolDecision { is_admitted, share, before, remaining: left.saturating_add(leased), reset }
    }

    /// Begins the cycle of `now`, if it has not begun.
    pub(super) fn roll(&mut self, now: Timestamp) {
        self.now = now;
        if !(self.span[0]..self.span[1]).contains(&now) {
            let rule = rule(&self.target, &self.sharing);
            self.span = rule.span(now);
            let cycle = rule.place(now).0;
            // a clock that steps back does not bring a cycle back
            if cycle > self.cycle() {
                self.begin(cycle);
            }
        }
    }

    /// Follows the store to its open `cycle`: also back if its clock was set back, as this instance's shows. The store
    /// has what was granted in it.
    pub(super) fn follow_store(&mut self, cycle: u64) {
        if cycle > self.cycle() || rule(&self.target, &self.sharing).place(self.now).0 < self.cycle() {
            self.begin(cycle);
        }
    }

    fn begin(&mut self, cycle: u64) {
        self.end_cycle(cycle == self.cycle() + 1);
        self.view.turn(&rule(&self.target, &self.sharing), cycle);
        let view = &self.view;
        self.members
            .retain(|name, member| !member.waiting.is_empty() || member.news.late > 0 || view.has(name));
        (self.was_away, self.fallback) = (false, None);
    }

    /// Held hits are of no use any more. What was asked for is reported only if the next cycle begins (`is_next`).
    fn end_cycle(&mut self, is_next: bool) {
        for member in self.members.values_mut() {
            let MemberNews { late, asked, granted } = take(&mut member.news);
            self.hits.stranded.add(take(&mut member.leased).into());
            self.hits.unreported.add(u64::try_from(granted).unwrap_or(0));
            member.news.late = if is_next { asked } else { 0 };
            self.hits.lost_demand.add(u64::from(late) + u64::from(asked - member.news.late));
        }
    }

    /// None if no request of the member waits any more.
    pub(super) fn begin_fetch(&mut self, name: &str, instances: u32) -> Option<PoolCommand> {
        let member = self.members.get_mut(name)?;
        member.waiting.retain(|next| !next.reply.is_closed());
        if member.waiting.is_empty() {
            return None;
        }
        let op = PoolOp::Lease {
            member: PoolMember::new(name, &self.sharing),
            terms: self.view.terms(&rule(&self.target, &self.sharing), name),
            tries: member.waiting.iter().take(MAX_TRIES).map(|next| next.hits).collect(),
            ahead: if self.mode.leases() { member.pace } else { 0 },
            instances,
        };
        Some(self.command(op))
    }

    /// Requests wait for the next command if another cycle is open, and are decided without the store if it failed.
    pub(super) fn end_fetch(&mut self, name: &str, command: PoolCommand, reply: Replied) {
        let PoolOp::Lease { tries, .. } = command.op else { return };
        match reply.map(|reply| reply.outcome) {
            Ok(PoolOutcome::OtherCycle(open)) => return self.follow_store(open),
            Ok(PoolOutcome::Leased(leased)) => return self.apply_lease(name, command.cycle, leased),
            Err(error) if error.is_definitely_not_applied() => {}
            _ => self.hits.delivery_unknown.add(tries.iter().copied().map(u64::from).sum()),
        }
        self.was_away = true;
        self.member(name).waiting.drain(..tries.len());
    }

    fn apply_lease(&mut self, name: &str, cycle: u64, leased: Leased) {
        let is_open = cycle == self.cycle();
        let mut unused = leased.ahead;
        if is_open {
            self.view.learn(name, leased.granted, leased.total);
            self.member(name).leased += take(&mut unused);
        }
        let waiting = &mut self.member(name).waiting;
        let tries: Vec<_> = waiting.drain(..leased.tries.len().min(waiting.len())).collect();
        for (next, is_granted) in tries.into_iter().zip(leased.tries) {
            let decision = self.status(name, next.hits, is_granted);
            if next.reply.send(decision).is_ok() {
                self.member(name).count(next.hits, is_granted);
            } else if is_granted {
                // nobody waits for them any more
                unused += next.hits;
            }
        }
        if is_open {
            self.member(name).leased += unused;
        } else {
            self.hits.stranded.add(unused.into());
        }
    }

    /// Takes what is not reported, and held hits that nobody has asked for since the last exchange. None if there is
    /// nothing.
    pub(super) fn begin_exchange(&mut self) -> Option<PoolCommand> {
        if !self.has_news && self.members.values().all(|member| member.leased == 0) {
            self.exchanges = None;
            return None;
        }
        self.has_news = false;
        let mut reports = Vec::new();
        for (name, member) in &mut self.members {
            member.pace = member.news.asked;
            if member.pace == 0 && member.waiting.is_empty() {
                member.news.granted -= i64::from(take(&mut member.leased));
            }
            let news = take(&mut member.news);
            if news != MemberNews::default() {
                reports.push(PoolReport { member: PoolMember::new(name, &self.sharing), news });
            }
        }
        Some(self.command(PoolOp::Exchange(reports)))
    }

    /// Returns whether another cycle is open, and its table is to be asked for.
    pub(super) fn end_exchange(&mut self, command: PoolCommand, reply: Replied) -> bool {
        let PoolCommand { cycle, op: PoolOp::Exchange(reports), .. } = command else { return false };
        match reply {
            Ok(PoolReply { now, outcome: PoolOutcome::Table(table) }) => {
                self.apply_table(&table, now);
                return false;
            }
            Ok(PoolReply { outcome: PoolOutcome::OtherCycle(open), .. }) => {
                self.restore(cycle, reports);
                self.follow_store(open);
                return true;
            }
            Err(error) if error.is_definitely_not_applied() => self.restore(cycle, reports),
            _ => {
                let asked = reports.iter().map(|report| u64::from(report.news.asked));
                self.hits.delivery_unknown.add(asked.sum());
            }
        }
        self.was_away = true;
        false
    }

    /// `now` is the time of the store.
    fn apply_table(&mut self, table: &PoolTable, now: Timestamp) {
        if table.cycle != self.cycle() {
            return;
        }
        let rule = rule(&self.target, &self.sharing);
        let (open, step) = rule.place(now);
        self.view.adopt(&rule, table, if open == table.cycle { step } else { 0 });
        for (name, member) in self.members.iter().filter(|(_, member)| member.news.granted != 0) {
            // what was admitted here since the report
            self.view.add(name, member.news.asked, member.news.granted);
        }
    }

    /// To be reported later, unless the cycle has ended meanwhile.
    fn restore(&mut self, cycle: u64, reports: Vec<PoolReport>) {
        for PoolReport { member, news: MemberNews { late, asked, granted } } in reports {
            if cycle == self.cycle() {
                self.has_news = true;
                let news = &mut self.member(&member.name).news;
                news.late = news.late.saturating_add(late);
                news.asked = news.asked.saturating_add(asked);
                news.granted += granted;
            } else {
                self.hits.lost_demand.add(u64::from(late) + u64::from(asked));
            }
        }
    }

    fn command(&self, op: PoolOp) -> PoolCommand {
        PoolCommand {
            target: Arc::clone(&self.target),
            cycle: self.cycle(),
            // the default of everybody is one hit at least
            places: self.sharing.places().min(self.target.tiers[0].requests),
            forget_after: self.sharing.forget_after,
            op,
        }
    }
}

// === impl LocalMember ===

impl LocalMember {
    pub(super) fn count(&mut self, hits: u32, is_admitted: bool) {
        self.totals[usize::from(!is_admitted)] += u64::from(hits);
    }

    /// For what the store does not know.
    fn count_here(&mut self, hits: u32, is_admitted: bool) {
        self.count(hits, is_admitted);
        self.news.granted += i64::from(if is_admitted { hits } else { 0 });
    }
}
