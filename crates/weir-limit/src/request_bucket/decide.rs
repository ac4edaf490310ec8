//! The decision on one bucket, as stores make it under their lock.

use super::{
    paced::{PacedBucket, PacedReply, PacedRequest},
    step::{StepBucket, StepReply, StepRequest},
};
use crate::{
    algorithm::CounterState,
    units::{Period, Timestamp},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketRequest {
    Step(StepRequest),
    Paced(PacedRequest),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketReply {
    Step(StepReply),
    Paced(PacedReply),
}

// === impl BucketRequest ===

impl BucketRequest {
    pub const fn takes(&self) -> bool {
        match self {
            Self::Step(step) => step.take > 0,
            Self::Paced(paced) => paced.quantity > 0,
        }
    }

    /// Returns whether it may change the bucket: it takes tokens, or gives some back.
    pub const fn changes(&self) -> bool {
        match self {
            Self::Step(step) => step.take > 0,
            Self::Paced(paced) => paced.quantity != 0,
        }
    }

    /// Returns the reply that rejects it without knowing the bucket, which may be asked again after `retry_after`.
    pub fn rejection(&self, retry_after: Period, now: Timestamp) -> BucketReply {
        match self {
            Self::Step(step) => BucketReply::Step(StepReply {
                tokens: 0,
                session_start: step.at.unwrap_or(now.as_nanos() / 1_000_000),
            }),
            Self::Paced(_) => BucketReply::Paced(PacedReply {
                limited: true,
                remaining: 0,
                retry_after,
                reset_after: retry_after,
            }),
        }
    }
}

// === impl BucketReply ===

impl BucketReply {
    pub const fn admits(&self, request: &BucketRequest) -> bool {
        match (self, request) {
            (Self::Step(reply), BucketRequest::Step(step)) => reply.tokens >= step.take,
            (Self::Paced(reply), _) => !reply.limited,
            (Self::Step(_), BucketRequest::Paced(_)) => false,
        }
    }

    pub fn admitting(self, request: &BucketRequest) -> Self {
        match (self, request) {
            (Self::Step(reply), BucketRequest::Step(step)) => {
                Self::Step(StepReply { tokens: reply.tokens.max(step.take), ..reply })
            }
            (Self::Paced(reply), _) => {
                Self::Paced(PacedReply { limited: false, retry_after: Period::default(), ..reply })
            }
            (reply, _) => reply,
        }
    }
}

/// How long a bucket used with a caller's time is kept: by the server's clock, nothing says when it is full.
const KEPT: Period = Period::from_secs(7 * 86_400);

/// Decides `request` at `now` on the server's clock, and changes `state`. A full bucket need not have one.
pub fn decide_bucket(
    request: &BucketRequest,
    state: &mut Option<CounterState>,
    now: Timestamp,
) -> BucketReply {
    match request {
        BucketRequest::Step(step) => BucketReply::Step(decide_step(step, state, now)),
        BucketRequest::Paced(paced) => BucketReply::Paced(decide_paced(paced, state, now)),
    }
}

fn decide_paced(request: &PacedRequest, state: &mut Option<CounterState>, now: Timestamp) -> PacedReply {
    let (mut bucket, mut token) = match state {
        Some(CounterState::Paced(bucket, token)) => (*bucket, *token),
        _ => (PacedBucket::default(), request.pace.token_time()),
    };
    let reply = bucket.decide(&mut token, request, now);
    *state = (bucket.taken() > 0).then_some(CounterState::Paced(bucket, token));
    reply
}

fn decide_step(request: &StepRequest, state: &mut Option<CounterState>, now: Timestamp) -> StepReply {
    let at = request.at.unwrap_or(now.as_nanos() / 1_000_000);
    let (mut bucket, by_caller, session) = match state {
        Some(CounterState::Steps(bucket, _, by_caller)) => (*bucket, *by_caller, None),
        Some(CounterState::Session(session, _, by_caller)) => (session.0, *by_caller, Some(session.1)),
        _ => (StepBucket::full(at), false, None),
    };
    let by_caller = by_caller || request.at.is_some();
    let strict = request.strict || request.session;
    let tokens = bucket.take(&StepRequest { strict, ..*request }, at);
    let begins = request.take > 0 && tokens >= request.take;
    let session_start = if begins { at } else { session.unwrap_or(at) };
    if request.take > 0 {
        let refill_time = bucket.refill_time(&request.limit);
        let idle_at = if by_caller {
            now.after(Period::from_millis(refill_time).max(KEPT))
        } else {
            Timestamp::from_millis(bucket.stepped_at().saturating_add(refill_time))
        };
        // a request that asks for no session ends none
        let session = if request.session { Some(session_start) } else { session };
        *state = Some(CounterState::restored_steps(bucket, session, idle_at, by_caller));
    }
    StepReply { tokens, session_start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_bucket::{Pace, StepLimit};

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn step(take: u64, at: Option<u64>, session: bool) -> BucketRequest {
        let limit = StepLimit { max: 2, refill: 2, period_ms: 60_000 };
        BucketRequest::Step(StepRequest { limit, take, at, strict: false, session })
    }

    fn reply(request: BucketRequest, state: &mut Option<CounterState>, now: Timestamp) -> (u64, u64) {
        match decide_bucket(&request, state, now) {
            BucketReply::Step(reply) => (reply.tokens, reply.session_start),
            BucketReply::Paced(reply) => (reply.remaining, reply.limited.into()),
        }
    }

    #[test]
    fn only_what_takes_creates_a_bucket() {
        let mut state = None;
        assert_eq!(reply(step(0, None, false), &mut state, NOW).0, 2);
        assert_eq!(reply(step(0, None, true), &mut state, NOW), (2, 1_700_000_000_000));
        let pace = Pace::new(1, 60).expect("a pace");
        let paced = |quantity| BucketRequest::Paced(PacedRequest { capacity: 3, pace, quantity });
        for quantity in [0, -1, 4] {
            reply(paced(quantity), &mut state, NOW);
        }
        assert_eq!(state, None);
        assert_eq!(reply(paced(2), &mut state, NOW), (1, 0));
        let full_after = state.as_ref().map(|state| state.idle_at().since(NOW.after(Period::from_secs(120))));
        assert!(full_after.is_some_and(|late| late < Period::from_millis(1)), "{full_after:?}");
        // given back, it is full
        reply(paced(-2), &mut state, NOW);
        assert_eq!(state, None);
    }

    #[test]
    fn a_bucket_of_the_server_expires_when_it_is_full_and_one_of_callers_long_after_its_last_use() {
        let mut state = None;
        reply(step(1, None, false), &mut state, NOW);
        assert_eq!(state.as_ref().map(CounterState::idle_at), Some(NOW.after(Period::from_secs(60))));
        for at in [1_000, 4_000_000_000_000, 5] {
            reply(step(1, Some(at), false), &mut state, NOW);
            assert_eq!(state.as_ref().map(CounterState::idle_at), Some(NOW.after(KEPT)), "{at}");
        }
    }

    #[test]
    fn a_session_begins_with_each_admitted_request_and_lasts_while_they_are_rejected() {
        let (mut state, at) = (None, 1_000_000);
        assert_eq!(reply(step(2, Some(at), true), &mut state, NOW), (2, at));
        assert_eq!(reply(step(2, Some(at + 5), true), &mut state, NOW), (0, at));
        // strict: the next step is a minute after the last request
        assert_eq!(reply(step(2, Some(at + 60_004), true), &mut state, NOW), (0, at));
        assert_eq!(reply(step(0, Some(at + 60_004), true), &mut state, NOW), (0, at));
        // a request without a session keeps it
        assert_eq!(reply(step(2, Some(at + 60_005), false), &mut state, NOW).0, 0);
        assert_eq!(reply(step(2, Some(at + 60_006), true), &mut state, NOW), (0, at));
        assert_eq!(reply(step(2, Some(at + 120_006), true), &mut state, NOW), (2, at + 120_006));
    }
}
