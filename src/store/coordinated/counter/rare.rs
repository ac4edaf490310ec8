//! What few local counters have at a time: leases, and the states of what they wait for.

use super::{
    policy::Leasing,
    records::{HeldLease, HeldLeases},
    states::States,
    talk::Talk,
};
/// What few local counters have at a time. A single lease, which is the most frequent, needs no allocation.
#[derive(Debug, Default)]
pub(super) enum Rare {
    #[default]
    Nothing,
    Lease(HeldLease),
    Talk(Box<Talk>),
    /// Several leases, or something else, with or without leases.
    More(Box<More>),
}

#[derive(Debug, Default)]
pub(super) struct More {
    held: HeldLeases,
    talk: Option<Box<Talk>>,
    pub(super) leasing: Option<Box<Leasing>>,
    /// While the store is unavailable: the states as if every instance counted the same hits.
    pub(super) fallback: Option<Box<States>>,
}

// === impl Rare ===

impl Rare {
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    pub(super) fn leases(&self) -> &[HeldLease] {
        match self {
            Self::Nothing | Self::Talk(_) => &[],
            Self::Lease(lease) => std::slice::from_ref(lease),
            Self::More(more) => &more.held,
        }
    }

    pub(super) fn leases_mut(&mut self) -> &mut [HeldLease] {
        match self {
            Self::Nothing | Self::Talk(_) => &mut [],
            Self::Lease(lease) => std::slice::from_mut(lease),
            Self::More(more) => &mut more.held,
        }
    }

    pub(super) fn add_lease(&mut self, lease: HeldLease) {
        if self.is_nothing() {
            *self = Self::Lease(lease);
            return;
        }
        let held = &mut self.make_more().held;
        let place = held.iter().position(|other| other.until > lease.until).unwrap_or(held.len());
        held.insert(place, lease);
    }

    /// Removes the lease that ends first.
    pub(super) fn pop_lease(&mut self) -> Option<HeldLease> {
        match self {
            Self::Lease(lease) => {
                let lease = *lease;
                *self = Self::Nothing;
                Some(lease)
            }
            Self::More(more) => {
                let lease = (!more.held.is_empty()).then(|| more.held.remove(0));
                self.shrink();
                lease
            }
            Self::Nothing | Self::Talk(_) => None,
        }
    }

    pub(super) fn talk(&self) -> Option<&Talk> {
        match self {
            Self::Talk(talk) => Some(talk),
            Self::More(more) => more.talk.as_deref(),
            Self::Nothing | Self::Lease(_) => None,
        }
    }

    pub(super) fn talk_mut(&mut self) -> Option<&mut Talk> {
        match self {
            Self::Talk(talk) => Some(talk),
            Self::More(more) => more.talk.as_deref_mut(),
            Self::Nothing | Self::Lease(_) => None,
        }
    }

    pub(super) fn make_talk(&mut self) -> &mut Talk {
        if self.is_nothing() {
            *self = Self::Talk(Box::default());
        }
        if let Self::Talk(talk) = self {
            return talk;
        }
        self.make_more().talk.get_or_insert_default()
    }

    pub(super) fn take_talk(&mut self) -> Option<Box<Talk>> {
        match self {
            Self::Talk(_) => match std::mem::take(self) {
                Self::Talk(talk) => Some(talk),
                _ => None,
            },
            Self::More(more) => {
                let talk = more.talk.take();
                self.shrink();
                talk
            }
            Self::Nothing | Self::Lease(_) => None,
        }
    }

    pub(super) fn more(&self) -> Option<&More> {
        if let Self::More(more) = self { Some(more) } else { None }
    }

    pub(super) fn more_mut(&mut self) -> Option<&mut More> {
        if let Self::More(more) = self { Some(more) } else { None }
    }

    /// Allocates: not for counters that need no more than a lease or a talk.
    pub(super) fn make_more(&mut self) -> &mut More {
        if !matches!(self, Self::More(_)) {
            let (held, talk) = (self.pop_lease().into_iter().collect(), self.take_talk());
            *self = Self::More(Box::new(More { held, talk, ..More::default() }));
        }
        self.more_mut().expect("it has just been made")
    }

    pub(super) fn shrink(&mut self) {
        if let Self::More(more) = self
            && more.leasing.is_none()
            && more.fallback.is_none()
        {
            *self = match (&more.held[..], more.talk.take()) {
                ([], None) => Self::Nothing,
                ([lease], None) => Self::Lease(*lease),
                ([], Some(talk)) => Self::Talk(talk),
                (_, talk) => {
                    more.talk = talk;
                    return;
                }
            };
        }
    }
}

// === impl More ===

impl More {
    pub(super) fn leasing_mut(&mut self) -> &mut Leasing {
        self.leasing.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Hits, Period, Timestamp};

    const START: Timestamp = Timestamp::from_secs(1_000);

    fn lease(left: u64, hold: u64) -> HeldLease {
        HeldLease::new(Hits(left), START, START.after(Period::from_millis(hold)))
    }

    fn left(rare: &Rare) -> Vec<u32> {
        rare.leases().iter().map(|lease| lease.left).collect()
    }

    #[test]
    fn one_lease_needs_no_allocation() {
        assert_eq!((size_of::<HeldLease>(), size_of::<Rare>()), (24, 24));
        let mut rare = Rare::default();
        let measured = allocation_counter::measure(|| {
            rare.add_lease(lease(3, 10));
            rare.leases_mut()[0].left -= 1;
        });
        assert_eq!((measured.count_total, left(&rare), rare.more().is_none()), (0, vec![2], true));
        assert_eq!(rare.pop_lease().map(|lease| lease.left), Some(2));
        assert!(rare.is_nothing() && rare.pop_lease().is_none());
    }

    #[test]
    fn leases_are_in_order_of_their_ends_and_the_first_one_added_of_the_same_end_precedes() {
        let mut rare = Rare::default();
        for (left, hold) in [(1, 20), (2, 30), (3, 10), (4, 20)] {
            rare.add_lease(lease(left, hold));
        }
        assert_eq!(left(&rare), [3, 1, 4, 2]);
        let popped = std::iter::from_fn(|| rare.pop_lease()).map(|lease| lease.left);
        assert_eq!(popped.collect::<Vec<_>>(), [3, 1, 4, 2]);
        assert!(rare.is_nothing());
    }

    #[test]
    fn more_than_a_lease_stays_until_nothing_of_it_is_needed() {
        let mut rare = Rare::Lease(lease(1, 10));
        assert!(rare.more_mut().is_none());
        rare.make_more().leasing_mut().is_scarce = true;
        rare.make_more().fallback = Some(Box::new(std::iter::empty().collect()));
        let takes: [fn(&mut More); 2] = [|more| drop(more.leasing.take()), |more| drop(more.fallback.take())];
        for take in takes {
            rare.shrink();
            assert_eq!(left(&rare), [1]);
            take(rare.more_mut().expect("it is needed"));
        }
        rare.shrink();
        assert!(matches!(rare, Rare::Lease(_)));
        assert_eq!(left(&rare), [1]);
    }
}
