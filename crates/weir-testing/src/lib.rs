//! Fixtures of tests that run processes: weir itself, servers, authorities, proxies.

#![allow(
    clippy::new_without_default,
    reason = "a test reads the code, and a fixture panics if the test cannot go on"
)]

pub mod authority;
pub mod browser;
pub mod certificates;
pub mod child;
pub mod fake_redis;
pub mod gateway_mapper;
pub mod helm;
pub mod http;
pub mod memcached_server;
pub mod mutual_tls;
pub mod proxy;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
pub mod server_process;
pub mod skipped;
pub mod wait;

use std::path::{Path, PathBuf};

/// Returns a path in the repository. Panics if the crate is in no repository.
pub fn repository(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root of the repository");
    // joined with nothing, it would end in a slash
    if path.is_empty() { root.to_owned() } else { root.join(path) }
}
