//! What tests ask of a shared store, one thing at a time.

use std::sync::Arc;

use weir_limit::{OverLimitPolicy, Period, Timestamp};
use weir_store::remote::{Command, Exchange, LeaseRequest, Reply, Report, Target};

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every test asks for everything")]
pub(crate) enum Op {
    /// A report of what has happened.
    Add { report: Report },
    /// A try, whose hits count under [`OverLimitPolicy::Count`] even if they are rejected.
    Take { hits: u64 },
    /// Hits to hold, after a report.
    Grant { report: Option<Report>, least: u64, want: u64, hold: Period },
    /// Everything else.
    Exchange(Exchange),
}

impl Op {
    /// Returns what does it on a target with this policy.
    pub(crate) fn exchange(&self, policy: OverLimitPolicy) -> Exchange {
        match self.clone() {
            Self::Add { report } => Exchange::of_report(report),
            Self::Take { hits } => Exchange::of_try(hits, policy),
            Self::Grant { report, least, want, hold } => {
                let reports = report.into_iter().collect();
                Exchange { reports, ..Exchange::of_lease(LeaseRequest { least, want, hold }) }
            }
            Self::Exchange(exchange) => exchange,
        }
    }

    /// Returns what does it to `target` at the instant `at`.
    pub(crate) fn command(&self, target: &Arc<Target>, at: Timestamp) -> Command {
        let exchange = self.exchange(target.over_limit_policy);
        Command { target: Arc::clone(target), at, exchange }
    }

    /// Returns `reply` to it, in which hits that were added or taken count as granted.
    pub(crate) fn counted(&self, reply: Reply) -> Reply {
        let granted = match self {
            Self::Add { report } => u64::try_from(report.change.hits).unwrap_or_default(),
            Self::Take { hits } => hits * reply.taken.first().copied().map_or(0, u64::from),
            Self::Grant { .. } | Self::Exchange(_) => reply.granted,
        };
        Reply { granted, ..reply }
    }
}
