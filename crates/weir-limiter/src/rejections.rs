//! Which rejections are reported, and to whom: why a request was rejected must be known an hour later, too.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

use weir_limit::{
    Basis, CompiledRule, Coordination, Decision, LimitCheck, NANOS_PER_SECOND, RuleRef, Timestamp,
};

/// `WEIR_LOG_REJECTIONS`: the rejections that are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportedRejections {
    /// None.
    #[default]
    None,
    /// The first of each rule and minute.
    Sampled,
    /// Every one.
    All,
}

/// A descriptor that is over its limit, in a request that is rejected.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// The descriptor, its rule and its hits.
    pub check: &'a LimitCheck<'a>,
    /// The decision.
    pub decision: &'a Decision,
    /// The limit on requests in flight, if that rejects.
    pub in_flight: Option<u32>,
    /// The time of the decision.
    pub at: Timestamp,
    /// The coordination mode of the rule; none for a limit that came with the request.
    pub mode: Option<Coordination>,
}

/// Receives rejections, on the thread that has decided.
pub trait RejectionLog: fmt::Debug + Send + Sync + 'static {
    /// Reports `rejection`. Must not block.
    fn rejected(&self, rejection: &Rejection<'_>);
}

/// The minutes of the last reports, for each rule and for all limits that come with requests: of rejections by the
/// count, and of those made without the store, which the others must not hide.
#[derive(Debug)]
pub(super) struct LastReports(Box<[AtomicU32]>);

// === impl LastReports ===

impl LastReports {
    pub(super) fn new(rules: usize) -> Self {
        Self((0..2 * (rules + 1)).map(|_| AtomicU32::new(u32::MAX)).collect())
    }

    /// Returns whether a rejection by `rule` at `now` is the first of its minute on that `basis`.
    pub(super) fn is_first(&self, rule: &RuleRef<'_>, basis: Basis, now: Timestamp) -> bool {
        let rule = rule.compiled().map_or(self.0.len() / 2 - 1, CompiledRule::index);
        let slot = 2 * rule + usize::from(basis == Basis::Fallback);
        // equal minutes of two centuries do no harm
        let minute = u32::try_from(now.as_nanos() / (60 * NANOS_PER_SECOND)).unwrap_or_default();
        let last = &self.0[slot];
        // most rejections are not the first, and a write would take the cache line from other cores
        last.load(Ordering::Relaxed) != minute && last.swap(minute, Ordering::Relaxed) != minute
    }
}
