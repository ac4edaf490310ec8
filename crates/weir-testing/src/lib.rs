//! Fixtures of tests that run processes: weir itself, servers, authorities, proxies.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "a test reads the code, and a fixture panics if the test cannot go on"
)]

pub mod authority;
pub mod child;
pub mod gateway_mapper;
pub mod helm;
pub mod mutual_tls;
pub mod proxy;
pub mod server_process;
pub mod skipped;
