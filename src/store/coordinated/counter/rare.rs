//! What few local counters have at a time: leases, and what they wait for.

use super::{
    records::{HeldLease, HeldLeases},
    talk::Talk,
    tiers::States,
};

/// Each part is eight bytes while there is none of it.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Never empty.
    leases: Option<Box<HeldLeases>>,
    talk: Option<Box<Talk>>,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    pub(super) fallback: Option<Box<States>>,
}

// === impl Rare ===

impl Rare {
    pub(super) const fn is_nothing(&self) -> bool {
        self.leases.is_none() && self.talk.is_none() && self.fallback.is_none()
    }

    pub(super) fn leases(&self) -> &[HeldLease] {
        self.leases.as_ref().map_or(&[], |leases| leases)
    }

    pub(super) fn leases_mut(&mut self) -> &mut [HeldLease] {
        self.leases.as_mut().map_or(&mut [], |leases| leases)
    }

    pub(super) fn add_lease(&mut self, lease: HeldLease) {
        let leases = self.leases.get_or_insert_default();
        let place = leases.partition_point(|other| other.until <= lease.until);
        leases.insert(place, lease);
    }

    /// Removes the lease that ends first.
    pub(super) fn pop_lease(&mut self) -> Option<HeldLease> {
        let lease = self.leases.as_mut().map(|leases| leases.remove(0));
        self.leases.take_if(|leases| leases.is_empty());
        lease
    }

    pub(super) fn talk(&self) -> Option<&Talk> {
        self.talk.as_deref()
    }

    pub(super) fn talk_mut(&mut self) -> Option<&mut Talk> {
        self.talk.as_deref_mut()
    }

    pub(super) fn make_talk(&mut self) -> &mut Talk {
        self.talk.get_or_insert_default()
    }

    pub(super) fn end_talk(&mut self) {
        self.talk = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Period, Timestamp};

    #[test]
    fn leases_are_in_order_of_their_ends_and_the_first_one_added_of_the_same_end_precedes() {
        const START: Timestamp = Timestamp::from_secs(1_000);
        assert_eq!((size_of::<HeldLease>(), size_of::<Rare>()), (24, 24));
        let mut rare = Rare::default();
        for (left, hold) in [(1, 20), (2, 30), (3, 10), (4, 20)] {
            let until = START.after(Period::from_millis(hold));
            rare.add_lease(HeldLease { left, granted_at: START, until });
        }
        assert_eq!(rare.leases().iter().map(HeldLease::left).collect::<Vec<_>>(), [3, 1, 4, 2]);
        let popped = std::iter::from_fn(|| rare.pop_lease()).map(|lease| lease.left);
        assert_eq!(popped.collect::<Vec<_>>(), [3, 1, 4, 2]);
        assert!(rare.is_nothing());
    }
}
