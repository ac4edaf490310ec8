//! The stores that instances share: [`redis`] and [`memcached`], over a common transport. [`AnyRemote`] is one of them.

pub mod memcached;
pub mod redis;
mod remote;
mod transport;

pub use remote::AnyRemote;
