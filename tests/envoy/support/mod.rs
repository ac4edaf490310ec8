//! Support for the tests: the two programs, an HTTP client, a backend, and a bootstrap for Envoy.

pub(crate) mod backend;
pub(crate) mod bootstrap;
pub(crate) mod config_map;
mod envoy;
pub(crate) mod istiod;
pub(crate) mod pod;
pub(crate) mod process;
pub(crate) mod prometheus;
mod stack;
pub(crate) mod wait;
pub(crate) mod weir;

pub(crate) use envoy::Envoy;
pub(crate) use stack::{Stack, replace_once};
pub(crate) use weir_testing::http;
