//! The number of addresses that a name has.

use super::{
    message::RecordKind,
    name::DnsName,
    resolver::{NameServers, look_up},
};

/// Returns how many hosts `name` stands for: the number of its IPv4 addresses, or of its IPv6 addresses if there are
/// more. At least 1.
///
/// # Errors
///
/// A text for people, if the name has no address, or no name server says so.
pub(super) async fn count_addresses(name: &DnsName, name_servers: &NameServers) -> Result<usize, String> {
    let look_up = |kind| look_up(name, kind, name_servers);
    let (four, six) = futures_util::future::join(look_up(RecordKind::A), look_up(RecordKind::Aaaa)).await;
    match (four, six) {
        (Ok(four), six) => Ok(four.len().max(six.map_or(0, |six| six.len()))),
        (Err(_), Ok(six)) => Ok(six.len()),
        (Err(error), Err(_)) => Err(error),
    }
}
