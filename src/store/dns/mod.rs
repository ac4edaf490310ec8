//! Looks up names at the name servers of the system: no cache, and no dependency.

mod message;
mod name;
mod resolver;

#[cfg(feature = "server")]
pub use self::addresses::count_addresses;
#[cfg(all(feature = "server", any(test, fuzzing)))]
pub(super) use self::{
    message::{Answer, parse_answer, question},
    name::MAX_NAME,
};
pub(super) use self::{
    message::{Record, RecordKind},
    resolver::look_up,
};
pub use self::{name::DnsName, resolver::NameServers};
#[cfg(feature = "server")]
mod addresses;
