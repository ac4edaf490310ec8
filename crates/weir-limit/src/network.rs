//! Networks of addresses, and the table in which the longest one that holds a value is found.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// A network of IPv4 or IPv6, or an address: a network of one. IPv4 in IPv6 (`::ffff:10.1.2.3`) is IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpNetwork {
    /// The first address, with that of IPv4 in IPv6.
    first: Ipv6Addr,
    /// The number of leading bits that all addresses have in common, with the [`IPV4_BITS`] of IPv4.
    prefix: u8,
}

/// The bits before an address of IPv4 in IPv6.
const IPV4_BITS: u8 = 96;

const BITS: u8 = 128;

/// Why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// It is neither an address nor an address with a prefix length.
    Malformed,
    /// Bits after the prefix are set. Has the network without them.
    HostBits(IpNetwork),
}

/// The networks that a node of the rule tree matches, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkList {
    /// Stands for all of them in counter keys and stat names.
    name: Box<str>,
    /// The file that lists them.
    file: Arc<str>,
    networks: Box<[ListedNetwork]>,
}

/// A network, and its place in the file that lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedNetwork {
    pub network: IpNetwork,
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
}

/// What has a counter of its own, of the values that a node matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountBy {
    /// What [`Values`](super::Values) say: each value, or all values of a list together.
    #[default]
    Values,
    /// Each network of a list.
    Network,
    /// Each network of these lengths, whatever the rule lists. A value that is no address counts as itself.
    Prefix(PrefixLengths),
}

/// The prefix lengths of networks that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixLengths {
    /// At most 32.
    pub ipv4: u8,
    /// At most 128.
    pub ipv6: u8,
}

/// Finds the longest network that holds a value, among those of a key on one level. Each network has an owner.
#[derive(Debug)]
pub(super) struct NetworkTable {
    ipv4: RangeIndex<u32>,
    ipv6: RangeIndex<Ipv6Bits>,
    /// Sorted; of networks that begin together, the longest prefix comes last.
    rows: Box<[NetworkRow]>,
    /// By row.
    owners: Box<[u32]>,
}

#[derive(Debug)]
struct NetworkRow {
    network: IpNetwork,
    /// The row of the network around this one, or [`NO_ROW`].
    around: u32,
}

/// A row of a [`NetworkTable`], and the owner of its network.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundNetwork {
    pub(super) row: u32,
    pub(super) owner: u32,
}

const NO_ROW: u32 = u32::MAX;

/// The bits of an address, which need less room beside numbers than a `u128` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ipv6Bits {
    high: u64,
    low: u64,
}

/// Divides all addresses into ranges.
#[derive(Debug)]
struct RangeIndex<K> {
    ranges: Box<[AddressRange<K>]>,
    /// The first address of every [`BLOCK`]-th range: few enough to stay in the CPU's caches.
    samples: Box<[K]>,
}

/// Has all that a look-up of an address needs in one place, which is rarely in the CPU's caches.
#[derive(Debug)]
struct AddressRange<K> {
    first: K,
    /// The longest network that holds it, or [`NO_ROW`].
    found: FoundNetwork,
}

const BLOCK: usize = 16;

/// The networks that name their list: with all of them, the name of a metric would have megabytes. No other list of the
/// level has the first one.
const NAMED: usize = 16;

// === impl IpNetwork ===

impl IpNetwork {
    const IPV4: Self = Self { first: Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), prefix: IPV4_BITS };
    const IPV6: Self = Self { first: Ipv6Addr::UNSPECIFIED, prefix: 0 };

    /// Reads an address or a network. The value of a request may have host bits, which mean nothing. None if it is
    /// neither: it has a zone, a port or spaces, or is a list.
    pub fn of_value(text: &str) -> Option<Self> {
        let (address, prefix) = parse(text)?;
        Some(Self::of(address, prefix))
    }

    /// Reads what a rule declares.
    pub fn of_rule(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = parse(text).ok_or(NetworkError::Malformed)?;
        let network = Self::of(address, prefix);
        if network.first == address { Ok(network) } else { Err(NetworkError::HostBits(network)) }
    }

    fn of(address: Ipv6Addr, prefix: u8) -> Self {
        Self { first: Ipv6Addr::from_bits(address.to_bits() & mask(prefix)), prefix }
    }

    pub fn is_ipv4(&self) -> bool {
        self.prefix >= IPV4_BITS && self.first.to_ipv4_mapped().is_some()
    }

    /// Returns whether it is a single address.
    pub const fn is_address(&self) -> bool {
        self.prefix == BITS
    }

    fn last(&self) -> u128 {
        self.first.to_bits() | !mask(self.prefix)
    }

    /// Returns whether all of `other` lies in it. `::/0` is all of IPv6, and holds nothing of IPv4.
    pub fn contains(&self, other: &Self) -> bool {
        self.covers(other) && self.is_ipv4() == other.is_ipv4()
    }

    fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && (self.first.to_bits() ^ other.first.to_bits()) & mask(self.prefix) == 0
    }

    /// Returns the network of these lengths that it lies in, or itself if it is larger.
    pub fn shortened(&self, lengths: PrefixLengths) -> Self {
        let prefix = if self.is_ipv4() { IPV4_BITS + lengths.ipv4 } else { lengths.ipv6 };
        Self::of(self.first, prefix.min(self.prefix))
    }
}

/// Formats the canonical text (RFC 5952): an address without its prefix length.
impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, prefix) = if self.is_ipv4() {
            (self.first.to_canonical(), self.prefix - IPV4_BITS)
        } else {
            (IpAddr::V6(self.first), self.prefix)
        };
        first.fmt(f)?;
        if self.is_address() { Ok(()) } else { write!(f, "/{prefix}") }
    }
}

fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(u32::from(BITS - prefix)).unwrap_or(0)
}

/// The address in IPv6, and the prefix length there.
fn parse(text: &str) -> Option<(Ipv6Addr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let (address, before) = match address.parse().ok()? {
        IpAddr::V4(address) => (Ipv4Addr::to_ipv6_mapped(&address), IPV4_BITS),
        IpAddr::V6(address) => (address, 0),
    };
    let most = BITS - before;
    let length = length.map_or(Some(most), |length| decimal(length).filter(|length| *length <= most))?;
    Some((address, before + length))
}

/// A sign or a leading zero is no way to write a prefix length.
pub(super) fn decimal(text: &str) -> Option<u8> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

// === impl NetworkList ===

impl NetworkList {
    /// Creates a list that its networks name, joined with `|`: the first 16, and the number of the others.
    pub fn new(file: Arc<str>, networks: Vec<ListedNetwork>) -> Self {
        let mut names: Vec<String> =
            networks.iter().take(NAMED).map(|listed| listed.network.to_string()).collect();
        if networks.len() > NAMED {
            names.push(format!("+{}", networks.len() - NAMED));
        }
        Self::named(&names.join("|"), file, networks)
    }

    pub fn named(name: &str, file: Arc<str>, networks: Vec<ListedNetwork>) -> Self {
        Self { name: name.into(), file, networks: networks.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub fn networks(&self) -> &[ListedNetwork] {
        &self.networks
    }
}

// === impl CountBy ===

impl CountBy {
    /// Each address.
    pub const ADDRESS: Self = Self::Prefix(PrefixLengths { ipv4: 32, ipv6: 128 });

    /// Reads its name in the rule language.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "list" => Some(Self::Values),
            "network" => Some(Self::Network),
            "address" => Some(Self::ADDRESS),
            _ => {
                let lengths = text.strip_prefix("prefix/")?;
                let (ipv4, ipv6) = match lengths.split_once('/') {
                    Some((ipv4, ipv6)) => (decimal(ipv4)?, decimal(ipv6)?),
                    None => (32, decimal(lengths)?),
                };
                (ipv4 <= 32 && ipv6 <= BITS).then_some(Self::Prefix(PrefixLengths { ipv4, ipv6 }))
            }
        }
    }
}

/// Formats its name in the rule language.
impl fmt::Display for CountBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values => f.write_str("list"),
            Self::Network => f.write_str("network"),
            Self::Prefix(_) if *self == Self::ADDRESS => f.write_str("address"),
            Self::Prefix(PrefixLengths { ipv4: 32, ipv6 }) => write!(f, "prefix/{ipv6}"),
            Self::Prefix(PrefixLengths { ipv4, ipv6 }) => write!(f, "prefix/{ipv4}/{ipv6}"),
        }
    }
}

// === impl NetworkTable ===

impl NetworkTable {
    /// Of two networks that are the same, which files cannot have, the first one counts.
    pub(super) fn new(networks: impl IntoIterator<Item = (IpNetwork, u32)>) -> Self {
        let mut networks: Vec<_> = networks.into_iter().collect();
        networks.sort_by_key(|(network, _)| *network);
        networks.dedup_by_key(|(network, _)| *network);
        let mut rows: Vec<NetworkRow> = Vec::with_capacity(networks.len());
        let mut owners = Vec::with_capacity(networks.len());
        let mut around = NO_ROW;
        for ((network, owner), row) in networks.into_iter().zip(0..NO_ROW) {
            while let Some(last) = rows.get(around as usize).filter(|last| !last.network.covers(&network)) {
                around = last.around;
            }
            rows.push(NetworkRow { network, around });
            owners.push(owner);
            around = row;
        }
        Self {
            ipv4: RangeIndex::new((&rows, &owners), true, ipv4),
            ipv6: RangeIndex::new((&rows, &owners), false, ipv6),
            owners: owners.into(),
            rows: rows.into(),
        }
    }

    /// Returns the longest network that holds all of `value`.
    #[inline]
    pub(super) fn find(&self, value: &IpNetwork) -> Option<FoundNetwork> {
        let first = value.first.to_bits();
        let found = if value.is_ipv4() { self.ipv4.find(ipv4(first)) } else { self.ipv6.find(ipv6(first)) };
        let found = found.filter(|found| found.row != NO_ROW)?;
        if value.is_address() {
            return Some(found);
        }
        let mut row = found.row;
        while !self.network(row).contains(value) {
            row = self.around(row)?;
        }
        Some(FoundNetwork { row, owner: self.owners[row as usize] })
    }

    fn around(&self, row: u32) -> Option<u32> {
        Some(self.rows[row as usize].around).filter(|around| *around != NO_ROW)
    }

    pub(super) fn network(&self, row: u32) -> IpNetwork {
        self.rows[row as usize].network
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns all networks, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = IpNetwork> {
        self.rows.iter().map(|row| row.network)
    }

    /// Returns the owners of the networks that hold all of `value`, that of the longest one first.
    pub(super) fn owners(&self, value: &IpNetwork) -> impl Iterator<Item = u32> {
        let value = *value;
        std::iter::successors(self.find(&value).map(|found| found.row), |row| self.around(*row))
            .filter(move |row| self.network(*row).contains(&value))
            .map(|row| self.owners[row as usize])
    }
}

/// The address of IPv4 in IPv6.
fn ipv4(address: u128) -> u32 {
    Ipv6Addr::from_bits(address).to_ipv4_mapped().map_or(0, Ipv4Addr::to_bits)
}

fn ipv6(address: u128) -> Ipv6Bits {
    let half = |bits: u128| u64::try_from(bits).unwrap_or_default();
    Ipv6Bits { high: half(address >> 64), low: half(address & u128::from(u64::MAX)) }
}

// === impl Ipv6Bits ===

impl Ipv6Bits {
    fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// As a whole, since a comparison of the halves one after the other has branches that nobody can predict.
impl PartialOrd for Ipv6Bits {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.bits().cmp(&other.bits()))
    }

    #[inline]
    fn le(&self, other: &Self) -> bool {
        self.bits() <= other.bits()
    }
}

// === impl RangeIndex ===

impl<K: Copy + PartialOrd> RangeIndex<K> {
    /// Of the networks of one family among `rows`. `key` makes a key of an address.
    fn new((rows, owners): (&[NetworkRow], &[u32]), is_ipv4: bool, key: impl Fn(u128) -> K) -> Self {
        let is_of_family =
            |row: &u32| rows.get(*row as usize).is_some_and(|row| row.network.is_ipv4() == is_ipv4);
        let row_around = |row: u32| Some(rows[row as usize].around).filter(is_of_family).unwrap_or(NO_ROW);
        let last = |row: u32| rows[row as usize].network.last();
        let mut ranges: Vec<(u128, u32)> = Vec::new();
        let mut begin = |first: u128, row: u32| match ranges.last_mut() {
            Some(range) if range.0 == first => range.1 = row,
            _ => ranges.push((first, row)),
        };
        let all = if is_ipv4 { IpNetwork::IPV4 } else { IpNetwork::IPV6 };
        begin(all.first.to_bits(), NO_ROW);
        let mut open = NO_ROW;
        let members = (0..NO_ROW).take(rows.len()).filter(is_of_family);
        for next in members.map(Some).chain([None]) {
            // the networks that end before the next one begins
            while open != NO_ROW
                && next.is_none_or(|next| !rows[open as usize].network.covers(&rows[next as usize].network))
            {
                if last(open) < all.last() {
                    begin(last(open) + 1, row_around(open));
                }
                open = row_around(open);
            }
            if let Some(next) = next {
                begin(rows[next as usize].network.first.to_bits(), next);
                open = next;
            }
        }
        let owner = |row: u32| owners.get(row as usize).copied().unwrap_or_default();
        let ranges: Box<[AddressRange<K>]> = ranges
            .into_iter()
            .map(|(first, row)| AddressRange {
                first: key(first),
                found: FoundNetwork { row, owner: owner(row) },
            })
            .collect();
        Self { samples: ranges.iter().step_by(BLOCK).map(|range| range.first).collect(), ranges }
    }

    /// The range in which `key` is.
    #[inline]
    fn find(&self, key: K) -> Option<FoundNetwork> {
        let block = self.samples.partition_point(|first| *first <= key).checked_sub(1)? * BLOCK;
        let ranges = &self.ranges[block..self.ranges.len().min(block + BLOCK)];
        let last = ranges.partition_point(|range| range.first <= key).checked_sub(1)?;
        Some(ranges[last].found)
    }
}
