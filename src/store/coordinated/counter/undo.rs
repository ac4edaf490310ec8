//! Puts back the hits of a descriptor that were counted before another one of its request was rejected.

use super::{
    LocalCounter,
    records::PendingDelta,
    tiers::{flows, same_windows, take_off},
};
use crate::limit::{Hits, Timestamp};

impl LocalCounter {
    /// Puts hits back that were spent at `at` for a request which was then rejected: into a lease of the same windows,
    /// if there is one. The store may count them until sooner than those of another lease, so where hits become
    /// available again gradually, and others take them, it gets them back.
    pub(in super::super) fn unspend(&mut self, hits: Hits, at: Timestamp) {
        let tiers = &self.target.tiers;
        let stays = self.plan.instances > 1 && flows(tiers) || self.is_away();
        let leases = if stays { &mut [] } else { self.rare.leases_mut() };
        let held = leases.iter_mut().find_map(|lease| {
            let left = lease.left.checked_add(u32::try_from(hits.0).ok()?)?;
            same_windows(tiers, lease.granted_at, at).then_some((left, lease))
        });
        match held {
            Some((left, lease)) => {
                lease.left = left;
                take_off(&self.target.tiers, &mut self.estimate, hits, at);
            }
            None => self.uncount(hits, at),
        }
    }

    /// Gives back hits that were counted at `at` for a request which was then rejected.
    pub(in super::super) fn uncount(&mut self, hits: Hits, at: Timestamp) {
        take_off(&self.target.tiers, &mut self.estimate, hits, at);
        self.push_pending(PendingDelta { unused: hits.0, unused_until: at, ..self.delta(0, at) });
    }
}
