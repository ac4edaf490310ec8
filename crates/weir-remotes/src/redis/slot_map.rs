//! The server of each slot of a cluster, as servers report it.

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use super::{connection, slot::SLOTS};
use crate::transport::Address;

/// As many as Redis recommends nodes. Each takes a connection.
pub(super) const MAX_MASTERS: usize = 1_000;

/// In bytes; a name of DNS has 253.
const MAX_HOST: usize = 255;

const NONE: u16 = u16::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    masters: Vec<Address>,
    /// For each slot an index into the masters, or [`NONE`] if no server holds it.
    slots: Box<[u16]>,
    /// The slots that redirects have changed since the look-up.
    redirected: Vec<u16>,
}

// === impl SlotMap ===

impl SlotMap {
    /// `value` is the reply of `source` to `CLUSTER SLOTS`.
    pub(super) fn parse(value: &Value, source: &Address) -> Result<Self, String> {
        let parse = |value: &Value| -> Option<Vec<(usize, usize, Address)>> {
            let Value::Array(ranges) = value else { return None };
            // more ranges than slots overlap, and would take long
            if ranges.len() > usize::from(SLOTS) {
                return None;
            }
            ranges.iter().map(|range| parse_range(range, source)).collect()
        };
        if let Value::ServerError(error) = value {
            return Err(connection::explain_reply(error));
        }
        let mut ranges = parse(value).ok_or("its reply to CLUSTER SLOTS is malformed")?;
        if ranges.is_empty() {
            return Err("its cluster holds no slots".into());
        }
        // before Redis 7 each server has an order of its own
        ranges.sort_by_key(|(first, ..)| *first);
        let mut map = Self::empty();
        for (first, last, address) in ranges {
            let master = map.master(address);
            map.slots[first..=last].fill(master);
        }
        map.bounded()
    }

    pub(super) fn bounded(self) -> Result<Self, String> {
        if self.masters.len() > MAX_MASTERS {
            return Err(format!(
                "its cluster has more than {MAX_MASTERS} masters, the most that weir connects to"
            ));
        }
        Ok(self)
    }

    pub(super) fn holder(&self, slot: u16) -> Option<&Address> {
        self.masters.get(usize::from(self.slots[usize::from(slot)]))
    }

    pub(super) fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// None if another redirect has moved the slot since the last look-up.
    pub(super) fn redirected(&self, slot: u16, address: Address) -> Option<Self> {
        if self.redirected.contains(&slot) || self.masters.len() >= MAX_MASTERS {
            return None;
        }
        let mut map = self.clone();
        map.slots[usize::from(slot)] = map.master(address);
        map.redirected.push(slot);
        Some(map)
    }

    /// More than half of the `voters`, at least two, have the same map: nobody else can outvote them.
    pub(super) fn is_decided(maps: &[Self], voters: usize) -> bool {
        let same = |map: &Self| maps.iter().filter(|other| *other == map).count();
        voters >= 2 && maps.iter().any(|map| 2 * same(map) > voters)
    }

    /// A slot is where more than half of the `voters` report it. Without a majority it is where `current` has it, and
    /// if that has none, where most report it. None without maps.
    pub(super) fn elect(maps: &[Self], voters: usize, current: Option<&Self>) -> Option<Self> {
        let first = maps.first()?;
        if 2 * maps.len() > voters && maps.iter().all(|map| map == first) {
            return Some(first.clone());
        }
        let mut elected = Self::empty();
        for slot in 0..SLOTS {
            let mut counts: BTreeMap<Option<&Address>, usize> = BTreeMap::new();
            for map in maps {
                *counts.entry(map.holder(slot)).or_default() += 1;
            }
            // the first of those with the most votes, whatever the order of the replies
            let (holder, count) = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
            let held = current.and_then(|map| map.holder(slot));
            let holder = if 2 * count > voters { holder } else { held.or(holder) };
            if let Some(holder) = holder {
                elected.slots[usize::from(slot)] = elected.master(holder.clone());
            }
        }
        Some(elected)
    }

    fn empty() -> Self {
        Self { masters: Vec::new(), slots: vec![NONE; SLOTS.into()].into(), redirected: Vec::new() }
    }

    fn master(&mut self, address: Address) -> u16 {
        let index = self.masters.iter().position(|master| *master == address).unwrap_or_else(|| {
            self.masters.push(address);
            self.masters.len() - 1
        });
        // there are at most as many as slots
        u16::try_from(index).unwrap_or(NONE)
    }
}

fn parse_range(range: &Value, source: &Address) -> Option<(usize, usize, Address)> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let (first, last): (usize, usize) = (number(first)?, number(last)?);
    let host: Option<String> = redis::from_redis_value(master.first()?.clone()).ok()?;
    let port = u16::try_from(number(master.get(1)?)?).ok()?;
    let host = match host.as_deref() {
        Some("" | "?") => metadata_ip(master),
        _ => host,
    };
    let host = match (host, source) {
        (Some(host), _) => host,
        // a server that does not know its own host name is at the address that was queried
        (None, Address::Tcp(host, _)) => host.to_string(),
        (None, Address::Unix(_)) => return None,
    };
    let is_valid = first <= last && last < usize::from(SLOTS) && is_host(&host);
    is_valid.then(|| (first, last, Address::tcp(&host, port)))
}

pub(super) fn is_host(host: &str) -> bool {
    host.len() <= MAX_HOST
}

/// For a server whose preferred name, such as a host name, is not known.
fn metadata_ip(server: &[Value]) -> Option<String> {
    let metadata: HashMap<String, String> = redis::from_redis_value(server.get(3)?.clone()).ok()?;
    metadata.get("ip").filter(|ip| !matches!(ip.as_str(), "" | "?")).cloned()
}

fn number(value: &Value) -> Option<usize> {
    redis::from_redis_value(value.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]),
        ])
    }

    #[test]
    fn slots_are_parsed() {
        let source = Address::tcp("source", 1);
        let host = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let slots = Value::Array(vec![
            range(0, 99, host("a"), 7000),
            range(100, 16_000, host(""), 7001),
            range(16_001, 16_001, Value::Nil, 7002),
        ]);
        let map = SlotMap::parse(&slots, &source).expect("the reply is valid");
        let at = |slot: usize| map.masters.get(usize::from(map.slots[slot])).cloned();
        assert_eq!(at(99), Some(Address::tcp("a", 7000)));
        assert_eq!(at(100), Some(Address::tcp("source", 7001)));
        assert_eq!(at(16_001), Some(Address::tcp("source", 7002)));
        assert_eq!(at(16_002), None);
        let map = map.redirected(99, Address::tcp("b", 7003)).expect("it was not redirected");
        assert_eq!(map.masters[usize::from(map.slots[99])], Address::tcp("b", 7003));
        assert_eq!(map.redirected(99, Address::tcp("a", 7000)), None, "once between two look-ups");
        assert!(map.redirected(98, Address::tcp("b", 7003)).is_some());
    }

    #[test]
    fn a_server_without_its_preferred_name_is_at_the_address_of_its_metadata() {
        let source = Address::tcp("source", 1);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let held_by = |host: Value, metadata: Value| {
            let server = Value::Array(vec![host, Value::Int(7_000), text("id"), metadata]);
            let slots = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9), server])]);
            SlotMap::parse(&slots, &source).expect("the reply is valid").holder(5).cloned()
        };
        let of_version = |resp: u8, ip: &str| match resp {
            2 => Value::Array(vec![text("ip"), text(ip)]),
            _ => Value::Map(vec![(text("ip"), text(ip))]),
        };
        for resp in [2, 3] {
            for host in ["?", ""] {
                let at = Some(Address::tcp("10.0.0.7", 7_000));
                assert_eq!(held_by(text(host), of_version(resp, "10.0.0.7")), at, "{host}, RESP{resp}");
            }
            let at = |host: &str| Some(Address::tcp(host, 7_000));
            assert_eq!(held_by(text("?"), of_version(resp, "")), at("source"));
            assert_eq!(held_by(text("name"), of_version(resp, "10.0.0.7")), at("name"));
            // the servers are behind one address, and their own are of no use to clients
            assert_eq!(held_by(Value::Nil, of_version(resp, "10.0.0.7")), at("source"));
        }
        assert_eq!(held_by(text("?"), Value::Array(vec![])), Some(Address::tcp("source", 7_000)));
    }

    fn halves(a: u16, rest: u16) -> SlotMap {
        let half = |first: i64, last: i64, port: u16| range(first, last, Value::Nil, port.into());
        let slots = Value::Array(vec![half(0, 8_191, a), half(8_192, 16_383, rest)]);
        SlotMap::parse(&slots, &Address::tcp("h", 1)).expect("the reply is valid")
    }

    fn holders(map: &SlotMap) -> [u16; 2] {
        [0, 16_383].map(|slot| match map.holder(slot) {
            Some(Address::Tcp(_, port)) => *port,
            _ => 0,
        })
    }

    #[test]
    fn a_slot_is_where_most_of_the_voters_report_it() {
        let (old, new) = (halves(1, 2), halves(1, 3));
        let elect = |maps: &[&SlotMap], voters, current: Option<&SlotMap>| {
            let maps: Vec<SlotMap> = maps.iter().copied().cloned().collect();
            SlotMap::elect(&maps, voters, current).map(|map| holders(&map))
        };
        assert_eq!(elect(&[&old, &new, &new], 3, Some(&old)), Some([1, 3]));
        assert_eq!(elect(&[&new, &old, &old], 3, Some(&new)), Some([1, 2]));
        // a tie, or too few replies, change nothing
        for current in [&old, &new] {
            for maps in [[&old, &new], [&new, &old]] {
                assert_eq!(elect(&maps, 2, Some(current)), Some(holders(current)));
            }
            assert_eq!(elect(&[&old], 3, Some(current)), Some(holders(current)));
        }
        assert_eq!(elect(&[&new], 1, Some(&old)), Some([1, 3]), "the others have no vote any more");
        // without a map any is better than none, and the same in whatever order the replies arrive
        assert_eq!(elect(&[&old, &new], 2, None), elect(&[&new, &old], 2, None));
        assert_eq!(elect(&[&new], 5, None), Some([1, 3]));
        assert_eq!(elect(&[], 3, Some(&old)), None);
    }

    #[test]
    fn the_same_map_of_most_voters_is_decided() {
        let (old, new) = (halves(1, 2), halves(1, 3));
        let decided = |maps: &[&SlotMap], voters| {
            SlotMap::is_decided(&maps.iter().copied().cloned().collect::<Vec<_>>(), voters)
        };
        assert!(decided(&[&new, &new], 2) && decided(&[&new, &old, &new], 3));
        assert!(!decided(&[&new, &old], 2) && !decided(&[&new, &new], 4));
        assert!(!decided(&[&new], 1), "the only master may have been replaced");
        assert!(!decided(&[], 0));
    }

    #[test]
    fn malformed_replies_are_errors() {
        let source = Address::tcp("source", 1);
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![range(5, 4, Value::Nil, 1)]),
            Value::Array(vec![range(0, 16_384, Value::Nil, 1)]),
            Value::Array((0..16_385).map(|port| range(0, 0, Value::Nil, port)).collect()),
        ] {
            assert!(SlotMap::parse(&value, &source).is_err(), "{value:?}");
        }
    }
}
