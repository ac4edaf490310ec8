//! The image: built from the Dockerfile and run by a real Docker engine, alone and by compose.yaml. Skipped where there
//! is no engine.

#[expect(dead_code, reason = "other tests make clients with it")]
#[path = "../support/authority.rs"]
mod authority;
mod compose;
mod container;
mod debian;
mod docker;
mod envoy_gateway;
#[path = "../support/gateway_mapper.rs"]
mod gateway_mapper;
mod package;
mod publish;
mod rolling;
mod skipped;
