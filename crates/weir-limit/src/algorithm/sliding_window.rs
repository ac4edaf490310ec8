//! The sliding window: at most `requests` in any interval of one period, aligned or not.

use smallvec::SmallVec;

use super::{
    change::CountChange,
    span::Span,
    state::{AlgorithmState, Availability, Probe},
};
use crate::{
    tier::Tier,
    units::{Hits, Period, Timestamp},
};

/// The number of spans per period: hits within a twelfth of a period share a span.
const SPANS: u64 = 12;

/// The most spans of hits that are counted in the order of their instants.
const MAX_SPANS: usize = 14;

/// The hits of the last period, grouped into spans of up to a twelfth of a period. Takes 32 bytes with one span, and 16
/// more for each of up to 14 otherwise, in a list that grows by doubling; late reports of other instances may add 13
/// more.
///
/// A span begins with a hit and counts until one period after its last hit. So every hit counts for at least one
/// period, and no interval of one period admits more than the limit. Hits at least a twelfth of a period apart expire
/// after exactly one period; closer hits expire up to a twelfth of a period late, so steady overload uses at least
/// 12/13 of the limit (92.3 %).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    opened: Timestamp,
    /// Oldest first.
    spans: SmallVec<[Span; 1]>,
}

/// Rounded up so that it is never zero.
const fn longest_span(tier: &Tier) -> Period {
    Period::from_nanos(tier.period.as_nanos().div_ceil(SPANS))
}

impl SlidingWindow {
    /// Creates a window of `spans`, oldest first, the newest of which began at `opened`.
    pub fn new(opened: Timestamp, spans: impl IntoIterator<Item = Span>) -> Self {
        Self { opened, spans: spans.into_iter().collect() }
    }

    /// Returns when the newest span began.
    pub const fn opened(&self) -> Timestamp {
        self.opened
    }

    /// Returns the spans, oldest first.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Counts `hits` taken at `at`, before the newest span began. They join the next later span if it ended within a
    /// twelfth of a period after them, or if there are [`MAX_SPANS`].
    fn insert(&mut self, tier: &Tier, at: Timestamp, hits: Hits) {
        let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
        let later = self.spans.iter().take_while(|span| span.last < at).count();
        let full = self.spans.len() >= MAX_SPANS;
        match self.spans.get_mut(later) {
            Some(span) if full || span.last.since(at) < longest_span(tier) => {
                span.hits = span.hits.saturating_add(hits);
            }
            _ => self.spans.insert(later, Span { last: at, hits }),
        }
    }

    /// Oldest first.
    fn counting(&self, tier: &Tier, now: Timestamp) -> &[Span] {
        let expired = self.spans.iter().take_while(|span| span.expires_at(tier) <= now).count();
        &self.spans[expired..]
    }

    fn drop_expired(&mut self, tier: &Tier, now: Timestamp) {
        let expired = self.spans.len() - self.counting(tier, now).len();
        self.spans.drain(..expired);
    }

    pub(super) fn idle_at(&self, tier: &Tier) -> Timestamp {
        self.spans.last().map_or(Timestamp::default(), |span| span.expires_at(tier))
    }

    fn sum(&self, tier: &Tier, now: Timestamp) -> Hits {
        Hits(self.counting(tier, now).iter().map(|span| u64::from(span.hits)).sum())
    }
}

impl AlgorithmState for SlidingWindow {
    fn unused(_tier: &Tier, now: Timestamp) -> Self {
        Self { opened: now, spans: SmallVec::new() }
    }

    fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        let used = self.sum(tier, now);
        Probe { fits: hits == Hits(0) || used.plus(hits) <= Hits(tier.requests.into()), used }
    }

    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        self.reserve(tier, now, now, hits);
    }

    fn reject(&mut self, _tier: &Tier, _now: Timestamp) {}

    /// Counts `hits` that are taken now and used by `until`: they count until one period after `until`.
    fn reserve(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        if hits == Hits(0) {
            return;
        }
        let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
        // spans expire by `now`, not by `until`: the others still count in between
        self.drop_expired(tier, now);
        match self.spans.last_mut() {
            Some(newest) if until < self.opened.after(longest_span(tier)) => {
                // a clock that steps back must not shorten the span
                newest.last = newest.last.max(until);
                newest.hits = newest.hits.saturating_add(hits);
            }
            _ => {
                self.opened = until;
                self.spans.push(Span { last: until, hits });
            }
        }
    }

    /// The caller does not identify the hits: keeping the newer ones, which count for longer, never admits too many.
    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        self.drop_expired(tier, now);
        let mut left = hits.0;
        for span in &mut self.spans {
            left -= span.give_back(left);
        }
        // without hits nothing changes: the newest span, which may be empty, decides which span the next hit joins
        let empty = self.spans.iter().take_while(|span| hits > Hits(0) && span.hits == 0).count();
        self.spans.drain(..empty);
    }

    /// Gives back `hits` that were reserved until `until`. They are in the first span that ends then or later, or in
    /// one after it, which was open already when they were reserved. Earlier spans come first nevertheless: as long as
    /// these have hits, the ones that stay count for longer, so that the window never counts too little.
    fn release(&mut self, tier: &Tier, now: Timestamp, until: Timestamp, hits: Hits) {
        self.drop_expired(tier, now);
        if until.after(tier.period) <= now {
            // their span may have expired, and all others belong to other requests
            return;
        }
        let older = self.spans.iter().take_while(|span| span.last < until).count();
        let middle = (older + 1).min(self.spans.len());
        let (first, later) = self.spans.split_at_mut(middle);
        let mut left = hits.0;
        for span in first.iter_mut().rev().chain(later) {
            left -= span.give_back(left);
        }
        if left == hits.0 {
            return;
        }
        // the newest span stays even if empty: without it, the next hit would extend the span before it
        let newest = self.spans.pop();
        self.spans.retain(|span| span.hits > 0);
        self.spans.extend(newest);
    }

    fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits) {
        self.release(tier, now, taken_at, hits);
    }

    /// Counts the hits as of `at`, up to a twelfth of a period later where that saves a span.
    fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, now: Timestamp) {
        let used = self.sum(tier, now);
        let changed = Hits(change.apply(used.0));
        if changed < used {
            self.give_back(tier, now, used.minus(changed));
        } else if changed > used && at.after(tier.period) > now {
            self.drop_expired(tier, now);
            if self.spans.is_empty() || at >= self.opened {
                self.reserve(tier, now, at, changed.minus(used));
            } else {
                self.insert(tier, at, changed.minus(used));
            }
        }
    }

    fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        let left = u64::from(tier.requests).saturating_sub(self.sum(tier, now).0);
        let newest = self.counting(tier, now).iter().rfind(|span| span.hits > 0);
        Availability {
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset: newest.map_or(Period::default(), |span| span.expires_in(tier, now)),
        }
    }

    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        if self.probe(tier, now, hits).fits {
            return Period::default();
        }
        let mut used = self.sum(tier, now);
        for span in self.counting(tier, now) {
            used = used.minus(Hits(span.hits.into()));
            if used.plus(hits) <= Hits(tier.requests.into()) {
                return span.expires_in(tier, now);
            }
        }
        self.availability(tier, now).reset
    }

    fn used(&self) -> Hits {
        Hits(self.spans.iter().map(|span| u64::from(span.hits)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans of up to one second.
    fn tier(requests: u32) -> Tier {
        Tier::sliding_window(requests, Period::from_secs(12))
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_burst_counts_for_exactly_one_period() {
        let tier = tier(10);
        let mut window = SlidingWindow::unused(&tier, at(11_000));
        window.take(&tier, at(11_000), Hits(10));
        assert_eq!(window.wait(&tier, at(12_000), Hits(1)), Period::from_secs(11));
        assert!(!window.probe(&tier, at(22_999), Hits(1)).fits);
        assert!(window.probe(&tier, at(23_000), Hits(10)).fits);
    }

    #[test]
    fn hits_in_one_span_expire_with_its_last_hit() {
        let tier = tier(10);
        let mut window = SlidingWindow::unused(&tier, at(0));
        window.take(&tier, at(0), Hits(2));
        window.take(&tier, at(900), Hits(2));
        window.take(&tier, at(1_000), Hits(6));
        assert_eq!(window.wait(&tier, at(2_000), Hits(1)), Period::from_millis(10_900));
        assert_eq!(window.wait(&tier, at(2_000), Hits(5)), Period::from_millis(11_000));
        assert_eq!(window.availability(&tier, at(12_900)).remaining, 4);
    }

    #[test]
    fn there_are_never_more_than_fourteen_spans() {
        let tier = tier(1_000);
        let mut window = SlidingWindow::unused(&tier, at(0));
        for i in 0..500 {
            window.take(&tier, at(i * 97), Hits(1));
            assert!(window.spans.len() <= 14, "{}", window.spans.len());
        }
    }

    #[test]
    fn the_oldest_hits_are_given_back_first() {
        let tier = tier(10);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        window.take(&tier, at(100_000), Hits(4));
        window.take(&tier, at(105_000), Hits(6));
        window.give_back(&tier, at(105_000), Hits(7));
        assert_eq!(window.used(), Hits(3));
        assert_eq!(window.availability(&tier, at(105_000)).reset, Period::from_secs(12));
        window.give_back(&tier, at(105_000), Hits(u64::MAX));
        assert_eq!((window.used(), window.spans()), (Hits(0), &[][..]));
    }

    #[test]
    fn reserved_hits_are_given_back_to_their_span() {
        let tier = tier(10);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        window.take(&tier, at(100_000), Hits(2));
        window.reserve(&tier, at(101_000), at(102_000), Hits(3));
        window.take(&tier, at(106_000), Hits(4));
        window.release(&tier, at(107_000), at(102_000), Hits(2));
        // one reserved hit is left, and all older and newer hits
        let left: Vec<u32> = window.spans.iter().map(|span| span.hits).collect();
        assert_eq!(left, [2, 1, 4]);
        // if the span has too few hits, older ones are given back first
        window.release(&tier, at(107_000), at(102_000), Hits(3));
        assert_eq!(window.spans.iter().map(|span| span.hits).collect::<Vec<_>>(), [4]);
        // nothing is given back for hits that count no more
        window.release(&tier, at(107_000), at(95_000), Hits(1));
        assert_eq!(window.used(), Hits(4));
        window.release(&tier, at(107_000), at(200_000), Hits(9));
        let reset = window.availability(&tier, at(107_000)).reset;
        assert_eq!((window.used(), reset), (Hits(0), Period::default()));
        // the next hit joins the span that is still open, also if no hits are given back before
        window.give_back(&tier, at(107_000), Hits(0));
        window.take(&tier, at(106_500), Hits(1));
        assert_eq!((window.opened, window.spans.len()), (at(106_000), 1));
    }

    #[test]
    fn hits_of_the_past_expire_with_their_own_instant() {
        let tier = tier(50);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        window.take(&tier, at(100_000), Hits(1));
        window.take(&tier, at(106_000), Hits(2));
        let add = |window: &mut SlidingWindow, millis, hits| {
            window.add(&tier, at(millis), CountChange::of(hits), at(107_000));
        };
        add(&mut window, 103_000, 4);
        // within a twelfth of the period before a span: it joins that span
        add(&mut window, 102_001, 7);
        add(&mut window, 103_000, 1);
        add(&mut window, 102_000, 5);
        let before = window.clone();
        // more than a period ago: it no longer counts
        add(&mut window, 95_000, 16);
        add(&mut window, 102_500, 0);
        add(&mut window, 99_000, 0);
        assert_eq!(window, before);
        add(&mut window, 107_000, 3);
        let expected = [(100_000, 1), (102_000, 5), (103_000, 12), (106_000, 2), (107_000, 3)];
        assert_eq!(window.spans(), expected.map(|(last, hits)| Span { last: at(last), hits }));
        assert_eq!(window.wait(&tier, at(112_000), Hits(44)), Period::from_millis(3_000));
    }

    #[test]
    fn a_change_never_leaves_less_than_its_floor() {
        let tier = tier(10);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        window.take(&tier, at(100_000), Hits(4));
        window.add(&tier, at(105_000), CountChange { hits: -3, floor: 2 }, at(105_000));
        assert_eq!(window.used(), Hits(2));
        window.add(&tier, at(105_000), CountChange { hits: -3, floor: 3 }, at(105_000));
        let left = [Span { last: at(100_000), hits: 2 }, Span { last: at(105_000), hits: 1 }];
        assert_eq!(window.spans(), left);
    }

    #[test]
    fn late_hits_add_few_spans() {
        let tier = tier(1_000);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        for i in 0..600 {
            let now = at(100_000 + i * 97);
            window.take(&tier, now, Hits(1));
            for back in [11_900, 7_000, 5_003, 1_100, 900] {
                let then = at(100_000 + i * 97 - back);
                window.add(&tier, then, CountChange::of(1), now);
            }
            assert!(window.spans.len() <= 27, "{}", window.spans.len());
            assert!(window.spans.is_sorted_by_key(|span| span.last), "{window:?}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_drops_no_hits() {
        let tier = tier(2);
        let mut window = SlidingWindow::unused(&tier, at(100_000));
        window.take(&tier, at(100_000), Hits(1));
        window.take(&tier, at(10_000), Hits(1));
        assert!(!window.probe(&tier, at(20_000), Hits(1)).fits);
        // and the wait lasts until the clock is there again
        assert_eq!(window.wait(&tier, at(99_000), Hits(1)), Period::from_secs(13));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let tier = Tier::sliding_window(u32::MAX, Period::from_secs(365 * 86_400));
        let last = Timestamp::from_nanos(u64::MAX - 1);
        let mut window = SlidingWindow::unused(&tier, at(0));
        window.take(&tier, last, Hits(u64::from(u32::MAX)));
        assert!(!window.probe(&tier, last, Hits(u64::MAX)).fits);
        assert_eq!(window.availability(&tier, last).remaining, 0);
        window.wait(&tier, last, Hits(1));
    }
}
