//! The exchange of tables: an instance reports what has happened to a pool since the last one, and learns what was
//! counted at all instances.

use std::sync::Arc;

use super::{
    instance::{InstancePool, Known, rule},
    member::Unreported,
};
use crate::{
    limit::{
        Timestamp,
        share::{Pool, PoolTable, Sharing},
    },
    store::{
        coordinated::delivery::Delivery,
        pool_command::{PoolCommand, PoolMember, PoolOp, PoolReport},
        remote::RemoteError,
    },
};

/// An exchange to make.
pub(super) struct Exchange {
    pub(super) command: PoolCommand,
    pub(super) sharing: Arc<Sharing>,
}

// === impl InstancePool ===

impl InstancePool {
    /// Returns whether an exchange is due soon: the shares of this cycle are not known yet.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.known, Known::Guess)
    }

    /// Returns whether hits came since the last exchange.
    pub(super) const fn has_hits(&self) -> bool {
        self.has_news
    }

    /// Returns whether there is something to exchange.
    pub(super) fn has_news(&self) -> bool {
        self.has_news || !self.late.is_empty() || self.members.values().any(|member| member.held > 0)
    }

    /// Begins an exchange: takes what is not reported, and the hits that nobody has used since the last one.
    pub(super) fn begin_exchange(&mut self, at: Timestamp) -> Exchange {
        self.roll(at);
        self.has_news = false;
        let step = rule(&self.target, &self.sharing).place(at).1;
        let mut reports = Vec::new();
        for (name, member) in &mut self.members {
            member.pace = std::mem::take(&mut member.asked_in_step);
            let is_idle = !std::mem::take(&mut member.is_used) && step > 0;
            if is_idle && member.held > 0 && !member.is_fetching {
                member.unreported.granted -= i64::from(std::mem::take(&mut member.held));
            }
            let Unreported { asked, granted } = std::mem::take(&mut member.unreported);
            if asked > 0 || granted != 0 {
                reports.push(PoolReport { member: PoolMember::new(name, &self.sharing), asked, granted });
            }
        }
        let op = PoolOp::Exchange {
            reports,
            late: std::mem::take(&mut self.late),
            with_demands: self.known != Known::Demand,
        };
        Exchange { command: self.command(op), sharing: Arc::clone(&self.sharing) }
    }

    /// Ends an exchange that has failed.
    pub(super) fn fail_exchange(&mut self, command: PoolCommand, error: &RemoteError) {
        self.away_in = Some(self.cycle);
        if Delivery::of_error(error) == Delivery::NotApplied {
            self.restore(command);
        } else {
            self.hits.delivery_unknown.add(demand(&command));
        }
    }

    /// Ends an exchange that the store has refused, because `cycle` is open.
    pub(super) fn turn_exchange(&mut self, command: PoolCommand, cycle: u64, at: Timestamp) {
        self.restore(command);
        self.follow_store(cycle, at);
    }

    /// Takes back what `command` did not report.
    fn restore(&mut self, command: PoolCommand) {
        if command.cycle != self.cycle {
            self.hits.lost_demand.add(demand(&command));
            return;
        }
        let PoolOp::Exchange { reports, late, .. } = command.op else { return };
        self.late.extend(late);
        self.has_news = true;
        for PoolReport { member, asked, granted } in reports {
            let unreported = &mut self.members.entry(member.name).or_default().unreported;
            unreported.asked = unreported.asked.saturating_add(asked);
            unreported.granted += granted;
        }
    }

    /// Ends an exchange: `pool` was computed from `table`, and `next` begins the next cycle with it. Returns the
    /// earlier pool, to be dropped without the lock.
    pub(super) fn end_exchange(
        &mut self,
        table: &PoolTable,
        is_final: bool,
        pool: Pool,
        next: Option<Pool>,
    ) -> Option<Arc<Pool>> {
        self.roll_to(table.cycle);
        if table.cycle < self.cycle {
            return None;
        }
        self.tables += 1;
        if self.known != Known::Demand {
            self.known = if is_final && table.has_demands { Known::Demand } else { Known::Table };
        }
        self.next = next.map(Arc::new);
        self.total = table.account.total;
        let mut pool = Arc::new(pool);
        self.taken = pool.unnamed();
        for (name, member) in &mut self.members {
            member.denied = None;
            let Unreported { asked, granted } = member.unreported;
            if granted != 0 {
                // what was admitted here since the report
                Arc::make_mut(&mut pool).add(name, asked, granted);
                self.total = pool.granted();
            }
        }
        Some(std::mem::replace(&mut self.view, pool))
    }
}

/// Returns the hits that `command` reports as demand.
fn demand(command: &PoolCommand) -> u64 {
    match &command.op {
        PoolOp::Exchange { reports, late, .. } => {
            let late = late.iter().map(|(_, asked)| u64::from(*asked));
            reports.iter().map(|report| u64::from(report.asked)).chain(late).sum()
        }
        PoolOp::Lease { asked, .. } => u64::from(*asked),
        PoolOp::Keep { .. } => 0,
    }
}
