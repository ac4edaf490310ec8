//! Support for the tests: the two programs, an HTTP client, a backend, and a bootstrap for Envoy.

pub(crate) mod backend;
pub(crate) mod bootstrap;
pub(crate) mod config_map;
mod envoy;
pub(crate) mod http;
pub(crate) mod istiod;
pub(crate) mod pod;
mod process;
mod stack;
pub(crate) mod wait;
mod weir;

pub(crate) use envoy::Envoy;
pub(crate) use stack::Stack;
