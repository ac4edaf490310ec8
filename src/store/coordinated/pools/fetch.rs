//! The fetch of hits for one member: a command for the requests that wait, and its reply.

use super::{
    instance::{InstancePool, rule},
    member::{Try, TryReply},
};
use crate::{
    limit::{Coordination, Timestamp},
    store::{
        coordinated::delivery::Delivery,
        pool_command::{Leased, PoolCommand, PoolMember, PoolOp, PoolOutcome},
        remote::RemoteError,
    },
};

/// Requests for which a command is on its way.
pub(super) struct Fetch {
    pub(super) command: PoolCommand,
    tries: Vec<Try>,
    asked: u32,
}

// === impl InstancePool ===

impl InstancePool {
    /// Returns the next command for the member `name`, if requests wait for one.
    pub(super) fn begin_fetch(
        &mut self,
        name: &str,
        mode: Coordination,
        instances: u32,
        at: Timestamp,
    ) -> Option<Fetch> {
        self.roll(at);
        let terms = self.view.terms(&rule(&self.target, &self.sharing), name);
        let member = self.members.get_mut(name)?;
        let tries = member.next_tries();
        if tries.is_empty() {
            member.is_fetching = false;
            return None;
        }
        let asked = std::mem::take(&mut member.unreported.asked);
        let op = PoolOp::Lease {
            member: PoolMember::new(name, &self.sharing),
            asked,
            terms,
            tries: tries.iter().map(|next| next.hits).collect(),
            ahead: if mode == Coordination::Lease { member.pace } else { 0 },
            instances,
        };
        Some(Fetch { command: self.command(op), tries, asked })
    }

    /// Applies the reply to `fetch`.
    pub(super) fn end_fetch(
        &mut self,
        name: &str,
        fetch: Fetch,
        reply: Result<PoolOutcome, RemoteError>,
        at: Timestamp,
    ) {
        let Fetch { command, tries, asked } = fetch;
        match reply {
            Ok(PoolOutcome::Leased(leased)) => self.apply_lease(name, command.cycle, tries, leased, at),
            Ok(PoolOutcome::OtherCycle(cycle)) => {
                self.follow_store(cycle, at);
                // the requests are demand of the cycle that decides about them
                if let Some(member) = self.members.get_mut(name) {
                    member.wait_again(tries);
                }
            }
            Ok(PoolOutcome::Table(_) | PoolOutcome::Kept) => {
                self.fail(name, tries, asked, command.cycle, Delivery::Unknown);
            }
            Err(error) => self.fail(name, tries, asked, command.cycle, Delivery::of_error(&error)),
        }
    }

    fn fail(&mut self, name: &str, tries: Vec<Try>, asked: u32, cycle: u64, delivery: Delivery) {
        self.away_in = Some(self.cycle);
        if delivery != Delivery::NotApplied {
            self.hits.delivery_unknown.add(tries.iter().map(|next| u64::from(next.hits)).sum());
        } else if let Some(member) = self.members.get_mut(name).filter(|_| cycle == self.cycle) {
            member.unreported.asked = member.unreported.asked.saturating_add(asked);
        } else {
            self.hits.lost_demand.add(asked.into());
        }
        for next in tries {
            next.resolve(TryReply::Undecided(delivery));
        }
    }

    fn apply_lease(&mut self, name: &str, cycle: u64, tries: Vec<Try>, leased: Leased, at: Timestamp) {
        let is_open = cycle == self.cycle;
        let until = self.ends(at).0;
        let Some(member) = self.members.get_mut(name) else { return };
        if is_open {
            member.held += leased.ahead;
            member.granted = Some((self.tables, leased.granted));
            self.total = leased.total;
            let rejected = tries.iter().zip(&leased.tries).filter(|(_, is_granted)| !**is_granted);
            if let Some(hits) = rejected.map(|(next, _)| next.hits).min() {
                member.deny(hits, until, at);
            }
        } else {
            self.hits.stranded.add(leased.ahead.into());
        }
        for (next, is_granted) in tries.into_iter().zip(leased.tries) {
            let hits = next.hits;
            let decision = TryReply::Decided(self.status(name, hits, is_granted, at));
            let Some(member) = self.members.get_mut(name) else { return };
            if next.resolve(decision) {
                member.count(hits, is_granted);
            } else if is_granted && is_open {
                // nobody waits for them any more
                member.held += hits;
            }
        }
    }
}
