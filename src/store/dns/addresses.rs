//! The number of addresses that a name has.

use super::{
    message::RecordKind,
    name::DnsName,
    resolver::{NameServers, look_up_all},
};

/// Returns how many hosts `name` stands for: the number of its IPv4 addresses, or of its IPv6 addresses if there are
/// more. At least 1.
///
/// # Errors
///
/// A text for people, if the name has no address, or no name server says so.
pub(super) async fn count_addresses(name: &DnsName, name_servers: &NameServers) -> Result<usize, String> {
    let kinds = [RecordKind::A, RecordKind::Aaaa];
    let found = look_up_all(name, kinds, name_servers).await?;
    Ok(found.iter().map(Vec::len).max().unwrap_or_default())
}
