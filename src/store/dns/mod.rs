//! Looks up names at the name servers of the system: no cache, and no dependency.

#[cfg(feature = "dns")]
mod addresses;
#[cfg(feature = "dns")]
mod instances;
mod message;
mod name;
mod resolver;

#[cfg(feature = "dns")]
pub(crate) use self::instances::DnsInstances;
#[cfg(feature = "dns")]
pub use self::instances::DnsSettings;
#[cfg(all(feature = "server", any(test, fuzzing)))]
pub(super) use self::{
    message::{Answer, parse_answer, question},
    name::MAX_NAME,
};
#[cfg(feature = "memcached")]
pub(super) use self::{
    message::{Record, RecordKind},
    resolver::look_up,
};
pub use self::{name::DnsName, resolver::NameServers};
