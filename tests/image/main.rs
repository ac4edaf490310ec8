//! The image: built from the Dockerfile and run by a real Docker engine, alone and by compose.yaml. Skipped where there
//! is no engine.

mod compose;
mod container;
mod debian;
mod docker;
mod envoy_gateway;
mod package;
mod publish;
mod rolling;
mod skipped;

use weir_testing::{authority, gateway_mapper};
