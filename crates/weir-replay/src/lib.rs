//! Replays: what other rules would have decided about recorded requests, in virtual time, by one exact limiter.
//!
//! | to | see |
//! | --- | --- |
//! | compare rules | [`compare`], [`Comparison`] |
//! | follow each decision | [`ExactLimiter`] |
//! | read the access log of a proxy | [`AccessLogMap`], [`read_access_log`] |
//! | check and compare rules that are no files | [`try_rules`] |

mod access_log;
mod compare;
mod comparison;
mod exact;
mod hashes;
mod log_time;
mod table;
mod trial;

pub use access_log::{AccessLog, AccessLogError, AccessLogMap, FieldPath, FieldPathError, read_access_log};
pub use compare::{ReplayInput, compare};
pub use comparison::{Comparison, KeyChange, OldNew, ReplaySeries, RuleChange};
pub use exact::{ExactLimiter, ReplayGaps, ReplaySettings, Replayed, ReplayedStatus};
pub use log_time::format_time;
pub use trial::{Trial, TrialError, try_rules};
