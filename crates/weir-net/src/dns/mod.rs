//! Looks up names at the name servers of the system: no cache, and no dependency.

#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod instances;
mod message;
mod name;
mod resolver;

pub use self::{
    instances::{DnsInstances, DnsSettings},
    message::{Record, RecordKind},
    name::DnsName,
    resolver::{NameServers, look_up},
};
