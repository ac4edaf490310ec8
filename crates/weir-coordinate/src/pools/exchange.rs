//! What an instance asks the store of a pool: hits for requests that wait, and at each step a table, which says what was
//! counted at all instances. In exchange it reports what has happened here since the last one.

use std::{mem::take, sync::Arc};

use super::instance::{InstancePool, rule};
use weir_limit::{Coordination, Timestamp, share::PoolTable};
use weir_store::{
    pool_command::{Leased, MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReply, PoolReport},
    remote::RemoteError,
};

/// The most requests of one command.
const MAX_TRIES: usize = 256;

pub(super) type Replied = Result<PoolReply, RemoteError>;

// === impl InstancePool ===

impl InstancePool {
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
            ahead: if self.mode == Coordination::Lease { member.pace } else { 0 },
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
            self.member(name).held += take(&mut unused);
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
            self.member(name).held += unused;
        } else {
            self.hits.stranded.add(unused.into());
        }
    }

    /// Takes what is not reported, and held hits that nobody has asked for since the last exchange. None if there is
    /// nothing.
    pub(super) fn begin_exchange(&mut self) -> Option<PoolCommand> {
        if !self.has_news && self.members.values().all(|member| member.held == 0) {
            self.exchanges = None;
            return None;
        }
        self.has_news = false;
        let mut reports = Vec::new();
        for (name, member) in &mut self.members {
            member.pace = member.news.asked;
            if member.pace == 0 && member.waiting.is_empty() {
                member.news.granted -= i64::from(take(&mut member.held));
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
