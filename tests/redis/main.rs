//! Redis as the store that instances share, against real servers.

#[path = "../support/ops.rs"]
mod ops;

mod algorithms;
mod auto;
mod cluster_faults;
mod connecting;
mod consumers;
mod deadlines;
mod faults;
mod fleet;
mod hostile;
mod keys;
mod killed;
mod lua;
mod members;
mod network;
mod pools;
mod pools_cluster;
mod pools_evicted;
mod pools_fleet;
mod priority;
mod reference_counts;
mod reports;
mod rights;
mod self_signed;
mod split;
mod startup;
mod support;
mod tokens;
mod topology;

use weir_harness::wire;
use weir_testing::{child, proxy, skipped};
