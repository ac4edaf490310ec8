//! The server of each slot of a cluster, as servers report it.

use std::collections::HashMap;

use redis::Value;

use super::connection;
use weir_net::Address;

pub(super) const SLOTS: u16 = 16_384;

/// As many as Redis recommends nodes. Each takes a connection.
pub(super) const MAX_MASTERS: usize = 1_000;

/// In bytes; a name of DNS has 253.
const MAX_HOST: usize = 255;

const NONE: u16 = u16::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    pub(super) masters: Vec<Address>,
    /// For each slot an index into the masters, or [`NONE`] if no server holds it.
    slots: Box<[u16]>,
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
        if map.masters.len() > MAX_MASTERS {
            return Err(format!(
                "its cluster has more than {MAX_MASTERS} masters, the most that weir connects to"
            ));
        }
        Ok(map)
    }

    pub(super) fn holder(&self, slot: u16) -> Option<&Address> {
        self.masters.get(usize::from(self.slots[usize::from(slot)]))
    }

    /// None if it changes nothing, or there would be too many masters.
    pub(super) fn redirected(&self, slot: u16, address: Address) -> Option<Self> {
        if self.holder(slot) == Some(&address) || self.masters.len() >= MAX_MASTERS {
            return None;
        }
        let mut map = self.clone();
        map.slots[usize::from(slot)] = map.master(address);
        Some(map)
    }

    fn empty() -> Self {
        Self { masters: Vec::new(), slots: vec![NONE; SLOTS.into()].into() }
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

/// CRC-16/XMODEM of the hash tag (Redis cluster specification, "Key distribution model").
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The text between the first opening brace and the next closing one if it is not empty, else the whole key.
fn tag(key: &[u8]) -> &[u8] {
    let tagged = || {
        let open = key.iter().position(|byte| *byte == b'{')?;
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    };
    tagged().unwrap_or(key)
}

/// Computes the CRC with the polynomial 0x1021, the most significant bit first, starting from zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
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

    #[test]
    fn slots_equal_those_of_redis() {
        // the check value of CRC-16/XMODEM, and replies of `CLUSTER KEYSLOT`
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), slot(b"hash_tag"));
    }

    #[test]
    fn only_the_first_tag_counts_and_only_if_it_is_not_empty() {
        assert_eq!(tag(b"p:{a}{b}"), b"a");
        assert_eq!(tag(b"p:{{a}b"), b"{a");
        assert_eq!(tag(b"p:{}a"), b"p:{}a");
        assert_eq!(tag(b"p:{a"), b"p:{a");
    }

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
        let map = map.redirected(99, Address::tcp("b", 7003)).expect("it was elsewhere");
        assert_eq!(map.holder(99), Some(&Address::tcp("b", 7003)));
        assert_eq!(map.redirected(99, Address::tcp("b", 7003)), None, "it is there already");
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
