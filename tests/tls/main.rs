//! TLS on the gRPC port: certificates and their rotation, accepted and rejected clients, and `weir call` with TLS.

mod admin;
mod clients;
mod command;
mod expiry;
mod json;
mod mounted;
mod rotation;
mod service;
mod starting;
mod storm;

use weir_harness::{local, wire};
use weir_testing::{authority, child};
