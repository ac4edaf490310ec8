//! The stores that instances share: [`redis`] and [`memcached`], over a common transport. [`AnyRemote`] is one of them.

pub mod any_remote;
pub mod memcached;
pub mod redis;
mod transport;

pub use any_remote::AnyRemote;
