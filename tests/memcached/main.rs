//! Memcached as the store that instances share, against real servers.

#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

mod faults;
mod fleet;
mod keys;
mod name_server;
mod operations;
mod program;
mod reference;
mod srv;
mod support;
mod tls;

use weir_testing::{child, proxy, server_process};
