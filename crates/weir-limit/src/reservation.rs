//! Reserves hits of a rule's tiers in advance, and gives unused ones back.

use super::{
    algorithm::CounterState,
    decision::{Decision, decision_from_store},
    tier::{OverLimitPolicy, Tier},
    units::{Hits, Period, Timestamp},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRequest {
    /// The fewest hits to reserve. Zero counts as one.
    pub least: Hits,
    /// The most hits to reserve. Fewer than `least` counts as `least`.
    pub want: Hits,
    /// The longest time between reserving a hit and using it.
    pub hold: Period,
}

/// Hits that were taken in advance. Releasing consumes it, so that no hit is given back twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "reserved hits stay counted until they are released"]
pub struct Reservation {
    /// The number of hits: none, or between [`ReservationRequest::least`] and [`ReservationRequest::want`].
    pub hits: Hits,
    /// The hits may be used before this instant of the caller's clock: within `hold`, or until a fixed window ends.
    pub until: Timestamp,
    /// The counters afterwards. If nothing was reserved, it is over, and its reset is the wait for `least` hits.
    pub decision: Decision,
    /// The position of the hits in the counters.
    pub counted: ReservedSpan,
}

/// The time for which a store counts reserved hits, on that store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedSpan {
    /// The instant of the reservation: fixed windows count the hits in the window of this instant.
    pub from: Timestamp,
    /// The latest use: sliding windows count the hits as of this instant.
    pub until: Timestamp,
    /// Whether the store is known to count them, or will be sent them. If not, nothing is given back to it.
    pub is_reported: bool,
}

// === impl ReservationRequest ===

impl ReservationRequest {
    /// Returns the number of hits to reserve if `room` more fit: zero if fewer than `least` fit.
    pub fn fit(&self, room: Hits) -> Hits {
        let least = self.least.max(Hits(1));
        if room < least { Hits(0) } else { self.want.max(least).min(room) }
    }
}

/// Reserves hits in `counters`, one for each of `tiers`: in all of them, or in none.
///
/// The hits then count as if they were used at the latest possible instant, so windows never exceed their limit. A
/// bucket refills meanwhile: it admits at most `burst + requests * (t + hold) / period` hits in any time `t`. Panics if
/// there are no tiers, or if the numbers of tiers and counters differ.
pub fn reserve(
    tiers: &[Tier],
    counters: &mut [CounterState],
    request: ReservationRequest,
    now: Timestamp,
) -> Reservation {
    assert!(!tiers.is_empty() && tiers.len() == counters.len());
    let mut room = Hits(u64::MAX);
    let mut until = now.after(request.hold);
    for (tier, counter) in tiers.iter().zip(&*counters) {
        let availability = counter.availability(tier, now);
        room = room.min(Hits(availability.remaining.into()));
        if tier.has_windows() {
            until = until.min(now.after(availability.reset));
        }
    }
    let hits = request.fit(room);
    for (tier, counter) in tiers.iter().zip(&mut *counters) {
        counter.reserve(tier, now, until, hits);
    }
    let over = hits == Hits(0);
    let decided_hits = if over { request.least.max(Hits(1)) } else { hits };
    Reservation {
        hits,
        until,
        decision: decision_from_store(tiers, counters, OverLimitPolicy::Ignore, over, decided_hits, now),
        counted: ReservedSpan { from: now, until, is_reported: true },
    }
}

/// Gives `hits` reserved for `span` back to `counters`, one for each of `tiers`, unless windows have ended since.
pub fn release(
    tiers: &[Tier],
    counters: &mut [CounterState],
    span: ReservedSpan,
    hits: Hits,
    now: Timestamp,
) {
    for (tier, counter) in tiers.iter().zip(counters) {
        if tier.has_windows() {
            counter.put_back(tier, now, span.from, hits);
        } else {
            counter.release(tier, now, span.until, hits);
        }
    }
}
