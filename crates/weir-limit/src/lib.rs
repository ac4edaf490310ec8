//! Rate limits without a clock and without I/O: time is a parameter.
//!
//! | to | see |
//! | --- | --- |
//! | write a rule | [`Domain`], [`Rule`], [`Limit`], [`Tier`], [`Calendar`], [`Pattern`], [`ValueTable`], [`NetworkList`] |
//! | find the rules of a request | [`RuleSet`], [`Request`], [`Descriptor`], [`Matched`], [`Explanation`] |
//! | count, and decide | [`algorithm`], [`decide`], [`Decision`], [`Verdict`] |
//! | let callers wait in turn | [`line`](mod@line) |
//! | lend capacity between tenants | [`share`] |
//! | divide a limit between instances | [`part`], [`Coordination`] |
//! | limit requests in flight | [`InFlight`], [`PlaceCheck`], [`RequestName`] |
//! | reserve costs | [`Reserve`], [`CostEstimate`] |
//! | keep buckets whose parameters come with each request | [`request_bucket`] |

pub mod algorithm;
mod calendar;
mod compiled_rule;
mod coordination;
mod decision;
mod descriptor;
mod explain;
mod inline_str;
mod key;
mod limit_match;
pub mod line;
mod matched;
mod matcher;
mod name_map;
mod named;
mod network;
pub mod part;
mod pattern;
mod place;
mod place_set;
pub mod request_bucket;
mod request_name;
mod reservation;
mod reserve;
mod rule;
mod runtime_limit;
mod schedule;
pub mod share;
mod shared_counts;
mod siphash;
mod table;
mod tally;
mod tier;
mod units;
mod verdict;

pub use algorithm::{Algorithm, AlgorithmKind, Bucket, Refill};
pub use calendar::{CALENDAR_EDGES, Calendar, CalendarUnit, CalendarWindows};
pub use compiled_rule::{CompiledRule, CounterValue, Details, Level, RuleId, RulePath};
pub use coordination::{Coordination, OnStoreFailure, RuleCoordination};
pub use decision::{Basis, Decision, Direction, decide, decision_from_store, look, take_one, take_two};
pub use descriptor::{Descriptor, Entry, Request};
pub use explain::{Attempt, Candidate, Explanation, Fit, Outcome, PassedOver, Step};
pub use key::{CounterKey, KeyHasher};
pub use limit_match::{LimitMatch, MatchedLimit};
pub use matched::{DescriptorMatch, LimitCheck, Matched, OwnPart, RuleRef};
pub use matcher::{Lookup, MAX_COMPARISONS, Root, RuleSet, TooManyPatterns};
pub use named::Named;
pub use network::{CountBy, IpNetwork, ListedNetwork, NetworkError, NetworkList, PrefixLengths};
pub use pattern::{Pattern, Values};
pub use place::{CHECK, IN_FLIGHT, InFlight, PlaceAsk, PlaceCheck, PlaceDecision, PlaceName, ReservedHits};
pub use place_set::PlaceSet;
pub use request_name::RequestName;
pub use reservation::{Reservation, ReservationRequest, ReservedSpan, release, reserve};
pub use reserve::{CostEstimate, Reserve, ReserveAmount};
pub use rule::{Domain, GiveBack, Limit, Metadata, Origin, Rule, RuleNode, Scope};
pub use runtime_limit::{RuntimeLimit, RuntimeLimitError};
pub use schedule::{ActiveDays, ActiveTime, DateRange, DayOfYear, Schedule, ScheduledRule};
pub use shared_counts::{Capabilities, SharedCounts, SharedStore};
pub use table::{TableBytes, TableMemory, TableRow, TableRows, TableValues, ValueTable};
pub use tally::Tally;
pub use tier::{OverLimitPolicy, SharedTiers, Tier, Tiers, capacity};
pub use units::{Hits, NANOS_PER_SECOND, Period, Timestamp, Unit};
pub use verdict::{
    Code, CurrentLimit, InFlightLimit, InFlightVerdict, Modes, PlaceDecisions, Status, Verdict,
};
