//! The fuzz target of the formats on disk: records, and the slots of the file of numbers.

use super::{
    merge::merge,
    progress::parse_slot,
    record::{self, CounterKind},
};
use weir_limit::{
    Bucket, Period, Refill, Tier, Timestamp,
    request_bucket::{BucketRequest, Pace, PacedRequest, StepLimit, StepRequest, decide_bucket},
};

/// Decodes a record, and counts on from its state as a store does; and parses a slot.
pub fn record(input: &[u8]) {
    if let Some(slot) = input.first_chunk() {
        let _ = parse_slot(slot).map(|progress| progress.promised());
    }
    let Ok(state) = record::decode(input) else { return };
    let again = record::encode(&state);
    assert_eq!(record::decode(&again).as_ref(), Ok(&state), "what is written is what is read");
    assert_eq!(record::expiry_of(&again), Some(record::expiry(&state)), "the filter reads the same expiry");
    let (requests, period) = (5, Period::from_secs(60));
    let bucket = |refill| Tier::token_bucket(requests, period, Bucket { burst: 5, refill, strict: true });
    for tier in [
        Tier::fixed_window(requests, period),
        Tier::sliding_window(requests, period),
        bucket(Refill::Continuous),
        bucket(Refill::Step),
    ] {
        let kind = CounterKind::Tier(tier.clone());
        if !record::fits(&state, &kind) {
            continue;
        }
        for now in [Timestamp::default(), state.idle_at(), Timestamp::from_nanos(u64::MAX)] {
            let mut local = weir_limit::algorithm::CounterState::unused(&tier, now);
            local.take(&tier, now, weir_limit::Hits(2));
            let merged = merge(state.clone(), &local, &kind, now);
            let _ = (merged.availability(&tier, now), merged.wait(&tier, now, weir_limit::Hits(1)));
        }
    }
    let (limit, pace) = (StepLimit { max: 5, refill: 2, period_ms: 60_000 }, Pace::new(2, 60));
    let Some(pace) = pace else { return };
    for request in [
        BucketRequest::Step(StepRequest { limit, take: 2, at: None, strict: true, session: true }),
        BucketRequest::Paced(PacedRequest { capacity: 5, pace, quantity: 2 }),
    ] {
        let kind = CounterKind::Bucket(request.kind());
        if !record::fits(&state, &kind) {
            continue;
        }
        for now in [Timestamp::default(), state.idle_at(), Timestamp::from_nanos(u64::MAX)] {
            let mut local = None;
            decide_bucket(&request, &mut local, now);
            let mut merged = local.map(|local| merge(state.clone(), &local, &kind, now));
            decide_bucket(&request, &mut merged, now);
        }
    }
}
