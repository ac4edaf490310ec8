//! The demand for limits whose parts follow it, and the parts that the store has told.

use std::{cmp::Reverse, collections::HashMap};

use parking_lot::Mutex;

use crate::{
    limit::{
        Hits, Period, Timestamp,
        demand::{Demand, DemandPart, FollowedWindow},
    },
    store::remote::{KeyDemand, KeyPart, MAX_DEMANDS},
};

/// The most limits whose demand is known. Others keep even parts.
const MOST: usize = 4_096;

/// How long an instance has no more than an even part after the store has forgotten a limit: until then others may have
/// their larger ones.
const FORGETTING: Period = Period::from_secs(5);

/// The limits whose parts follow demand.
#[derive(Debug, Default)]
pub(in super::super) struct Demands {
    limits: Mutex<Limits>,
}

#[derive(Debug, Default)]
struct Limits {
    by_key: HashMap<u64, FollowedLimit>,
    /// The last heartbeat, on the store's clock.
    reported_at: Timestamp,
}

/// A limit whose parts follow demand.
#[derive(Debug, Default)]
struct FollowedLimit {
    window: FollowedWindow,
    /// Hits asked for since the last heartbeat.
    asked: u64,
    /// The last window in which hits of callers that wait were asked for.
    waited_at: Timestamp,
    /// Hits asked for lately, in a window.
    demand: u64,
    /// The part of the window in which it was last looked at.
    present: Told,
    /// The part of windows that begin from its instant on.
    next: Told,
}

/// What is asked of a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct AskedHits {
    /// The hits of callers that come now.
    pub(in super::super) new: Hits,
    /// The hits of all callers that wait. They are demand once in each window, however often their line asks.
    pub(in super::super) waiting: Hits,
}

/// A part that the store has told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Windows that begin from then on have it, on the store's clock.
    from: Timestamp,
    part: PartOf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartOf {
    /// An even one, since the store has told none.
    #[default]
    Even,
    /// This one.
    Own(DemandPart),
    /// The smaller one of an even part and of these hits, which the store does not know any more since this instant.
    Forgotten(u32, Timestamp),
}

// === impl Demands ===

impl Demands {
    /// Counts what is `asked` of the limit `key`. Returns this instance's part of the window that begins at `start`,
    /// and of the next one, which begins at `end`, given the `even` parts of both.
    pub(in super::super) fn ask(
        &self,
        key: u64,
        window: FollowedWindow,
        asked: AskedHits,
        [start, end]: [Timestamp; 2],
        even: [u32; 2],
    ) -> [u32; 2] {
        let by_key = &mut self.limits.lock().by_key;
        let is_asked = asked.new.plus(asked.waiting) > Hits(0);
        if !by_key.contains_key(&key) && (!is_asked || by_key.len() >= MOST) {
            return even;
        }
        let limit = by_key.entry(key).or_default();
        limit.window = window;
        limit.asked = limit.asked.saturating_add(asked.new.0);
        if asked.waiting > Hits(0) && limit.waited_at != start {
            limit.waited_at = start;
            limit.asked = limit.asked.saturating_add(asked.waiting.0);
        }
        limit.begin_window(start);
        let next = if limit.next.from <= end { limit.next } else { limit.present };
        [limit.present.part.hits(even[0]), next.part.hits(even[1])]
    }

    /// Returns what a heartbeat at the instant `now` on the store's clock says.
    pub(super) fn report(&self, now: Timestamp) -> Vec<KeyDemand> {
        let limits = &mut *self.limits.lock();
        let elapsed = now.since(std::mem::replace(&mut limits.reported_at, now));
        limits.by_key.retain(|_, limit| {
            limit.follow_demand(elapsed);
            limit.begin_window(limit.window.start(now));
            limit.demand > 0 || limit.next.part != PartOf::Even || limit.present.part != PartOf::Even
        });
        let demand = |(key, limit): (&u64, &FollowedLimit)| KeyDemand {
            key: *key,
            window: limit.window,
            demand: Demand {
                hits: u32::try_from(limit.demand).unwrap_or(u32::MAX),
                acknowledged: limit.present.part.version(),
            },
        };
        let mut demands: Vec<KeyDemand> = limits.by_key.iter().map(demand).collect();
        // what the store has told comes first, since it is acknowledged
        demands.sort_unstable_by_key(|KeyDemand { key, demand, .. }| {
            let is_told =
                limits.by_key.get(key).is_some_and(|limit| matches!(limit.next.part, PartOf::Own(_)));
            (!is_told, Reverse(demand.hits), *key)
        });
        demands.truncate(MAX_DEMANDS);
        demands
    }

    /// Follows the `parts` that the store has told at the instant `now` on its clock.
    pub(super) fn follow(&self, parts: &[KeyPart], now: Timestamp) {
        let by_key = &mut self.limits.lock().by_key;
        for told in parts {
            let limit = || FollowedLimit { window: told.window, ..FollowedLimit::default() };
            by_key.entry(told.key).or_insert_with(limit);
        }
        for (key, limit) in by_key {
            limit.begin_window(limit.window.start(now));
            let told = parts.iter().find(|told| told.key == *key).map(|told| told.part);
            limit.next = Told { from: now, part: limit.next.part.after(told, now) };
        }
    }

    /// Returns the number of limits whose part the store has told.
    pub(in super::super) fn told(&self) -> usize {
        let is_told = |limit: &&FollowedLimit| matches!(limit.next.part, PartOf::Own(_));
        self.limits.lock().by_key.values().filter(is_told).count()
    }
}

// === impl FollowedLimit ===

impl FollowedLimit {
    fn begin_window(&mut self, start: Timestamp) {
        if self.next.from <= start {
            self.present = self.next;
        }
    }

    /// Follows what was asked in the time that has `elapsed`: of a window that is longer, what was asked earlier fades.
    fn follow_demand(&mut self, elapsed: Period) {
        let (elapsed, period) =
            (u128::from(elapsed.as_nanos().max(1)), u128::from(self.window.period.as_nanos()));
        let asked = u128::from(std::mem::take(&mut self.asked));
        let demand = if elapsed < period {
            u128::from(self.demand) - (u128::from(self.demand) * elapsed).div_ceil(period) + asked
        } else {
            asked * period / elapsed
        };
        self.demand = u64::try_from(demand).unwrap_or(u64::MAX);
    }
}

// === impl PartOf ===

impl PartOf {
    fn hits(self, even: u32) -> u32 {
        match self {
            Self::Even => even,
            Self::Own(part) => part.hits,
            Self::Forgotten(hits, _) => hits.min(even),
        }
    }

    fn version(self) -> u64 {
        if let Self::Own(part) = self { part.version } else { 0 }
    }

    /// Returns the part after a reply at `now` in which the store has `told` this one, or none.
    fn after(self, told: Option<DemandPart>, now: Timestamp) -> Self {
        match (told, self) {
            (Some(part), _) => Self::Own(part),
            (None, Self::Own(part)) => Self::Forgotten(part.hits, now),
            (None, Self::Forgotten(_, since)) if now.since(since) >= FORGETTING => Self::Even,
            (None, unchanged) => unchanged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: FollowedWindow = FollowedWindow { limit: 100, period: Period::from_secs(1) };

    fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn told(hits: u32, version: u64) -> [KeyPart; 1] {
        [KeyPart { key: 7, window: SECOND, part: DemandPart { hits, version } }]
    }

    fn new(hits: u64) -> AskedHits {
        AskedHits { new: Hits(hits), ..AskedHits::default() }
    }

    /// Asks `hits` at `millis`, with even parts of 50.
    fn ask(demands: &Demands, millis: u64, hits: u64) -> u32 {
        let start = ms(millis / 1_000 * 1_000);
        demands.ask(7, SECOND, new(hits), [start, start.after(SECOND.period)], [50, 50])[0]
    }

    #[test]
    fn a_part_applies_from_the_next_window_on_and_is_acknowledged_in_it() {
        let demands = Demands::default();
        demands.report(ms(9_000));
        assert_eq!(ask(&demands, 9_100, 30), 50);
        let reported = demands.report(ms(10_000));
        assert_eq!((reported[0].demand, reported[0].window), (Demand { hits: 30, acknowledged: 0 }, SECOND));
        demands.follow(&told(20, 5), ms(10_010));
        assert_eq!((ask(&demands, 10_900, 1), demands.report(ms(10_950))[0].demand.acknowledged), (50, 0));
        assert_eq!((ask(&demands, 11_000, 1), demands.report(ms(11_001))[0].demand.acknowledged), (20, 5));
        // also without any request
        demands.follow(&told(10, 6), ms(11_010));
        assert_eq!(demands.report(ms(12_001))[0].demand.acknowledged, 6);
        assert_eq!(demands.told(), 1);
    }

    /// A line asks several times in a window, and for the same callers in the next one.
    #[test]
    fn hits_of_callers_that_wait_are_demand_once_in_a_window() {
        let demands = Demands::default();
        demands.report(ms(10_000));
        let wait = |millis: u64, waiting: u64| {
            let start = ms(millis / 1_000 * 1_000);
            let asked = AskedHits { waiting: Hits(waiting), ..AskedHits::default() };
            demands.ask(7, SECOND, asked, [start, start.after(SECOND.period)], [50, 50]);
        };
        wait(10_000, 80);
        wait(10_001, 30);
        ask(&demands, 10_500, 5);
        assert_eq!(demands.report(ms(11_000))[0].demand.hits, 85);
        wait(11_000, 30);
        assert_eq!(demands.report(ms(12_000))[0].demand.hits, 30);
    }

    /// A later reply does not take the place of the part that the window has.
    #[test]
    fn a_window_keeps_its_part() {
        let demands = Demands::default();
        demands.follow(&told(20, 5), ms(10_010));
        demands.follow(&told(10, 6), ms(11_010));
        assert_eq!([ask(&demands, 11_900, 1), ask(&demands, 12_100, 1)], [20, 10]);
    }

    #[test]
    fn a_limit_that_the_store_has_forgotten_has_no_more_than_an_even_part_for_some_seconds() {
        let demands = Demands::default();
        for (hits, expected) in [(90, [90, 50, 50]), (20, [20, 20, 50])] {
            demands.follow(&told(hits, 5), ms(10_010));
            let at_first = ask(&demands, 11_500, 1);
            demands.follow(&[], ms(11_510));
            let then = ask(&demands, 12_500, 1);
            demands.follow(&[], ms(16_510));
            assert_eq!([at_first, then, ask(&demands, 17_000, 1)], expected);
        }
    }

    #[test]
    fn demand_is_that_of_a_window() {
        let of = |seconds, asked: &[u64]| {
            let window = FollowedWindow { limit: 100, period: Period::from_secs(seconds) };
            let mut limit = FollowedLimit { window, ..FollowedLimit::default() };
            for asked in asked {
                limit.asked = *asked;
                limit.follow_demand(Period::from_secs(2));
            }
            limit.demand
        };
        assert_eq!((of(1, &[100, 40]), of(2, &[100, 40]), of(4, &[100, 40])), (20, 40, 90));
        assert_eq!(of(60, &[50; 300]), 1_500 - 29, "rounded up as it fades");
        let gone: Vec<u64> = std::iter::once(100).chain(std::iter::repeat_n(0, 400)).collect();
        assert_eq!(of(60, &gone), 0);
    }

    #[test]
    fn the_store_hears_of_what_it_has_told_and_then_of_the_highest_demands() {
        let demands = Demands::default();
        demands.report(ms(9_000));
        demands.follow(&told(20, 5), ms(9_010));
        for key in 100..200 {
            demands.ask(key, SECOND, new(key), [ms(9_000), ms(10_000)], [1, 1]);
        }
        let reported = demands.report(ms(10_000));
        assert_eq!((reported.len(), reported[0].key, reported[1].key), (MAX_DEMANDS, 7, 199));
        // nothing is kept without a reason
        demands.follow(&[], ms(10_010));
        demands.follow(&[], ms(16_010));
        for at in [17_000, 18_000, 19_000] {
            demands.report(ms(at));
        }
        assert!(demands.limits.lock().by_key.is_empty());
        for key in 0..5_000 {
            demands.ask(key, SECOND, new(1), [ms(19_000), ms(20_000)], [1, 1]);
        }
        assert_eq!(demands.limits.lock().by_key.len(), MOST);
    }
}
