//! Redis as the store that instances share, against real servers.

#[expect(dead_code, reason = "what runs to its end by itself is a matter of other tests")]
#[path = "../support/child.rs"]
mod child;
#[path = "../support/proxy.rs"]
mod proxy;
#[expect(dead_code, reason = "hits of one rule are enough here")]
#[path = "../support/wire.rs"]
mod wire;

mod algorithms;
mod cluster_faults;
mod connecting;
mod faults;
mod fleet;
mod keys;
mod killed;
mod network;
mod self_signed;
mod startup;
mod support;
