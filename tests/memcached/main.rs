//! Memcached as the store that instances share, against real servers.

#[expect(dead_code, reason = "other tests run commands to their end")]
#[path = "../support/child.rs"]
mod child;
#[expect(dead_code, reason = "these tests need few of the faults")]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/server_process.rs"]
mod server_process;
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
