//! DNS messages: the query, and the records of its answer (RFC 1035, 2782 and 3596).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::{DnsName, MAX_NAME};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    Address(IpAddr),
    Service { host: String, port: u16 },
}

const INTERNET: u16 = 1;

/// The bytes before the question.
const HEADER: usize = 12;

/// The type of the record that announces how long an answer may be (RFC 6891), that length, and its own.
const OPT: u16 = 41;
pub(super) const MAX_ANSWER: u16 = 4_096;
const OPT_BYTES: usize = 11;

/// Pointers included: a name may point to itself.
const MAX_LABELS: usize = 128;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum DnsAnswer {
    /// What the records say, each once, in no order.
    Records(Vec<Record>),
    Truncated,
    Failed(u8),
    Malformed,
}

pub(super) fn query(name: &DnsName, kind: RecordKind, id: u16) -> Vec<u8> {
    const RECURSION_DESIRED: u16 = 0x0100;
    let mut query = Vec::with_capacity(300);
    // one question, no answer, no authority, one additional record
    for field in [id, RECURSION_DESIRED, 1, 0, 0, 1] {
        query.extend_from_slice(&field.to_be_bytes());
    }
    for label in name.labels() {
        // valid names have labels of at most 63 bytes
        query.push(u8::try_from(label.len()).unwrap_or(63));
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    for field in [kind as u16, INTERNET] {
        query.extend_from_slice(&field.to_be_bytes());
    }
    query.push(0);
    for field in [OPT, MAX_ANSWER, 0, 0, 0] {
        query.extend_from_slice(&field.to_be_bytes());
    }
    query
}

/// None if `message` does not answer `query`, which asks for records of `kind`.
pub(super) fn parse_answer(message: &[u8], query: &[u8], kind: RecordKind) -> Option<DnsAnswer> {
    const IS_ANSWER: u8 = 0x80;
    const IS_TRUNCATED: u8 = 2;
    const NO_SUCH_NAME: u8 = 3;
    let [_, _, flags, code, ..] = *message else { return None };
    if message[..2] != query[..2] || flags & IS_ANSWER == 0 {
        return None;
    }
    // servers repeat the question as it was, except for upper and lower case
    let question = &query[HEADER..query.len() - OPT_BYTES];
    let repeated = message.get(HEADER..HEADER + question.len());
    let is_repeated = repeated.is_some_and(|repeated| repeated.eq_ignore_ascii_case(question));
    Some(match code & 0xf {
        code if !matches!(code, 0 | NO_SUCH_NAME) => DnsAnswer::Failed(code),
        _ if !is_repeated => DnsAnswer::Malformed,
        NO_SUCH_NAME => DnsAnswer::Records(Vec::new()),
        _ if flags & IS_TRUNCATED != 0 => DnsAnswer::Truncated,
        _ => {
            let reader = MessageReader { message, at: HEADER + question.len() };
            reader.records(kind).map_or(DnsAnswer::Malformed, DnsAnswer::Records)
        }
    })
}

struct MessageReader<'a> {
    message: &'a [u8],
    at: usize,
}

// === impl RecordKind ===

impl RecordKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Srv => "SRV",
        }
    }
}

// === impl MessageReader ===

impl MessageReader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.message.get(self.at..self.at + count)?;
        self.at += count;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    /// Those of the name and, if it is an alias, of the one that it stands for: the name server has looked both up.
    fn records(mut self, asked_for: RecordKind) -> Option<Vec<Record>> {
        let count = u16::from_be_bytes([self.message[6], self.message[7]]);
        let mut records = Vec::new();
        for _ in 0..count {
            self.name()?;
            let (kind, class) = (self.u16()?, self.u16()?);
            // the time to live
            self.bytes(4)?;
            let length = usize::from(self.u16()?);
            let end = self.at + length;
            if end > self.message.len() {
                return None;
            }
            if (kind, class) == (asked_for as u16, INTERNET) {
                records.push(self.record(asked_for, length)?);
            }
            self.at = end;
        }
        // a lone dot says that there is no such service
        records.retain(|record| !matches!(record, Record::Service { host, .. } if host.is_empty()));
        records.sort_unstable();
        records.dedup();
        Some(records)
    }

    fn record(&mut self, kind: RecordKind, length: usize) -> Option<Record> {
        Some(match kind {
            RecordKind::Srv => {
                // priority and weight
                self.bytes(4)?;
                let (port, host) = (self.u16()?, self.name()?);
                Record::Service { host, port }
            }
            RecordKind::A => {
                let octets: [u8; 4] = self.bytes(length)?.try_into().ok()?;
                Record::Address(Ipv4Addr::from(octets).into())
            }
            RecordKind::Aaaa => {
                let octets: [u8; 16] = self.bytes(length)?.try_into().ok()?;
                Record::Address(Ipv6Addr::from(octets).into())
            }
        })
    }

    /// The rest may be elsewhere in the message. No spaces and control characters: names reach the log.
    fn name(&mut self) -> Option<String> {
        let (mut name, mut end) = (String::new(), None);
        for _ in 0..MAX_LABELS {
            let length = usize::from(self.bytes(1)?[0]);
            match length {
                0 => {
                    self.at = end.unwrap_or(self.at);
                    return Some(name);
                }
                1..=63 => {
                    let label = std::str::from_utf8(self.bytes(length)?).ok()?;
                    if !label.bytes().all(|byte| byte.is_ascii_graphic()) {
                        return None;
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(label);
                    if name.len() > MAX_NAME {
                        return None;
                    }
                }
                0xc0.. => {
                    let low = usize::from(self.bytes(1)?[0]);
                    end.get_or_insert(self.at);
                    self.at = (length & 0x3f) << 8 | low;
                }
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers query 7 with SRV records of these ports and targets, each in the domain of the question.
    fn answer(flags: u16, targets: &[(u16, &str)]) -> Vec<u8> {
        let name = DnsName::parse("_m._tcp.example.org").expect("it is valid");
        let mut message = query(&name, RecordKind::Srv, 7);
        message.truncate(message.len() - 11);
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[6..8].copy_from_slice(&u16::try_from(targets.len()).expect("few").to_be_bytes());
        message[10..12].copy_from_slice(&[0, 0]);
        for (port, target) in targets {
            // the name of the question; SRV; IN; a minute; length; priority and weight; port
            message.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0]);
            message.push(u8::try_from(6 + target.len() + 3).expect("short"));
            message.extend_from_slice(&[0, 10, 0, 5]);
            message.extend_from_slice(&port.to_be_bytes());
            message.push(u8::try_from(target.len()).expect("short"));
            message.extend_from_slice(target.as_bytes());
            // `example.org` follows `_m` and `_tcp`
            message.extend_from_slice(&[0xc0, 12 + 3 + 5]);
        }
        message
    }

    fn parsed(message: &[u8], id: u16) -> Option<DnsAnswer> {
        let name = DnsName::parse("_m._tcp.example.org").expect("it is valid");
        parse_answer(message, &query(&name, RecordKind::Srv, id), RecordKind::Srv)
    }

    fn service(host: &str, port: u16) -> Record {
        Record::Service { host: host.into(), port }
    }

    #[test]
    fn services_are_read_each_once() {
        let message = answer(0x8180, &[(11_212, "b"), (11_211, "b"), (9, "a"), (9, "a")]);
        let services = [("a", 9), ("b", 11_211), ("b", 11_212)];
        let services = services.map(|(host, port)| service(&format!("{host}.example.org"), port));
        assert_eq!(parsed(&message, 7), Some(DnsAnswer::Records(services.into())));
        assert_eq!(parsed(&message, 8), None, "it answers another query");
    }

    #[test]
    fn addresses_are_read_each_once() {
        let name = DnsName::parse("weir.svc").expect("it is valid");
        let answer = |kind: RecordKind, records: &[&[u8]]| {
            let query = query(&name, kind, 7);
            let mut message = query.clone();
            message.truncate(message.len() - 11);
            message[2..4].copy_from_slice(&[0x81, 0x80]);
            message[7] = u8::try_from(records.len()).expect("few");
            message[11] = 0;
            for data in records {
                let length = u8::try_from(data.len()).expect("short");
                message.extend_from_slice(&[0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 60, 0, length]);
                message.extend_from_slice(data);
            }
            parse_answer(&message, &query, kind)
        };
        let found = |addresses: &[&str]| {
            let record = |address: &&str| Record::Address(address.parse().expect("it is valid"));
            Some(DnsAnswer::Records(addresses.iter().map(record).collect()))
        };
        let records: [&[u8]; 3] = [&[10, 0, 0, 2], &[10, 0, 0, 1], &[10, 0, 0, 2]];
        assert_eq!(answer(RecordKind::A, &records), found(&["10.0.0.1", "10.0.0.2"]));
        let loopback = [[0; 15].as_slice(), &[1]].concat();
        assert_eq!(answer(RecordKind::Aaaa, &[&loopback]), found(&["::1"]));
        assert_eq!(answer(RecordKind::A, &[]), Some(DnsAnswer::Records(Vec::new())));
        assert_eq!(answer(RecordKind::A, &[&[10, 0, 0]]), Some(DnsAnswer::Malformed));
        assert_eq!(answer(RecordKind::Aaaa, &[&[10, 0, 0, 1]]), Some(DnsAnswer::Malformed));
    }

    #[test]
    fn other_answers_are_told_apart() {
        assert_eq!(parsed(&answer(0x8180, &[]), 7), Some(DnsAnswer::Records(Vec::new())));
        assert_eq!(parsed(&answer(0x8183, &[]), 7), Some(DnsAnswer::Records(Vec::new())));
        assert_eq!(parsed(&answer(0x8182, &[]), 7), Some(DnsAnswer::Failed(2)));
        assert_eq!(parsed(&answer(0x8380, &[]), 7), Some(DnsAnswer::Truncated));
        assert_eq!(parsed(&answer(0x0100, &[]), 7), None, "a query is no answer");
    }

    #[test]
    fn malformed_answers_are_rejected() {
        let message = answer(0x8180, &[(1, "a"), (2, "b")]);
        for length in 0..message.len() {
            // no answer to this query before the flags say so
            let expected = (length >= 4).then_some(DnsAnswer::Malformed);
            assert_eq!(parsed(&message[..length], 7), expected, "{length}");
        }
        let is_malformed = |message: &[u8]| parsed(message, 7) == Some(DnsAnswer::Malformed);
        let mut circular = answer(0x8180, &[(1, "a")]);
        let last = circular.len() - 2;
        circular[last..].copy_from_slice(&[0xc0, u8::try_from(last).expect("short")]);
        assert!(is_malformed(&circular));
        for target in ["a b", "a\nb", "\u{e9}"] {
            assert!(is_malformed(&answer(0x8180, &[(1, target)])), "{target:?}");
        }
        // a record of another type that ends behind the message
        let mut long = answer(0x8180, &[(1, "a")]);
        let record = long.len() - (12 + 6 + 1 + 1 + 2);
        long[record + 3] = 16;
        assert_eq!(parsed(&long, 7), Some(DnsAnswer::Records(Vec::new())));
        long[record + 10] = 1;
        assert!(is_malformed(&long));
    }

    #[test]
    fn names_are_bounded() {
        // a label of 63 bytes that is followed by itself
        let mut message = answer(0x8180, &[(1, &"a".repeat(63))]);
        let label = message.len() - 2 - 64;
        message.truncate(label + 64);
        message.extend_from_slice(&[0xc0, u8::try_from(label).expect("short")]);
        assert_eq!(parsed(&message, 7), Some(DnsAnswer::Malformed));
    }

    #[test]
    fn an_answer_repeats_the_question() {
        let message = answer(0x8180, &[(1, "a")]);
        // in upper case
        let mut upper = message.clone();
        upper[14] = b'M';
        assert!(matches!(parsed(&upper, 7), Some(DnsAnswer::Records(_))));
        // of another name, and of another type
        let mut other = message.clone();
        other[14] = b'n';
        assert_eq!(parsed(&other, 7), Some(DnsAnswer::Malformed));
        let mut other = message.clone();
        let kind = 12 + 3 + 5 + 8 + 4 + 1;
        other[kind + 1] = 1;
        assert_eq!(parsed(&other, 7), Some(DnsAnswer::Malformed));
        // a failure may come without it
        assert_eq!(parsed(&[&message[..2], &[0x81, 0x84]].concat(), 7), Some(DnsAnswer::Failed(4)));
    }

    #[test]
    fn records_of_an_alias_are_those_of_what_it_stands_for() {
        // the name of the question is an alias of `a.example.org`, which has a service
        let mut message = answer(0x8180, &[]);
        message[7] = 2;
        let alias = u8::try_from(message.len() + 12).expect("short");
        message.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, b'a', 0xc0, 20]);
        message
            .extend_from_slice(&[0xc0, alias, 0, 33, 0, 1, 0, 0, 0, 60, 0, 9, 0, 0, 0, 0, 0, 9, 1, b'h', 0]);
        assert_eq!(parsed(&message, 7), Some(DnsAnswer::Records(vec![service("h", 9)])));
    }
}
