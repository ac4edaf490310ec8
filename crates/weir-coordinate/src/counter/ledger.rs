//! The ledger of a counter: hits that the store has to count or take back still, and hits that it has granted.

use smallvec::SmallVec;

use super::{all_ended, flows, has_ended, has_flowed_back, negative, same_windows};
use weir_limit::{
    Hits, Tier, Timestamp,
    algorithm::{CountChange, CounterState, SlidingWindow},
};
use weir_store::remote::{Exchange, Report, Target, UnusedHits};

/// Above this many, deltas of ended windows are merged at once. The sweep merges them every few seconds.
const MANY: usize = 16;

/// Each part takes eight bytes while there is nothing of it, as nearly always.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// In order of their ends; never empty.
    leases: Option<Box<SmallVec<[Lease; 1]>>>,
    unacknowledged: Option<Box<Unacknowledged>>,
}

/// Hits that the store has not acknowledged, oldest first: those in flight, then the pending ones. Never empty.
#[derive(Debug, Default)]
struct Unacknowledged {
    in_flight: usize,
    /// That of the command that carries those in flight.
    number: u32,
    list: SmallVec<[PendingDelta; 1]>,
}

/// What was counted here in one window of each fixed tier, and the store has not counted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingDelta {
    /// When the first of the hits were counted.
    pub(super) at: Timestamp,
    pub(super) last_at: Timestamp,
    pub(super) change: CountChange,
    /// How many of the hits count although they were rejected.
    pub(super) rejected: u64,
    /// Leased hits that are given back. Others can take them only after the store has received them.
    pub(super) unused: u64,
    /// The earliest end of those leases: a sliding window gives back hits up to then, and the rest count for longer.
    pub(super) unused_until: Timestamp,
    /// The last try that a strict bucket rejected; zero if none.
    pub(super) rejected_at: Timestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedHits {
    /// Never reported: their windows had ended, or their counter was evicted.
    pub(crate) unreported: u64,
    /// Leased and not used before the lease ended, or given back and never reported.
    pub(crate) stranded: u64,
}

/// Hits that may be admitted without a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) left: u64,
    pub(super) granted_at: Timestamp,
    pub(super) until: Timestamp,
}

// === impl Ledger ===

impl Ledger {
    pub(crate) const fn is_empty(&self) -> bool {
        self.leases.is_none() && self.unacknowledged.is_none()
    }

    pub(super) fn unacknowledged(&self) -> &[PendingDelta] {
        self.unacknowledged.as_ref().map_or(&[], |deltas| &deltas.list)
    }

    pub(super) fn in_flight(&self) -> &[PendingDelta] {
        self.unacknowledged.as_ref().map_or(&[], |deltas| &deltas.list[..deltas.in_flight])
    }

    pub(super) fn pending(&self) -> &[PendingDelta] {
        self.unacknowledged.as_ref().map_or(&[], |deltas| &deltas.list[deltas.in_flight..])
    }

    fn pending_mut(&mut self) -> &mut [PendingDelta] {
        self.unacknowledged.as_mut().map_or(&mut [], |deltas| &mut deltas.list[deltas.in_flight..])
    }

    /// That of the command that carries those in flight.
    pub(super) fn number(&self) -> u32 {
        self.unacknowledged.as_ref().map_or(0, |deltas| deltas.number)
    }

    pub(super) fn admitted(&self) -> u64 {
        self.unacknowledged().iter().map(PendingDelta::admitted).fold(0, u64::saturating_add)
    }

    /// The estimate must have the hits already.
    pub(super) fn add_hits(&mut self, hits: i64, tiers: &[Tier], now: Timestamp) {
        match self.pending_mut().last_mut() {
            Some(last) if hits > 0 && same_windows(tiers, last.last_at, now) => {
                last.change.append(hits);
                last.last_at = last.last_at.max(now);
            }
            _ => self.add(PendingDelta::of(hits, now), tiers),
        }
    }

    /// The estimate must have the hits of `delta` already.
    pub(super) fn add(&mut self, delta: PendingDelta, tiers: &[Tier]) {
        if delta.is_none() {
            return;
        }
        let at = delta.at;
        self.merge(delta, tiers, Timestamp::default());
        if self.pending().len() > MANY {
            // in an outage there is one for each window that has not ended
            self.merge_pending(tiers, at);
        }
    }

    /// One of those pending takes in `delta` if they differ only in windows that have ended at `now`. Only those that
    /// add hits may change their order.
    fn merge(&mut self, delta: PendingDelta, tiers: &[Tier], now: Timestamp) {
        for earlier in self.pending_mut().iter_mut().rev() {
            if earlier.takes_in(&delta, tiers, now) {
                return;
            }
            if !earlier.only_adds() || !delta.only_adds() {
                break;
            }
        }
        self.unacknowledged.get_or_insert_default().list.push(delta);
    }

    fn merge_pending(&mut self, tiers: &[Tier], now: Timestamp) {
        if self.pending().len() < 2 {
            return;
        }
        if let Some(deltas) = &mut self.unacknowledged {
            let pending: SmallVec<[_; 1]> = deltas.list.drain(deltas.in_flight..).collect();
            for delta in pending {
                self.merge(delta, tiers, now);
            }
        }
    }

    /// Moves pending hits to the reports of command `number`: those of one window if each has a key of its own in
    /// envoyproxy/ratelimit's format. Must not be called while others are in flight.
    pub(super) fn take_reports(&mut self, number: u32, target: &Target) -> SmallVec<[Report; 1]> {
        let pending = self.pending();
        let leaves = |delta: &&PendingDelta| {
            !target.counts_rejected() || same_windows(&target.tiers, pending[0].at, delta.at)
        };
        // the others wait for the next command, in its order
        let count = pending.iter().take(Exchange::MAX_REPORTS).take_while(leaves).count();
        let reports = pending[..count].iter().map(PendingDelta::report).collect();
        if let Some(deltas) = &mut self.unacknowledged {
            (deltas.in_flight, deltas.number) = (count, number);
        }
        reports
    }

    pub(super) fn end_flight(&mut self) {
        if let Some(deltas) = &mut self.unacknowledged {
            deltas.list.drain(..std::mem::take(&mut deltas.in_flight));
        }
        self.unacknowledged.take_if(|deltas| deltas.list.is_empty());
    }

    pub(super) fn return_flight(&mut self, tiers: &[Tier]) {
        if let Some(deltas) = &mut self.unacknowledged {
            (deltas.in_flight, deltas.number) = (0, 0);
        }
        self.merge_pending(tiers, Timestamp::default());
    }

    /// Drops what the store would not count: hits of ended windows, and returns to a bucket that come too late. The
    /// others are merged as far as possible.
    pub(super) fn drop_ended(&mut self, tiers: &[Tier], is_alone: bool, now: Timestamp) -> DroppedHits {
        let mut dropped = DroppedHits::default();
        let Some(deltas) = &mut self.unacknowledged else { return dropped };
        let (mut place, in_flight) = (0.., deltas.in_flight);
        deltas.list.retain(|delta| {
            if place.next() < Some(in_flight) {
                return true;
            }
            if delta.has_ended(tiers, now) {
                dropped.add(delta.taken(), delta.returned());
                return false;
            }
            // as many were given back as were taken, which leaves others at other times
            let moves = delta.is_none() && flows(tiers);
            if has_flowed_back(tiers, is_alone, delta.at, delta.unused_until, now) {
                dropped.add(0, std::mem::take(&mut delta.unused));
            }
            moves || !delta.is_none()
        });
        self.unacknowledged.take_if(|deltas| deltas.list.is_empty());
        self.merge_pending(tiers, now);
        dropped
    }

    /// Hits that are given back before the store grants `hits` must not take these along.
    pub(super) fn keep_granted(&mut self, hits: u64, tiers: &[Tier], now: Timestamp) {
        for delta in self.pending_mut() {
            if !delta.change.is_addition() && same_windows(tiers, delta.at, now) {
                delta.change.floor = delta.change.floor.saturating_add(hits);
            }
        }
    }

    /// The hits that are lost if the counter is removed.
    pub(crate) fn owed(&self) -> DroppedHits {
        let mut owed = DroppedHits::all_of(self.pending());
        owed.add(0, self.leased());
        owed
    }

    /// Those in flight stay until their outcome is known.
    pub(super) fn drop_unreported(&mut self) -> DroppedHits {
        let dropped = self.owed();
        self.leases = None;
        if let Some(deltas) = &mut self.unacknowledged {
            deltas.list.truncate(deltas.in_flight);
        }
        self.unacknowledged.take_if(|deltas| deltas.list.is_empty());
        dropped
    }

    pub(super) fn carried(&self) -> DroppedHits {
        DroppedHits::all_of(self.in_flight())
    }

    pub(super) fn leases(&self) -> &[Lease] {
        self.leases.as_ref().map_or(&[], |leases| leases)
    }

    #[inline]
    pub(crate) fn leased(&self) -> u64 {
        self.leases().iter().map(|lease| lease.left).sum()
    }

    pub(super) fn add_lease(&mut self, lease: Lease) {
        let leases = self.leases.get_or_insert_default();
        let place = leases.partition_point(|other| other.until <= lease.until);
        leases.insert(place, lease);
    }

    /// Removes the lease that ends first.
    fn pop_lease(&mut self) -> Option<Lease> {
        let lease = self.leases.as_mut().map(|leases| leases.remove(0));
        self.leases.take_if(|leases| leases.is_empty());
        lease
    }

    /// The leases must have as many hits.
    pub(super) fn spend(&mut self, hits: u64) {
        let mut needed = hits;
        while let Some(first) = self.leases.as_mut().and_then(|leases| leases.first_mut()) {
            if first.left > needed {
                first.left -= needed;
                return;
            }
            needed -= first.left;
            self.pop_lease();
        }
    }

    /// Returns the hits of those leases that end first and `are_over`.
    pub(super) fn return_if(&mut self, tiers: &[Tier], are_over: impl Fn(&Lease) -> bool) {
        while self.leases().first().is_some_and(&are_over)
            && let Some(lease) = self.pop_lease()
        {
            self.add(lease.unused(), tiers);
        }
    }
}

// === impl DroppedHits ===

impl DroppedHits {
    pub(super) const fn add(&mut self, unreported: u64, stranded: u64) {
        self.unreported = self.unreported.saturating_add(unreported);
        self.stranded = self.stranded.saturating_add(stranded);
    }

    pub(super) fn all_of(deltas: &[PendingDelta]) -> Self {
        let mut all = Self::default();
        for delta in deltas {
            all.add(delta.taken(), delta.returned());
        }
        all
    }

    pub(crate) const fn all(self) -> u64 {
        self.unreported.saturating_add(self.stranded)
    }
}

// === impl PendingDelta ===

impl PendingDelta {
    /// Negative `hits` are given back.
    pub(super) fn of(hits: i64, at: Timestamp) -> Self {
        Self { at, last_at: at, change: CountChange::of(hits), ..Self::default() }
    }

    /// Hits that were taken at `at` to be used until `until`, and were not.
    pub(super) fn unused(hits: u64, at: Timestamp, until: Timestamp) -> Self {
        Self { unused: hits, unused_until: until, ..Self::of(0, at) }
    }

    /// Returns whether the store learns nothing from it.
    pub(super) fn is_none(&self) -> bool {
        self.change.is_none() && self.unused == 0 && self.rejected_at == Timestamp::default()
    }

    pub(super) fn taken(&self) -> u64 {
        u64::try_from(self.change.hits).unwrap_or_default()
    }

    pub(super) fn returned(&self) -> u64 {
        u64::try_from(self.change.hits.saturating_neg()).unwrap_or_default().saturating_add(self.unused)
    }

    pub(super) fn admitted(&self) -> u64 {
        self.taken().saturating_sub(self.rejected)
    }

    /// Takes in `later` if both are in the same windows of `tiers`, apart from those that have ended at `now`. Returns
    /// whether it has.
    pub(super) fn takes_in(&mut self, later: &Self, tiers: &[Tier], now: Timestamp) -> bool {
        let is_same_in = |tier: &Tier| {
            let alone = std::slice::from_ref(tier);
            same_windows(alone, self.last_at, later.at) || has_ended(tier, later.last_at, now)
        };
        if !tiers.iter().all(is_same_in) {
            return false;
        }
        // the store gives the unused hits back first, so those that it has not counted yet are taken back here
        let uncounted = later.unused.min(self.taken());
        self.change.append(negative(uncounted));
        let unused = later.unused - uncounted;
        self.change.floor = self.change.floor.saturating_sub(unused);
        self.change.append_all(later.change);
        self.rejected = self.rejected.saturating_add(later.rejected);
        if unused > 0 {
            let until = later.unused_until;
            self.unused_until = if self.unused == 0 { until } else { self.unused_until.min(until) };
            self.unused = self.unused.saturating_add(unused);
        }
        self.rejected_at = self.rejected_at.max(later.rejected_at);
        if !later.change.is_none() {
            self.last_at = self.last_at.max(later.last_at);
        }
        true
    }

    pub(super) fn only_adds(&self) -> bool {
        self.change.is_addition() && self.unused == 0 && self.rejected_at == Timestamp::default()
    }

    pub(super) fn has_ended(&self, tiers: &[Tier], now: Timestamp) -> bool {
        all_ended(tiers, self.last_at, now)
    }

    fn rejected_at(&self) -> Option<Timestamp> {
        (self.rejected_at > Timestamp::default()).then_some(self.rejected_at)
    }

    pub(super) fn report(&self) -> Report {
        Report {
            at: self.last_at,
            change: self.change,
            unused: (self.unused > 0).then_some(UnusedHits { hits: self.unused, until: self.unused_until }),
            rejected_at: self.rejected_at(),
        }
    }

    pub(super) fn apply_to_all(&self, tiers: &[Tier], states: &mut [CounterState], now: Timestamp) {
        tiers.iter().zip(states).for_each(|(tier, state)| self.apply(tier, state, now));
    }

    /// As the store applies the report.
    pub(super) fn apply(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        if tier.has_windows() {
            state.put_back(tier, self.at, self.at, Hits(self.unused));
        } else {
            state.release(tier, now, self.unused_until, Hits(self.unused));
        }
        let try_before = self.rejected_at().filter(|at| *at <= self.last_at);
        let try_after = self.rejected_at().filter(|at| *at > self.last_at);
        if let Some(at) = try_before {
            state.reject(tier, at);
        }
        state.add(tier, self.last_at, self.change, now);
        if let Some(at) = try_after {
            state.reject(tier, at);
        }
    }
}

// === impl Lease ===

impl Lease {
    pub(super) fn unused(&self) -> PendingDelta {
        PendingDelta::unused(self.left, self.granted_at, self.until)
    }

    /// Takes `leases` off `state`, which is the store's and counts them.
    pub(super) fn exclude(leases: &[Self], tier: &Tier, state: &mut CounterState, now: Timestamp) {
        leases.iter().map(Self::unused).for_each(|unused| unused.apply(tier, state, now));
        // unused leases have the newest span begin at their end: the next hit begins its own
        if let Some(window) = state.sliding_window().filter(|_| !leases.is_empty())
            && window.spans().last().is_some_and(|span| span.hits == 0)
        {
            let spans = window.spans().iter().filter(|span| span.hits > 0).copied();
            let window = SlidingWindow::new(Timestamp::default(), spans);
            *state = CounterState::from_sliding_window(window, tier);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{OverLimitPolicy, Period};

    fn hits(deltas: &[PendingDelta]) -> Vec<i64> {
        deltas.iter().map(|delta| delta.change.hits).collect()
    }

    fn tiers(periods: &[Period]) -> Vec<Tier> {
        periods.iter().map(|period| Tier::fixed_window(5, *period)).collect()
    }

    fn target(periods: &[Period]) -> Target {
        let tiers = tiers(periods).into();
        Target { path: "d|k=v".into(), tiers, over_limit_policy: OverLimitPolicy::Ignore }
    }

    #[test]
    fn those_in_flight_precede_the_pending_ones() {
        assert_eq!((size_of::<Ledger>(), size_of::<Lease>()), (16, 24));
        let delta = |at: u8| PendingDelta::of(at.into(), Timestamp::from_secs(at.into()));
        // each in a window of its own
        let (mut all, second) = (Ledger::default(), target(&[Period::from_secs(1)]));
        for seconds in 1..=4 {
            all.add(delta(seconds), &second.tiers);
        }
        assert_eq!(all.take_reports(7, &second).len(), 4);
        all.add(delta(5), &second.tiers);
        all.add(delta(6), &second.tiers);
        assert_eq!(
            (hits(all.in_flight()), hits(all.pending()), all.number()),
            (vec![1, 2, 3, 4], vec![5, 6], 7)
        );
        all.merge_pending(&second.tiers, Timestamp::from_secs(9));
        assert_eq!((hits(all.unacknowledged()), all.in_flight().len()), (vec![1, 2, 3, 4, 11], 4));
        all.return_flight(&[]);
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![21]), "merged");
        all.take_reports(8, &second);
        all.add(delta(8), &second.tiers);
        all.end_flight();
        assert_eq!((hits(all.in_flight()), hits(all.pending())), (vec![], vec![8]));
        assert_eq!(all.drop_ended(&second.tiers, true, Timestamp::from_secs(9)).unreported, 8);
        assert!(all.is_empty());
    }

    #[test]
    fn leases_are_in_order_of_their_ends_and_the_first_one_added_of_the_same_end_precedes() {
        const START: Timestamp = Timestamp::from_secs(1_000);
        let mut ledger = Ledger::default();
        for (left, hold) in [(1, 20), (2, 30), (3, 10), (4, 20)] {
            let until = START.after(Period::from_millis(hold));
            ledger.add_lease(Lease { left, granted_at: START, until });
        }
        assert_eq!(ledger.leases().iter().map(|lease| lease.left).collect::<Vec<_>>(), [3, 1, 4, 2]);
        let popped = std::iter::from_fn(|| ledger.pop_lease()).map(|lease| lease.left);
        assert_eq!(popped.collect::<Vec<_>>(), [3, 1, 4, 2]);
        assert!(ledger.is_empty());
    }

    /// While the store is away nothing is sent, and every window has hits.
    #[test]
    fn an_outage_of_many_windows_leaves_few_pending_deltas() {
        let start = Timestamp::from_secs(3_600 * 400_000);
        let (second, hour) = (Period::from_secs(1), Period::from_secs(3_600));
        for periods in [&[second][..], &[second, hour], &[Period::from_millis(1), second, hour]] {
            let (mut ledger, tiers) = (Ledger::default(), tiers(periods));
            for i in 0..3_000 {
                ledger.add_hits(2, &tiers, start.after(Period::from_secs(i)));
                assert!(ledger.pending().len() <= MANY + 1, "{} at {i}", ledger.pending().len());
            }
            // nothing is lost before the last window has ended
            assert_eq!(ledger.owed().unreported, 6_000);
            let now = start.after(Period::from_secs(2_999));
            let dropped = ledger.drop_ended(&tiers, true, now);
            let lost = if periods.contains(&hour) { 0 } else { 2 * 2_999 };
            assert_eq!((dropped.unreported, ledger.owed().unreported), (lost, 6_000 - lost));
            assert!(ledger.pending().len() <= 2, "{}", ledger.pending().len());
            // the window that is open has its own delta
            assert_eq!(ledger.pending().last().map(PendingDelta::taken), Some(2));
        }
    }

    #[test]
    fn any_number_of_the_largest_hits_is_counted() {
        let start = Timestamp::from_secs(3_600);
        let (mut ledger, tiers) = (Ledger::default(), tiers(&[Period::from_secs(60)]));
        for i in 0..4 {
            ledger.add_hits(i64::MAX, &tiers, start.after(Period::from_secs(100 * i)));
        }
        assert_eq!((ledger.owed().unreported, ledger.admitted()), (u64::MAX, u64::MAX));
        let dropped = ledger.drop_ended(&tiers, true, start.after(Period::from_secs(9_000)));
        assert_eq!(dropped.unreported, u64::MAX);
    }
}
