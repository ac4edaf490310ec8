//! Support for the tests: the two programs, an HTTP client, a backend, and a bootstrap for Envoy.

pub(crate) mod backend;
pub(crate) mod bootstrap;
mod envoy;
pub(crate) mod http;
mod process;
mod stack;
pub(crate) mod wait;
mod weir;

pub(crate) use stack::Stack;
