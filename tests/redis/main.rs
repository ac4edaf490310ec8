//! Redis as the store that instances share, against real servers.

#[expect(dead_code, reason = "other tests run commands to their end")]
#[path = "../support/child.rs"]
mod child;
#[path = "../support/ops.rs"]
mod ops;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/server_process.rs"]
mod server_process;
#[path = "../support/skipped.rs"]
mod skipped;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

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
