//! The number of addresses that a name has.

use super::{
    message::RecordKind,
    name::DnsName,
    resolver::{NameServers, look_up_all},
};

/// The number of its IPv4 addresses, or of its IPv6 addresses if there are more; at least 1. The error is for people.
pub(super) async fn count_addresses(name: &DnsName, name_servers: &NameServers) -> Result<usize, String> {
    let kinds = [RecordKind::A, RecordKind::Aaaa];
    let found = look_up_all(name, kinds, name_servers).await?;
    Ok(found.iter().map(Vec::len).max().unwrap_or_default())
}
