//! Call counts and response times of a server's methods.

use std::time::{Duration, Instant};

use super::{
    counter::BusyCounter,
    histogram::{Histogram, Refinement},
};

#[derive(Debug, Default)]
pub struct MethodStats {
    total_requests: BusyCounter,
    /// Response times, including calls that the caller cancelled.
    pub response_time: Histogram,
}

/// Records a call's response time when dropped.
#[derive(Debug)]
#[must_use = "the call ends when this is dropped"]
pub struct CallTimer<'a> {
    stats: &'a MethodStats,
    begun: Instant,
}

// === impl MethodStats ===

impl MethodStats {
    pub(super) fn refined(refinement: &Refinement) -> Self {
        Self { response_time: Histogram::refined(refinement), ..Self::default() }
    }

    pub fn total_requests(&self) -> u64 {
        self.total_requests.get()
    }

    pub fn begin(&self) -> CallTimer<'_> {
        self.begin_at(Instant::now())
    }

    pub fn begin_at(&self, begun: Instant) -> CallTimer<'_> {
        self.total_requests.add(1);
        CallTimer { stats: self, begun }
    }

    pub fn record(&self, calls: u64, took: Duration) {
        self.total_requests.add(calls);
        self.response_time.record_many(calls, took);
    }
}

// === impl CallTimer ===

/// A cancelled call has waited too, and counts like any other.
impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        self.stats.response_time.record(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_call_counts() {
        let method = MethodStats::default();
        let call = method.begin();
        assert_eq!((method.total_requests(), method.response_time.get().count()), (1, 0));
        drop(call);
        assert_eq!(method.response_time.get().count(), 1);
    }
}
