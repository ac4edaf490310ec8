//! Compares the decoder and the encoder with the generated ones: on requests, on merged parts, and on corrupted bytes.

use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

use super::*;
use weir_proto::weir::v1::{AcquireRequest, AcquireResponse, acquire_request};

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,8}", "\\PC{0,3}", Just("x".repeat(300))]
}

fn a_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, any::<u64>()]
}

fn a_request() -> impl Strategy<Value = AcquireRequest> {
    let entry = (a_text(), a_text()).prop_map(|(key, value)| acquire_request::Entry { key, value });
    let max_wait = option::of((any::<i64>(), any::<i32>()))
        .prop_map(|wait| wait.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }));
    (a_text(), vec(entry, 0..6), a_number(), max_wait, a_number(), any::<bool>()).prop_map(
        |(domain, entries, hits, max_wait, id, returnable)| AcquireRequest {
            domain,
            entries,
            hits,
            max_wait,
            id,
            returnable,
        },
    )
}

fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
    let theirs = AcquireRequest::decode(bytes);
    let ours = decode(bytes, usize::MAX);
    match &theirs {
        Err(_) => prop_assert!(ours.is_err(), "{bytes:?}: {ours:?}"),
        Ok(theirs) => {
            let entries = theirs.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
            let expected = AcquireMessage {
                domain: &theirs.domain,
                entries: entries.collect(),
                hits: theirs.hits,
                max_wait: theirs.max_wait.map(|wait| (wait.seconds, wait.nanos)),
                id: theirs.id,
                returnable: theirs.returnable,
            };
            prop_assert_eq!(ours.expect("it is valid"), expected);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_request_round_trips(request in a_request()) {
        agree(&request.encode_to_vec())?;
    }

    #[test]
    fn parts_are_merged(requests in vec(a_request(), 0..4)) {
        agree(&requests.iter().flat_map(AcquireRequest::encode_to_vec).collect::<Vec<_>>())?;
    }

    #[test]
    fn corrupted_requests_decode_alike(
        request in a_request(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = request.encode_to_vec();
        bytes.push(0x18);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        agree(&bytes)?;
    }

    #[test]
    fn random_bytes_decode_alike(bytes in vec(prop_oneof![0..0x40_u8, any::<u8>()], 0..40)) {
        agree(&bytes)?;
    }

    #[test]
    fn an_answer_is_encoded_like_the_generated_encoder_does(
        outcome in 0..6,
        waited in a_number(),
        retry_after in option::of(a_number()),
        token in option::of(any::<[u8; 16]>()),
        id in a_number(),
    ) {
        let outcome = Outcome::try_from(outcome).expect("there are so many");
        let [waited, retry] = [waited, retry_after.unwrap_or_default()].map(Period::from_nanos);
        let retry_after = retry_after.map(|_| retry);
        let duration = |period: Period| prost_types::Duration {
            seconds: i64::try_from(period.as_nanos() / NANOS_PER_SECOND).expect("it fits"),
            nanos: i32::try_from(period.as_nanos() % NANOS_PER_SECOND).expect("it fits"),
        };
        let expected = AcquireResponse {
            outcome: outcome.into(),
            waited: Some(duration(waited)),
            retry_after: retry_after.map(duration),
            token: token.map(Vec::from).unwrap_or_default(),
            id,
        };
        let mut out = FieldWriter::new();
        AcquireAnswer { outcome, waited, retry_after, token, id }.encode(&mut out);
        prop_assert_eq!(&out.finish()[super::super::message::PREFIX..], expected.encode_to_vec());
    }
}

#[test]
fn requests_have_so_many_entries_at_most() {
    let entry = acquire_request::Entry { key: "a".into(), value: "b".into() };
    let request = AcquireRequest { entries: vec![entry; 3], ..AcquireRequest::default() }.encode_to_vec();
    assert_eq!(decode(&request, 3).expect("three").entries.len(), 3);
    assert!(matches!(decode(&request, 2), Err(AcquireMessageError::TooManyEntries)));
}
