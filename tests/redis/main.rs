//! Weirs that share a real Redis, and what they do when it fails.

mod admin;
mod calendars;
mod cluster_faults;
mod consumers;
mod deadlines;
mod hostile;
mod in_flight;
mod killed;
mod left_callers;
mod network;
mod pools_evicted;
mod reference_counts;
mod split;
mod startup;
mod support;
mod tokens;

use weir_harness::wire;
use weir_testing::{child, proxy};
