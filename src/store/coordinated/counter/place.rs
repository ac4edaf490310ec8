//! The place of a counter in the queue of counters that need attention.

/// A slot of the queue, modulo 2^24: four bytes with an [`Urgency`]. Slots less than 2^23 apart have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Slot([u8; 3]);

/// How soon a counter needs attention. Ordered by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Urgency {
    /// When a lease may have to be returned.
    Lease,
    /// When a node that does not reply may do so again.
    Outage,
    Pause,
    /// Within a sync interval, and a tenth of a second.
    Interval,
    /// With the next batch.
    Tick,
    Now,
}

/// Queued in the slot for the time at which it is due, and in an earlier one if it became due sooner.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct QueuePlace {
    /// The slot in whose turn it is due. None if it needs no attention. [`Urgency::Now`] precedes every slot.
    due: Option<(Slot, Urgency)>,
    queued: Option<Slot>,
    earlier: Option<Slot>,
}

/// What to do with a counter whose slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Turn {
    Due,
    Later(Slot),
    /// Nothing: it was attended to earlier.
    Passed,
}

// === impl Slot ===

impl Slot {
    pub(in super::super) const fn of(number: u64) -> Self {
        let [low, middle, high, ..] = number.to_le_bytes();
        Self([low, middle, high])
    }

    pub(in super::super) const fn is_after(self, other: Self) -> bool {
        // the sign bit of the difference
        matches!(self.distance_from(other), 1..=0x7f_ffff)
    }

    /// From `other` to this slot, modulo 2^24.
    pub(in super::super) const fn distance_from(self, other: Self) -> u32 {
        self.number().wrapping_sub(other.number()) & 0xff_ffff
    }

    const fn number(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([low, middle, high, 0])
    }
}

// === impl QueuePlace ===

impl QueuePlace {
    pub(in super::super) fn is_due_for(&self, urgency: Urgency) -> bool {
        self.due.is_some_and(|(_, current)| current >= urgency)
    }

    /// Keeps an earlier due time. Returns whether the counter must be queued in `slot`.
    pub(in super::super) fn make_due(&mut self, slot: Slot, urgency: Urgency) -> bool {
        if let Some((due, current)) = self.due
            && (current == Urgency::Now || (urgency != Urgency::Now && !due.is_after(slot)))
        {
            // due earlier already; the higher urgency is kept, so that it is not computed again for every hit
            self.due = Some((due, current.max(urgency)));
            return false;
        }
        self.due = Some((slot, urgency));
        let precedes = |queued: Option<Slot>| queued.is_some_and(|queued| !queued.is_after(slot));
        // a slot that precedes the turn queues it again then
        urgency == Urgency::Now || !(precedes(self.queued) || precedes(self.earlier))
    }

    pub(in super::super) fn queue(&mut self, slot: Slot) {
        let queued = if self.queued.is_some() { &mut self.earlier } else { &mut self.queued };
        *queued = Some(slot);
    }

    /// `slot` is none for counters that are due at once. A counter that was due is due no more.
    pub(in super::super) fn take_turn(&mut self, slot: Option<Slot>) -> Turn {
        // another counter may be queued there
        let mut is_queued = slot.is_none();
        for queued in [&mut self.queued, &mut self.earlier] {
            if *queued == slot {
                *queued = None;
                is_queued = true;
            }
        }
        let Some((due, urgency)) = self.due.filter(|_| is_queued) else { return Turn::Passed };
        match slot {
            Some(slot) if urgency != Urgency::Now && due.is_after(slot) => Turn::Later(due),
            None if urgency != Urgency::Now => Turn::Passed,
            _ => {
                self.due = None;
                Turn::Due
            }
        }
    }
}
