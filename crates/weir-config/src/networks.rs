//! Networks as values: `match: cidr`, and what they are counted by.

use std::sync::Arc;

use super::{
    error::ConfigReport,
    fields::{Field, Fields},
    scalar::brief,
    yaml::YamlPosition,
};
use weir_limit::{CountBy, IpNetwork, ListedNetwork, NetworkError, Origin, Values};

/// The longest prefix of IPv6 that is one end user.
const END_USER: u8 = 64;

/// Reads the networks that `file` lists, each with its place.
pub(super) fn read<'t>(
    file: &Arc<str>,
    values: impl IntoIterator<Item = (&'t str, YamlPosition)>,
    report: &mut ConfigReport,
) -> Vec<ListedNetwork> {
    let mut networks = Vec::new();
    for (text, YamlPosition { line, column }) in values {
        let at = || Origin { file: Arc::clone(file), line, column };
        match IpNetwork::of_rule(text) {
            Ok(network) => networks.push(ListedNetwork { network, line, column }),
            Err(NetworkError::HostBits(network)) => report.error_at(at(), || {
                format!(
                    "'{}' has bits after its prefix; write '{network}', or the address alone",
                    brief(text)
                )
            }),
            Err(NetworkError::Malformed) => report.error_at(at(), || {
                format!(
                    "'{}' is no network; write an address, or one with a prefix length, such as 10.0.0.0/8 or \
                     2001:db8::/32",
                    brief(text)
                )
            }),
        }
    }
    networks
}

/// Reads `count_by` of a descriptor with these `values`, which are networks if it `is_cidr`.
pub(super) fn count_by(
    fields: &Fields<'_>,
    values: &Values,
    is_cidr: bool,
    report: &mut ConfigReport,
) -> CountBy {
    let Some(Field { key_at, at, value }) = fields.text("count_by", report) else { return CountBy::Values };
    if value == "value" {
        report.error(key_at, "'count_by: value' requires 'values_from'; add that, or remove 'count_by'");
        return CountBy::Values;
    }
    let Some(count_by) = CountBy::parse(value) else {
        report.error(
            at,
            format!(
                "unknown count_by '{}'; write list, network, address, or a prefix length of IPv6 such as prefix/64, \
                 with one of IPv4 before it such as prefix/24/64",
                brief(value)
            ),
        );
        return CountBy::Values;
    };
    let is_right = match count_by {
        CountBy::Values => is_cidr || matches!(values, Values::Of(_)),
        CountBy::Network => is_cidr,
        CountBy::Prefix(_) => is_cidr || *values == Values::Any,
    };
    if !is_right {
        let right = match count_by {
            CountBy::Prefix(_) => "'match: cidr' with 'values', or neither 'value' nor 'values'",
            CountBy::Values | CountBy::Network => "'match: cidr' with 'values'",
        };
        report.error(key_at, format!("'count_by: {count_by}' requires {right}"));
        return CountBy::Values;
    }
    let has_ipv6 = || {
        let is_ipv6 = |listed: &ListedNetwork| !listed.network.is_ipv4();
        // those of a table are not known yet
        values.networks().map_or(!is_cidr, |list| list.networks().iter().any(is_ipv6))
    };
    if let CountBy::Prefix(lengths) = count_by
        && lengths.ipv6 > END_USER
        && has_ipv6()
    {
        report.warn(
            at,
            format!(
                "an end user of IPv6 holds a /{END_USER} at least, and so has as many counters as it likes; write \
                 'count_by: prefix/{END_USER}'"
            ),
        );
    }
    count_by
}
