//! The sum of two states of one bucket, for a store that has counted in one before it knew the other.

use super::{
    name::BucketKind,
    paced::{PacedBucket, TokenTime},
    step::{StepBucket, StepLimit},
};
use crate::{
    algorithm::CounterState,
    units::{Period, Timestamp},
};

/// Adds the tokens taken from `local`, which began full, to `stored`. States of different kinds give `stored`. What has
/// flowed into `local` has flowed into both, so that the sum may have as many tokens more than one state.
pub fn merge_buckets(stored: CounterState, local: &CounterState, kind: &BucketKind) -> CounterState {
    match (&stored, local) {
        (CounterState::Paced(bucket, token), CounterState::Paced(own, own_token)) => {
            let (bucket, token) = add_paced((*bucket, *token), (*own, *own_token));
            CounterState::Paced(bucket, token)
        }
        (_, CounterState::Paced(..)) => stored,
        _ => match (Steps::of(&stored), Steps::of(local), kind) {
            (Some(bucket), Some(own), BucketKind::Steps(limit)) => bucket.plus(&own, limit).state(),
            _ => stored,
        },
    }
}

/// Tokens flow into `bucket` at its earlier pace until the instant of `own`.
fn add_paced(bucket: (PacedBucket, TokenTime), own: (PacedBucket, TokenTime)) -> (PacedBucket, TokenTime) {
    let ((bucket, token), (own, own_token)) = (bucket, own);
    if bucket.taken() == 0 {
        return (own, own_token);
    }
    let settled = bucket.settle(token, own_token, own.as_of());
    (PacedBucket::new(settled.as_of(), settled.taken().saturating_add(own.taken())), own_token)
}

struct Steps {
    bucket: StepBucket,
    idle_at: Timestamp,
    by_caller: bool,
    session: Option<u64>,
}

impl Steps {
    fn of(state: &CounterState) -> Option<Self> {
        let (bucket, idle_at, by_caller, session) = match state {
            CounterState::Steps(bucket, idle_at, by_caller) => (*bucket, idle_at, by_caller, None),
            CounterState::Session(session, idle_at, by_caller) => {
                (session.0, idle_at, by_caller, Some(session.1))
            }
            _ => return None,
        };
        Some(Self { bucket, idle_at: idle_at.instant(), by_caller: *by_caller, session })
    }

    fn plus(&self, own: &Self, limit: &StepLimit) -> Self {
        let refilled = self.bucket.refilled(limit, own.bucket.stepped_at());
        let taken = refilled.taken().saturating_add(own.bucket.taken()).min(limit.max);
        let bucket = StepBucket::new(taken, refilled.stepped_at());
        let full_after = Period::from_millis(bucket.refill_time(limit));
        let by_caller = self.by_caller || own.by_caller;
        // callers' times say nothing about the server's clock
        let by_steps = if by_caller {
            Timestamp::default()
        } else {
            Timestamp::from_millis(bucket.stepped_at()).after(full_after)
        };
        Self {
            bucket,
            idle_at: by_steps.max(self.idle_at).max(own.idle_at),
            by_caller,
            session: own.session.or(self.session),
        }
    }

    fn state(self) -> CounterState {
        CounterState::restored_steps(self.bucket, self.session, self.idle_at, self.by_caller)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::request_bucket::{BucketReply, BucketRequest, Pace, PacedRequest, StepRequest, decide_bucket};

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn tokens(request: &BucketRequest, state: Option<&CounterState>, now: Timestamp) -> u64 {
        match decide_bucket(request, &mut state.cloned(), now) {
            BucketReply::Step(reply) => reply.tokens,
            BucketReply::Paced(reply) => reply.remaining,
        }
    }

    proptest! {
        /// No more tokens are left than in one bucket, except for those that have flowed into both; and no fewer than
        /// two steps or two tokens.
        #[test]
        fn tokens_that_were_taken_from_either_are_missing_from_the_sum(
            is_paced: bool,
            max in 1..30_u64,
            refill in 1..30_u64,
            earlier in vec((0..40_u64, 1..9_u64), 1..6),
            later in vec((0..40_u64, 1..9_u64), 1..6),
            wait in 0..90_u64,
        ) {
            let seconds = 20;
            let pace = Pace::new(i64::try_from(refill).expect("small"), seconds).expect("a pace");
            let limit = StepLimit { max, refill, period_ms: 20_000 };
            let request = |take: u64| if is_paced {
                BucketRequest::Paced(PacedRequest {
                    capacity: max, pace, quantity: i64::try_from(take).expect("small"),
                })
            } else {
                BucketRequest::Step(StepRequest { limit, take, at: None, strict: false, session: false })
            };
            let (mut whole, mut stored, mut local) = (None, None, None);
            let (mut now, mut first_local) = (START, None);
            let all = earlier.iter().map(|step| (false, step)).chain(later.iter().map(|step| (true, step)));
            for (is_local, (step, take)) in all {
                now = now.after(Period::from_secs(*step));
                // what one bucket rejects would be another history
                if tokens(&request(0), whole.as_ref(), now) < *take {
                    continue;
                }
                decide_bucket(&request(*take), &mut whole, now);
                if is_local {
                    first_local.get_or_insert(now);
                    decide_bucket(&request(*take), &mut local, now);
                } else {
                    decide_bucket(&request(*take), &mut stored, now);
                }
            }
            let (Some(stored), Some(local)) = (stored, local) else { return Ok(()) };
            let apart = now.since(first_local.unwrap_or(now)).as_nanos() / 1_000_000_000;
            let merged = Some(merge_buckets(stored, &local, &request(0).kind()));
            let then = now.after(Period::from_secs(wait));
            for at in [now, then] {
                let (one, sum) = (tokens(&request(0), whole.as_ref(), at), tokens(&request(0), merged.as_ref(), at));
                // a partial step of each
                let both = refill * (apart / 20 + 1);
                prop_assert!(sum <= one + both, "{sum} left, one bucket has {one}, both got {both}");
                prop_assert!(sum + both >= one, "{sum} left, one bucket has {one}");
            }
        }
    }

    #[test]
    fn what_is_taken_at_one_instant_adds_up() {
        let limit = StepLimit { max: 10, refill: 10, period_ms: 60_000 };
        let step =
            |take, session, at| BucketRequest::Step(StepRequest { limit, take, at, strict: false, session });
        let (mut stored, mut local) = (None, None);
        decide_bucket(&step(3, true, None), &mut stored, START);
        decide_bucket(&step(4, false, Some(1_000)), &mut local, START);
        let (Some(stored), Some(local)) = (stored, local) else { panic!("two states") };
        let mut merged = Some(merge_buckets(stored.clone(), &local, &BucketKind::Steps(limit)));
        assert_eq!(tokens(&step(0, false, None), merged.as_ref(), START), 3);
        // the session goes on, and callers' times keep it for a week
        let BucketReply::Step(reply) = decide_bucket(&step(0, true, None), &mut merged, START) else {
            panic!("a reply of steps")
        };
        assert_eq!(reply.session_start, START.as_nanos() / 1_000_000);
        let kept = merged.map(|state| state.idle_at());
        assert_eq!(kept, Some(local.idle_at()));
        assert!(local.idle_at() > stored.idle_at());
        // more than there are
        let mut drained = None;
        decide_bucket(&step(9, false, None), &mut drained, START);
        let drained = drained.expect("a state");
        let merged = Some(merge_buckets(drained.clone(), &drained, &BucketKind::Steps(limit)));
        assert_eq!(tokens(&step(0, false, None), merged.as_ref(), START), 0);
    }
}
