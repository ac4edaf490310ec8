//! The exchange of tables: an instance reports what has happened to a pool since the last one, and learns what was
//! counted at all instances.

use std::sync::Arc;

use super::{
    instance::{InstancePool, rule},
    member::Unreported,
};
use crate::{
    limit::{Timestamp, share::Pool},
    store::{
        coordinated::delivery::Delivery,
        pool_command::{PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport},
        remote::RemoteError,
    },
};

// === impl InstancePool ===

impl InstancePool {
    pub(super) fn has_more(&self) -> bool {
        self.has_news || !self.late.is_empty() || self.members.values().any(|member| member.held > 0)
    }

    /// Takes what is not reported, and unused hits. What was asked for in the last cycle is reported first.
    pub(super) fn begin_exchange(&mut self, at: Timestamp) -> PoolCommand {
        self.roll(at);
        self.members.values_mut().for_each(|member| member.pace = std::mem::take(&mut member.asked_in_step));
        if !self.late.is_empty() {
            let reports = std::mem::take(&mut self.late);
            return self.command(self.cycle - 1, PoolOp::Exchange(reports));
        }
        self.has_news = false;
        let step = rule(&self.target, &self.sharing).place(at).1;
        let mut reports = Vec::new();
        for (name, member) in &mut self.members {
            let is_idle = !std::mem::take(&mut member.is_used) && step > 0;
            if is_idle && member.held > 0 && !member.is_fetching {
                member.unreported.granted -= i64::from(std::mem::take(&mut member.held));
            }
            let Unreported { asked, granted } = std::mem::take(&mut member.unreported);
            if asked > 0 || granted != 0 {
                reports.push(PoolReport { member: PoolMember::new(name, &self.sharing), asked, granted });
            }
        }
        self.command(self.cycle, PoolOp::Exchange(reports))
    }

    /// For a reply that is no table. Returns whether the store has replied.
    pub(super) fn fail_exchange(
        &mut self,
        command: PoolCommand,
        reply: Result<PoolOutcome, RemoteError>,
        at: Timestamp,
    ) -> bool {
        match reply {
            Ok(PoolOutcome::OtherCycle(cycle)) => {
                self.restore(command);
                self.follow_store(cycle, at);
                return true;
            }
            Err(error) if Delivery::of_error(&error) == Delivery::NotApplied => self.restore(command),
            _ => self.hits.delivery_unknown.add(demand(&command)),
        }
        self.away_in = Some(self.cycle);
        false
    }

    fn restore(&mut self, command: PoolCommand) {
        if command.cycle + 1 < self.cycle {
            self.hits.lost_demand.add(demand(&command));
            return;
        }
        let PoolOp::Exchange(reports) = command.op else { return };
        self.has_news = true;
        if command.cycle < self.cycle {
            self.late.extend(reports);
            return;
        }
        for PoolReport { member, asked, granted } in reports {
            let unreported = &mut self.members.entry(member.name).or_default().unreported;
            unreported.asked = unreported.asked.saturating_add(asked);
            unreported.granted += granted;
        }
    }

    /// `pool` was computed from a table of `cycle`. Returns the earlier pool, to be dropped without the lock.
    pub(super) fn end_exchange(&mut self, cycle: u64, mut pool: Pool) -> Option<Arc<Pool>> {
        if cycle != self.cycle {
            return None;
        }
        self.has_table = true;
        for (name, member) in &mut self.members {
            member.denied = None;
            let Unreported { asked, granted } = member.unreported;
            if granted != 0 {
                // what was admitted here since the report
                pool.add(name, asked, granted);
            }
        }
        Some(std::mem::replace(&mut self.view, Arc::new(pool)))
    }
}

fn demand(command: &PoolCommand) -> u64 {
    match &command.op {
        PoolOp::Exchange(reports) => reports.iter().map(|report| u64::from(report.asked)).sum(),
        PoolOp::Lease { .. } => 0,
    }
}
