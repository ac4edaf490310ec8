//! Fuzz target: the answers of a name server.

use super::{
    DnsName,
    message::{DnsAnswer, Record, RecordKind, parse_answer, question},
    name::MAX_NAME,
};

/// Parses an answer to the query whose id it begins with, and to another one; parses names as well.
pub fn answer(input: &[u8]) {
    for kind in [RecordKind::A, RecordKind::Aaaa, RecordKind::Srv] {
        answer_of(kind, input);
    }
}

fn answer_of(kind: RecordKind, input: &[u8]) {
    if let Some(name) = std::str::from_utf8(input).ok().and_then(DnsName::parse) {
        let mut query = name.query(kind, 1);
        assert_eq!(parse_answer(&query, 1, &name, kind), None, "a query is no answer");
        query[2] |= 0x80;
        let answer = parse_answer(&query, 1, &name, kind);
        assert_eq!(answer, Some(DnsAnswer::NoRecords), "its question can be read");
    }
    let Some((id, _)) = input.split_first_chunk() else { return };
    let id = u16::from_be_bytes(*id);
    let Some(name) = question(input) else { return };
    assert_eq!(parse_answer(input, !id, &name, kind), None);
    let Some(DnsAnswer::Records(records)) = parse_answer(input, id, &name, kind) else { return };
    // a record has at least a name's end, 10 bytes, and 4 of an address
    assert!(!records.is_empty() && records.len() <= input.len() / 15);
    assert!(records.is_sorted_by(|a, b| a < b), "{records:?}");
    for record in &records {
        let Record::Service { host, .. } = record else {
            assert_ne!(kind, RecordKind::Srv);
            continue;
        };
        assert!((1..=MAX_NAME).contains(&host.len()));
        assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "{host:?} reaches the log");
    }
}
