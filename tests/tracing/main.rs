//! OpenTelemetry traces: weir's spans, as a collector receives them.

#[expect(dead_code, reason = "other tests need other certificates")]
#[path = "../support/authority.rs"]
mod authority;
#[expect(dead_code, reason = "other tests run commands to their end")]
#[path = "../support/child.rs"]
mod child;
mod collector;
#[expect(dead_code, reason = "other tests reload rules and set the clock")]
#[path = "../support/in_process.rs"]
mod in_process;
#[expect(dead_code, reason = "other tests restart servers and count their items")]
#[path = "../memcached/support/server.rs"]
mod memcached_server;
#[path = "../support/mutual_tls.rs"]
mod mutual_tls;
#[expect(dead_code, reason = "other tests need other servers")]
#[path = "../redis/support/server.rs"]
mod redis_server;
#[path = "../support/server_process.rs"]
mod server_process;
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

use in_process::DEADLINE;
