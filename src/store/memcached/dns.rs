//! DNS messages about SRV records: the query, and the servers in its answer (RFC 1035 and 2782).

use std::{collections::BTreeSet, fmt};

use crate::store::transport::Address;

/// The type of SRV records, and the class of the internet.
const SRV: u16 = 33;
const INTERNET: u16 = 1;

/// The type of the record that announces how long an answer may be (RFC 6891), and that length.
const OPT: u16 = 41;
pub(super) const MAX_ANSWER: u16 = 4_096;

/// The most labels of a name in an answer, pointers included: a name may point to itself.
const MAX_LABELS: usize = 128;

/// The most bytes of a name (RFC 1035), without its final dot.
pub(super) const MAX_NAME: usize = 253;

/// A name with SRV records, such as `_memcache._tcp.example.org`, in lower case and without the final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvName(String);

/// The answer to a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The servers, in the order of envoyproxy/ratelimit, which sorts them as text.
    Servers(Vec<Address>),
    /// There are no such records.
    NoRecords,
    /// The answer was too long for a datagram.
    Truncated,
    /// The name server failed, with this code.
    Failed(u8),
    /// It cannot be read.
    Malformed,
}

// === impl SrvName ===

impl SrvName {
    /// Parses a name of the form `_service._protocol.name`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let labels: Vec<&str> = name.split('.').collect();
        let [service, protocol, _, ..] = labels[..] else { return None };
        let is_marked = |label: &str| label.len() > 1 && label.starts_with('_');
        let is_valid = |label: &&str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let valid = is_marked(service)
            && is_marked(protocol)
            && labels.iter().all(is_valid)
            && name.len() <= MAX_NAME;
        valid.then(|| Self(name.to_ascii_lowercase()))
    }

    /// Returns the name below `domain`, if that is valid.
    pub(super) fn below(&self, domain: &str) -> Option<Self> {
        Self::parse(&format!("{self}.{domain}"))
    }

    /// Returns the query for its records. `id` identifies the answer.
    pub(super) fn query(&self, id: u16) -> Vec<u8> {
        const RECURSION_DESIRED: u16 = 0x0100;
        let mut query = Vec::with_capacity(300);
        // one question, no answer, no authority, one additional record
        for field in [id, RECURSION_DESIRED, 1, 0, 0, 1] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        for label in self.0.split('.') {
            // valid names have labels of at most 63 bytes
            query.push(u8::try_from(label.len()).unwrap_or(63));
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        for field in [SRV, INTERNET] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        query.push(0);
        for field in [OPT, MAX_ANSWER, 0, 0, 0] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        query
    }
}

impl fmt::Display for SrvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses `message`, the answer to the query `id`. Returns none if it answers another query.
pub(super) fn parse_answer(message: &[u8], id: u16) -> Option<Answer> {
    const IS_ANSWER: u16 = 0x8000;
    let mut reader = Reader { message, at: 0 };
    let (answered, flags) = (reader.u16()?, reader.u16()?);
    let is_answer = answered == id && flags & IS_ANSWER != 0;
    is_answer.then(|| parse_rest(reader, flags).unwrap_or(Answer::Malformed))
}

/// Parses an answer after its `flags`. Returns none if it is malformed.
fn parse_rest(mut reader: Reader<'_>, flags: u16) -> Option<Answer> {
    const IS_TRUNCATED: u16 = 0x0200;
    match flags.to_be_bytes()[1] & 0xf {
        0 => {}
        // NXDOMAIN
        3 => return Some(Answer::NoRecords),
        code => return Some(Answer::Failed(code)),
    }
    if flags & IS_TRUNCATED != 0 {
        return Some(Answer::Truncated);
    }
    let (questions, answers) = (reader.u16()?, reader.u16()?);
    // the numbers of other records
    reader.skip(4)?;
    for _ in 0..questions {
        reader.name()?;
        reader.skip(4)?;
    }
    // sorted by the text that envoyproxy/ratelimit sorts, in which the name ends with a dot
    let mut servers = BTreeSet::new();
    for _ in 0..answers {
        reader.name()?;
        let kind = reader.u16()?;
        reader.skip(6)?;
        let length = usize::from(reader.u16()?);
        let end = reader.at + length;
        if end > reader.message.len() {
            return None;
        }
        if kind == SRV {
            // priority and weight
            reader.skip(4)?;
            let port = reader.u16()?;
            let name = reader.name()?;
            // a lone dot says that there is no such service
            if !name.is_empty() {
                servers.insert((format!("{name}.:{port}"), Address::tcp(&name, port)));
            }
        }
        reader.at = end;
    }
    let servers: Vec<Address> = servers.into_iter().map(|(_, address)| address).collect();
    Some(if servers.is_empty() { Answer::NoRecords } else { Answer::Servers(servers) })
}

/// Reads a message.
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

// === impl Reader ===

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes(count).map(|_| ())
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    /// Reads a name, whose rest may be elsewhere in the message. Names with spaces or control characters are malformed, since they
    /// reach the log.
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

    /// Returns the answer to the query 7 of `name` with SRV records of these ports and targets, each of which points to the
    /// domain of the question.
    fn answer(flags: u16, targets: &[(u16, &str)]) -> Vec<u8> {
        let name = SrvName::parse("_m._tcp.example.org").expect("it is valid");
        let mut message = name.query(7);
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

    #[test]
    fn names_have_a_service_and_a_protocol() {
        for name in ["_memcache._tcp.example.org", "_MEMCACHE._tcp.example.org.", "_a._tcp.svc"] {
            assert!(SrvName::parse(name).is_some(), "{name}");
        }
        let long = format!("_a._tcp.{}", "b".repeat(64));
        for name in ["", "example.org", "_a._tcp", "a._tcp.b", "_._tcp.b", "_a._tcp..b", "_a._tcp.b c", &long]
        {
            assert!(SrvName::parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn servers_are_sorted_as_text() {
        let message = answer(0x8180, &[(11_212, "b"), (11_211, "b"), (9, "a")]);
        let servers = [("a", 9), ("b", 11_211), ("b", 11_212)];
        let servers = servers.map(|(host, port)| Address::tcp(&format!("{host}.example.org"), port));
        assert_eq!(parse_answer(&message, 7), Some(Answer::Servers(servers.into())));
        assert_eq!(parse_answer(&message, 8), None, "it answers another query");
    }

    #[test]
    fn other_answers_are_told_apart() {
        assert_eq!(parse_answer(&answer(0x8180, &[]), 7), Some(Answer::NoRecords));
        assert_eq!(parse_answer(&answer(0x8183, &[]), 7), Some(Answer::NoRecords));
        assert_eq!(parse_answer(&answer(0x8182, &[]), 7), Some(Answer::Failed(2)));
        assert_eq!(parse_answer(&answer(0x8380, &[]), 7), Some(Answer::Truncated));
        assert_eq!(parse_answer(&answer(0x0100, &[]), 7), None, "a query is no answer");
    }

    #[test]
    fn malformed_answers_are_rejected() {
        let message = answer(0x8180, &[(1, "a"), (2, "b")]);
        for length in 0..message.len() {
            // no answer to this query before the flags say so
            let expected = (length >= 4).then_some(Answer::Malformed);
            assert_eq!(parse_answer(&message[..length], 7), expected, "{length}");
        }
        let is_malformed = |message: &[u8]| parse_answer(message, 7) == Some(Answer::Malformed);
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
        assert_eq!(parse_answer(&long, 7), Some(Answer::NoRecords));
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
        assert_eq!(parse_answer(&message, 7), Some(Answer::Malformed));
    }
}
