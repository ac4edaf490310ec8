//! The stats of a rule's limit on requests in flight.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    counter::Counter,
    histogram::{Distribution, Histogram},
    reserve_stats::ReserveStats,
};

/// So many requests may begin before one has to end, or the log says that ends may be missing.
const UNENDED: u64 = 100;

/// What a rule's limit on requests in flight has seen.
#[derive(Debug)]
pub struct PlaceStats {
    rule: Arc<[Box<str>]>,
    started: Counter,
    ended: Counter,
    given_up: Counter,
    unknown: Counter,
    unnamed: Counter,
    undone: Counter,
    elsewhere: Counter,
    durations: Histogram,
    reserve: OnceLock<Box<ReserveStats>>,
    is_unended_told: AtomicBool,
    is_elsewhere_told: AtomicBool,
}

/// The values of [`PlaceStats`].
#[derive(Clone, Debug)]
pub struct PlaceTotals {
    /// In the order of [`PlaceTotals::NAMES`].
    pub counts: [u64; PlaceTotals::NAMES.len()],
    /// How long requests ran that have ended.
    pub durations: Distribution,
    /// In the order of [`ReserveStats::NAMES`]; none if its requests have never reserved hits.
    pub reserve: Option<[u64; ReserveStats::NAMES.len()]>,
}

// === impl PlaceStats ===

impl PlaceStats {
    pub(super) fn new(rule: Arc<[Box<str>]>) -> Self {
        Self {
            rule,
            started: Counter::default(),
            ended: Counter::default(),
            given_up: Counter::default(),
            unknown: Counter::default(),
            unnamed: Counter::default(),
            undone: Counter::default(),
            elsewhere: Counter::default(),
            durations: Histogram::default(),
            reserve: OnceLock::new(),
            is_unended_told: AtomicBool::default(),
            is_elsewhere_told: AtomicBool::default(),
        }
    }

    /// Counts a request that took a place.
    pub fn start(&self) {
        self.started.add(1);
        if self.started.get() >= UNENDED
            && self.ended.get() == 0
            && !self.is_unended_told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                rule = %self.rule.join("."),
                "{UNENDED} requests have started and none has ended: does Envoy send the entry 'in_flight' with \
                 apply_on_stream_done?"
            );
        }
    }

    /// Counts a request that ended after it `took` so long.
    pub fn end(&self, took: Duration) {
        self.ended.add(1);
        self.durations.record(took);
    }

    /// Counts a request that ended by a cost without a name, so that nobody knows how long it took.
    pub fn end_newest(&self) {
        self.ended.add(1);
    }

    /// Returns the stats of what its requests reserve, creating them if needed.
    pub fn reserve(&self) -> &ReserveStats {
        self.reserve.get_or_init(|| Box::new(ReserveStats::new(Arc::clone(&self.rule))))
    }

    /// Counts places that their requests kept for too long, or that had to make room.
    pub fn give_up(&self, places: u64) {
        self.given_up.add(places);
    }

    /// Counts the end of a request that has no place: it was given up, has ended before, or never began.
    pub fn end_unknown(&self) {
        self.unknown.add(1);
    }

    /// Counts hits that were given back without a name, which end nothing.
    pub fn end_unnamed(&self) {
        self.unnamed.add(1);
    }

    /// Counts a request that was not admitted, or whose caller left before the answer, after it took a place.
    pub fn undo(&self) {
        self.undone.add(1);
    }

    /// Counts the end of a request that another instance has admitted, and that the store does not know.
    pub fn end_elsewhere(&self) {
        self.elsewhere.add(1);
        if !self.is_elsewhere_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule = %self.rule.join("."),
                "requests that other instances started, or this one before it was started again, end here: use Redis"
            );
        }
    }

    /// Returns the current values.
    pub fn totals(&self) -> PlaceTotals {
        let [started, ended, given_up, unknown, unnamed, undone, elsewhere] = [
            &self.started,
            &self.ended,
            &self.given_up,
            &self.unknown,
            &self.unnamed,
            &self.undone,
            &self.elsewhere,
        ]
        .map(Counter::get);
        let now = started.saturating_sub(ended.saturating_add(given_up).saturating_add(undone));
        PlaceTotals {
            counts: [now, started, ended, given_up, unknown, unnamed, undone, elsewhere],
            durations: self.durations.get(),
            reserve: self.reserve.get().map(|reserve| reserve.values()),
        }
    }
}

// === impl PlaceTotals ===

impl PlaceTotals {
    /// The name of each count in metrics, and its meaning. The first goes up and down.
    pub const NAMES: [(&str, &str); 8] = [
        ("weir.in_flight", "Requests in flight now."),
        ("weir.in_flight_started", "Requests that took a place."),
        ("weir.in_flight_ended", "Requests that ended and freed their place."),
        ("weir.in_flight_given_up", "Places that were freed without an end: too old, or to make room."),
        ("weir.in_flight_unknown", "Ends of requests without a place: given up, repeated, or never begun."),
        ("weir.in_flight_unnamed", "Hits given back without the name of a request, which end nothing."),
        (
            "weir.in_flight_undone",
            "Requests that took a place and were not admitted, or whose caller had left.",
        ),
        (
            "weir.in_flight_elsewhere",
            "Ends of requests that another instance admitted, without a shared store.",
        ),
    ];

    /// Adds `more`: rules whose names are shown alike are reported as one.
    pub fn add(&mut self, more: &Self) {
        for (count, more) in self.counts.iter_mut().zip(more.counts) {
            *count = count.saturating_add(more);
        }
        self.durations.add(&more.durations);
        match (&mut self.reserve, more.reserve) {
            (Some(reserve), Some(more)) => {
                for (count, more) in reserve.iter_mut().zip(more) {
                    *count = count.saturating_add(more);
                }
            }
            (reserve, more) => *reserve = reserve.or(more),
        }
    }
}
