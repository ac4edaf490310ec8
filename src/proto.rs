//! The messages of Envoy's APIs for rate limits and xDS, as generated from `proto/`.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/proto.rs"));

/// The descriptors of the service that weir serves, encoded as a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
