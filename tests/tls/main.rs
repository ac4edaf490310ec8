//! TLS on the gRPC port: certificates and their rotation, accepted and rejected clients, and `weir call` with TLS.

#[path = "../support/local.rs"]
mod local;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

mod clients;
mod command;
mod expiry;
mod json;
mod mounted;
mod rotation;
mod service;
mod starting;
mod storm;

use weir_testing::{authority, child};
