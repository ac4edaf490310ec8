//! The messages of Envoy's APIs for rate limits and xDS, and of weir's own API.
//!
//! `make proto` generates all files beside this one from the folder `proto` at the top; a test compares them.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]

include!("tree.rs");

/// The descriptors of the services that weir serves, encoded as a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
