//! Compares the decoder with the generated one: on requests, on merged parts, and on corrupted bytes.

use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

use super::*;
use crate::grpc::fuzz::generated_request;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,8}", "\\PC{0,3}", Just("x".repeat(300))]
}

fn a_number() -> impl Strategy<Value = u32> {
    prop_oneof![0..3_u32, any::<u32>()]
}

fn a_descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry = (a_text(), a_text()).prop_map(|(key, value)| Entry { key, value });
    let limit = (a_number(), prop_oneof![4 => 1..8_i32, 1 => any::<i32>()])
        .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    (vec(entry, 0..6), option::weighted(0.3, limit), option::weighted(0.3, any::<u64>()), any::<bool>())
        .prop_map(|(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        })
}

fn a_request() -> impl Strategy<Value = RateLimitRequest> {
    (a_text(), vec(a_descriptor(), 0..4), a_number())
        .prop_map(|(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend })
}

fn of_parts(parts: &[RateLimitDescriptor]) -> Vec<u8> {
    let parts: Vec<u8> = parts.iter().flat_map(RateLimitDescriptor::encode_to_vec).collect();
    let mut bytes = vec![0x12];
    prost::encoding::encode_varint(parts.len() as u64, &mut bytes);
    bytes.extend(parts);
    bytes
}

fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
    let theirs = RateLimitRequest::decode(bytes);
    let ours = decoded(bytes, &RequestBounds::default());
    match &theirs {
        Err(_) => prop_assert!(ours.is_err(), "{bytes:?}: {ours:?}"),
        Ok(message) => prop_assert_eq!(ours, generated_request(message)),
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_request_round_trips(request in a_request()) {
        agree(&request.encode_to_vec())?;
    }

    #[test]
    fn parts_are_merged(requests in vec(a_request(), 0..3), parts in vec(a_descriptor(), 0..4)) {
        let mut bytes = requests.iter().flat_map(RateLimitRequest::encode_to_vec).collect::<Vec<_>>();
        bytes.extend(of_parts(&parts));
        agree(&bytes)?;
    }

    #[test]
    fn corrupted_requests_decode_alike(
        request in a_request(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        inserted in option::of((any::<prop::sample::Index>(), vec(any::<u8>(), 1..12))),
        end in option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = request.encode_to_vec();
        bytes.push(0x18);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some((at, more)) = inserted {
            let at = at.index(bytes.len());
            bytes.splice(at..at, more);
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        agree(&bytes)?;
    }

    #[test]
    fn random_bytes_decode_alike(bytes in vec(prop_oneof![0..0x30_u8, any::<u8>()], 0..40)) {
        agree(&bytes)?;
    }
}

#[test]
fn unknown_fields_are_skipped() {
    let known = RateLimitRequest { domain: "d".into(), ..RateLimitRequest::default() }.encode_to_vec();
    let groups = |depth: usize| [vec![0x33; depth], vec![0x34; depth]].concat();
    let fine: [&[u8]; 6] = [
        &[0x20, 0xff, 0x01],
        &[0x21, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x25, 0, 0, 0, 0],
        &[0x22, 2, 0xff, 0xff],
        &[0x33, 0x20, 1, 0x43, 0x44, 0x34],
        &groups(90),
    ];
    for unknown in fine {
        let bytes = [unknown, &known].concat();
        assert_eq!(decoded(&bytes, &RequestBounds::default()).expect("a request").domain, "d", "{unknown:?}");
        agree(&bytes).expect("the generated decoder agrees");
    }
    let ends_elsewhere: &[u8] = &[0x33, 0x44];
    for unknown in [ends_elsewhere, &[0x33], &[0x34], &[0x36], &[0x21, 0], &groups(200), &[0xff; 11]] {
        assert!(decoded(unknown, &RequestBounds::default()).is_err(), "{unknown:?}");
        agree(unknown).expect("the generated decoder agrees");
    }
}

#[test]
fn an_error_has_its_kind_and_position() {
    let invalid = [&[0x0a, 1, b'd', 0x12, 6, 0x0a, 4, 0x0a, 2][..], &[0xff, 0xfe]].concat();
    let error = decoded(&invalid, &RequestBounds::default()).expect_err("not UTF-8").to_string();
    assert_eq!(error, "malformed RateLimitRequest: a string that is not UTF-8 in an entry, at byte 11");
}
