//! The fetch of hits for one member: a command for the requests that wait, and its reply.

use std::sync::Arc;

use super::{
    instance::{InstancePool, rule},
    member::Try,
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
}

// === impl InstancePool ===

impl InstancePool {
    pub(super) fn begin_fetch(&mut self, name: &str, instances: u32, at: Timestamp) -> Option<Fetch> {
        self.roll(at);
        let member = self.members.get_mut(name)?;
        let tries = member.next_tries();
        if tries.is_empty() {
            member.is_fetching = false;
            return None;
        }
        let op = PoolOp::Lease {
            member: PoolMember::new(name, &self.sharing),
            terms: Arc::make_mut(&mut self.view).terms(&rule(&self.target, &self.sharing), name),
            tries: tries.iter().map(|next| next.hits).collect(),
            ahead: if self.mode == Coordination::Lease { member.pace } else { 0 },
            instances,
        };
        Some(Fetch { command: self.command(self.cycle, op), tries })
    }

    pub(super) fn end_fetch(
        &mut self,
        name: &str,
        Fetch { command, tries }: Fetch,
        reply: Result<PoolOutcome, RemoteError>,
        at: Timestamp,
    ) {
        let delivery = match reply {
            Ok(PoolOutcome::Leased(leased)) => {
                return self.apply_lease(name, command.cycle, tries, leased, at);
            }
            Ok(PoolOutcome::OtherCycle(cycle)) => {
                self.follow_store(cycle, at);
                if let Some(member) = self.members.get_mut(name) {
                    member.wait_again(tries);
                }
                return;
            }
            Ok(PoolOutcome::Table(_)) => Delivery::Unknown,
            Err(error) => Delivery::of_error(&error),
        };
        self.away_in = Some(self.cycle);
        if delivery != Delivery::NotApplied {
            self.hits.delivery_unknown.add(tries.iter().map(|next| u64::from(next.hits)).sum());
        }
        for next in tries {
            next.resolve(None);
        }
    }

    fn apply_lease(&mut self, name: &str, cycle: u64, tries: Vec<Try>, leased: Leased, at: Timestamp) {
        let is_open = cycle == self.cycle;
        let until = self.ends(at).0;
        let Some(member) = self.members.get_mut(name) else { return };
        if is_open {
            member.held += leased.ahead;
            Arc::make_mut(&mut self.view).learn(name, leased.granted, leased.total);
            let rejected = tries.iter().zip(&leased.tries).filter(|(_, is_granted)| !**is_granted);
            if let Some(hits) = rejected.map(|(next, _)| next.hits).min() {
                member.deny(hits, until, at);
            }
        } else {
            self.hits.stranded.add(leased.ahead.into());
        }
        for (next, is_granted) in tries.into_iter().zip(leased.tries) {
            let hits = next.hits;
            let decision = self.status(name, hits, is_granted, at);
            let Some(member) = self.members.get_mut(name) else { return };
            if next.resolve(Some(decision)) {
                member.count(hits, is_granted);
            } else if is_granted && is_open {
                // nobody waits for them any more
                member.held += hits;
            }
        }
    }
}
