//! OpenTelemetry traces: weir's spans, as a collector receives them.

mod attributes;
mod disk;
mod export;
mod memcached;
mod propagation;
mod redis;
mod stopping;
mod tls;
mod traced;
mod waits;

use weir_harness::{collector, in_process, wire};
use weir_testing::{authority, child, memcached_server, mutual_tls, redis_server};
