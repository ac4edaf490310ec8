//! OpenTelemetry traces: weir's spans, as a collector receives them.

mod collector;
#[expect(dead_code, reason = "other tests reload rules and set the clock")]
#[path = "../support/in_process.rs"]
mod in_process;
#[expect(dead_code, reason = "other tests restart servers and count their items")]
#[path = "../memcached/support/server.rs"]
mod memcached_server;
#[expect(dead_code, reason = "other tests need other servers")]
#[path = "../redis/support/server.rs"]
mod redis_server;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

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

use weir_testing::{authority, child, mutual_tls, server_process};

use in_process::DEADLINE;
