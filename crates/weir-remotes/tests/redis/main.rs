//! Redis as the store that instances share, against real servers.

// the simulated store is asked for the same
#[path = "../../../weir-coordinate/tests/simulated/ops.rs"]
mod ops;

mod algorithms;
mod auto;
mod board;
mod calendars;
mod connecting;
mod faults;
mod fleet;
mod hostile;
mod keys;
mod lua;
mod members;
mod places;
mod places_fleet;
mod pools;
mod pools_cluster;
mod pools_fleet;
mod priority;
mod reports;
mod rights;
mod self_signed;
mod support;
mod topology;

use weir_testing::{proxy, skipped};
