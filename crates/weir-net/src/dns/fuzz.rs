//! Fuzz target: the answers of a name server.

use super::{
    DnsName,
    message::{DnsAnswer, Record, RecordKind, parse_answer, query},
    name::MAX_NAME,
};

/// Reads the records of each kind from an answer to its own question; parses names as well.
pub fn answer(input: &[u8]) {
    if let Some(name) = std::str::from_utf8(input).ok().and_then(DnsName::parse) {
        let mut query = query(&name, RecordKind::A, 1);
        assert_eq!(parse_answer(&query, &query, RecordKind::A), None, "a query is no answer");
        let asked = query.clone();
        query[2] |= 0x80;
        let answer = parse_answer(&query, &asked, RecordKind::A);
        assert_eq!(answer, Some(DnsAnswer::Records(Vec::new())), "its question can be read");
    }
    for kind in [RecordKind::A, RecordKind::Aaaa, RecordKind::Srv] {
        answer_of(kind, input);
    }
}

fn answer_of(kind: RecordKind, input: &[u8]) {
    let Some(name) = input.get(12..).and_then(|rest| rest.iter().position(|byte| *byte == 0)) else { return };
    // the query of its own question, and one with another id
    let Some(asked) = input.get(..12 + name + 5) else { return };
    let query = [asked, &[0; 11]].concat();
    let other = [&[!query[0]], &query[1..]].concat();
    assert_eq!(parse_answer(input, &other, kind), None);
    let Some(DnsAnswer::Records(records)) = parse_answer(input, &query, kind) else { return };
    // a record has at least a name's end, 10 bytes, and 4 of an address
    assert!(records.len() <= input.len() / 15);
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
