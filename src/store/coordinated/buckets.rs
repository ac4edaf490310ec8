//! Buckets whose parameters come with each request: a token bucket of any pace in the shared store, in the mode of rules
//! that name none. Those that are refilled in steps are in memory and on disk only.

use smallvec::smallvec;

use super::{Coordinated, turn::Turn};
use crate::{
    limit::{
        Algorithm, Bucket, Coordination, Direction, Entry, Hits, LimitCheck, OverLimitPolicy, Period, Refill,
        RuleRef, RuntimeLimit, Scope, Tier, Timestamp,
        request_bucket::{
            BucketKind, BucketName, BucketReply, BucketRequest, Pace, PacedReply, PacedRequest,
        },
    },
    store::{
        Store as _, StoreError,
        path::{BUCKET_DOMAIN, BUCKET_KEY, bytes_as_text},
        remote::Remote,
    },
};

/// Callers see these texts.
const STEPS: StoreError = StoreError::Unsupported(
    "RL.* are served in memory and on disk, not over a store that instances share; use CL.THROTTLE",
);
const TOO_LARGE: StoreError = StoreError::Unsupported(
    "a shared store counts up to 4294967295 tokens, in periods from 1 s to 31536000 s",
);
const UNKNOWN_PACE: StoreError = StoreError::Unsupported(
    "a shared store does not know when a bucket is full: only DEL can be asked about one",
);

impl<R: Remote> Coordinated<R> {
    pub(super) async fn decide_bucket_of(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        if self.client.settings.coordination == Coordination::Local {
            return Ok(self.memory.decide_bucket_now(name, request, now));
        }
        match request {
            BucketRequest::Step(_) => Err(STEPS),
            BucketRequest::Paced(request) => {
                Ok(BucketReply::Paced(self.decide_paced(name, request, false, now).await?))
            }
        }
    }

    pub(super) async fn find_buckets_of(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        if self.client.settings.coordination == Coordination::Local {
            return Ok(self.memory.find_buckets_now(name, deletes, now));
        }
        if !deletes {
            return Err(UNKNOWN_PACE);
        }
        // at the slowest pace, so that nothing flows in meanwhile: everything is given back that can be taken
        let pace = Pace::new(1, 31_536_000).ok_or(TOO_LARGE)?;
        let most = PacedRequest { capacity: u32::MAX.into(), pace, quantity: 0 };
        let before = self.decide_paced(name, &most, true, now).await?;
        if before.remaining == most.capacity {
            return Ok(None);
        }
        let all = PacedRequest { quantity: -i64::from(u32::MAX), ..most };
        self.decide_paced(name, &all, false, now).await?;
        Ok(Some(before.reset_after))
    }

    /// Decides `request`, and `reads` what the store has before: another instance may have used the bucket.
    async fn decide_paced(
        &self,
        name: &BucketName<'_>,
        request: &PacedRequest,
        reads: bool,
        now: Timestamp,
    ) -> Result<PacedReply, StoreError> {
        let tier = tier(request).ok_or(TOO_LARGE)?;
        let Ok(limit) = RuntimeLimit::new(smallvec![tier.clone()], OverLimitPolicy::Ignore) else {
            // the only thing left that is invalid: a bucket that holds nothing
            let limited = request.quantity > 0;
            let retry_after = if limited { Period::MAX } else { Period::default() };
            return Ok(PacedReply { limited, remaining: 0, retry_after, reset_after: Period::default() });
        };
        let value = bytes_as_text(name.key());
        let entries = [Entry { key: BUCKET_KEY, value: &value }];
        let check = LimitCheck {
            pool: None,
            rule: RuleRef::Override(&limit),
            domain: BUCKET_DOMAIN,
            entries: &entries,
            key: name.counter(&BucketKind::Paced).of_policy(OverLimitPolicy::Ignore),
            hits: Hits(request.quantity.unsigned_abs()),
            direction: if request.quantity < 0 { Direction::GiveBack } else { Direction::Take },
        };
        if reads {
            // without a reply, this instance's estimate has to do
            let turn = Turn::begin(now, self.client.settings.budget, None, None);
            let _ = self.read(&[&check], turn).await;
        }
        let decisions = self.take(std::slice::from_ref(&check), Scope::Descriptor, now).await?;
        let decision = decisions[0];
        let rest = request.capacity.saturating_sub(request.quantity.unsigned_abs());
        Ok(PacedReply {
            limited: decision.over,
            remaining: decision.remaining.into(),
            retry_after: if decision.over { decision.reset } else { Period::default() },
            // the decision says when the request fits; then the rest of the bucket flows in
            reset_after: if decision.over {
                plus(decision.reset, request.pace.time_of(rest))
            } else {
                decision.reset
            },
        })
    }
}

fn plus(a: Period, b: Period) -> Period {
    Period::from_nanos(a.as_nanos().saturating_add(b.as_nanos()))
}

/// None if a number is too large.
fn tier(request: &PacedRequest) -> Option<Tier> {
    let period = request.pace.period().filter(|period| *period <= Period::from_secs(31_536_000))?;
    let burst = u32::try_from(request.capacity).ok()?;
    let requests = u32::try_from(request.pace.count()).ok()?;
    let bucket = Bucket { burst, refill: Refill::AnyPace, strict: false };
    Some(Tier { requests, period, algorithm: Algorithm::TokenBucket(bucket) })
}
