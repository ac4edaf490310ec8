//! The pure core: requests, rules, algorithms and verdicts. No tokio, no I/O, no clock.

pub mod algorithm;
mod compiled_rule;
mod coordination;
mod decision;
mod descriptor;
mod explain;
mod inline_str;
mod key;
mod matched;
mod matcher;
mod pattern;
pub mod request_bucket;
mod reservation;
mod rule;
mod runtime_limit;
pub mod share;
mod tally;
mod tier;
mod units;
mod verdict;

pub use compiled_rule::{CompiledRule, Details, Level, RuleId, RulePath};
pub use coordination::{Coordination, OnStoreFailure, RuleCoordination};
pub use decision::{Decision, Direction, decide, decision_from_store};
pub use descriptor::{Descriptor, Entry, Request};
pub use explain::{Attempt, Candidate, Explanation, Outcome, Step};
pub use key::{CounterKey, KeyHasher};
pub use matched::{DescriptorMatch, LimitCheck, Matched, RuleRef, Scope};
pub use matcher::{Lookup, RuleSet};
pub use pattern::{Pattern, Values};
pub use reservation::{Reservation, ReservationRequest, ReservedSpan, release, reserve};
pub use rule::{Domain, Limit, Metadata, Origin, Rule, RuleNode};
pub use runtime_limit::{RuntimeLimit, RuntimeLimitError};
pub use tally::Tally;
pub use tier::{Algorithm, Bucket, OverLimitPolicy, Refill, SharedTiers, Tier, Tiers};
pub use units::{Hits, NANOS_PER_SECOND, Period, Timestamp, Unit};
pub use verdict::{Code, CurrentLimit, Modes, Status, Verdict};
