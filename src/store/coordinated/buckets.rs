//! Buckets whose parameters come with each request. A paced one is a token bucket of any pace in the shared store, in
//! the mode of rules that name none. Each request about one that is refilled in steps is decided by the shared store,
//! and fails with it.

use std::time::Duration;

use smallvec::smallvec;
use tokio::time::timeout;

use super::Coordinated;
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
        path::{BUCKET_DOMAIN, BUCKET_KEY, bytes_as_text, path_of_buckets},
        remote::{Remote, RemoteError},
    },
};

/// Callers see these texts.
const STEPS: StoreError = StoreError::Unsupported(
    "this store keeps no buckets that are refilled in steps, or the numbers are too large for it: up to 4503599627370495",
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
        if self.client.caller.settings.coordination == Coordination::Local {
            return Ok(self.memory.decide_bucket_now(name, request, now));
        }
        match request {
            BucketRequest::Step(request) => {
                let path = path_of_buckets(name);
                let taken = self.remote().take_steps(&path, request);
                Ok(BucketReply::Step(self.within_budget(taken).await?.ok_or(STEPS)?))
            }
            BucketRequest::Paced(request) => {
                Ok(BucketReply::Paced(self.decide_paced(name, request, now).await?))
            }
        }
    }

    pub(super) async fn find_buckets_of(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        if self.client.caller.settings.coordination == Coordination::Local {
            return Ok(self.memory.find_buckets_now(name, deletes, now));
        }
        if !deletes {
            return Err(UNKNOWN_PACE);
        }
        // at the slowest pace, so that nothing flows in meanwhile: everything is given back that can be taken
        let pace = Pace::new(1, 31_536_000).ok_or(TOO_LARGE)?;
        let most = PacedRequest { capacity: u32::MAX.into(), pace, quantity: 0 };
        let path = path_of_buckets(name);
        let had_steps = self.within_budget(self.remote().delete_steps(&path)).await?;
        let before = self.decide_paced(name, &most, now).await?;
        if before.remaining == most.capacity {
            return Ok(had_steps.then_some(Period::default()));
        }
        let all = PacedRequest { quantity: -i64::from(u32::MAX), ..most };
        self.decide_paced(name, &all, now).await?;
        Ok(Some(before.reset_after))
    }

    /// Waits for `reply` of the shared store, no longer than a decision may.
    async fn within_budget<T>(
        &self,
        reply: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, StoreError> {
        if self.client.is_unavailable() {
            return Err(StoreError::Unavailable("it does not reply".into()));
        }
        let budget = self.client.caller.settings.budget;
        let replied = timeout(Duration::from(budget), reply).await;
        replied
            .unwrap_or(Err(RemoteError::TimedOut(budget)))
            .map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    async fn decide_paced(
        &self,
        name: &BucketName<'_>,
        request: &PacedRequest,
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
        let decisions = self.take(std::slice::from_ref(&check), Scope::Descriptor, now).await?;
        let decision = decisions.first().ok_or(STEPS)?;
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

/// Returns the tier of a request; none if a number is too large.
fn tier(request: &PacedRequest) -> Option<Tier> {
    let period = request.pace.period().filter(|period| *period <= Period::from_secs(31_536_000))?;
    let burst = u32::try_from(request.capacity).ok()?;
    let requests = u32::try_from(request.pace.count()).ok()?;
    let bucket = Bucket { burst, refill: Refill::AnyPace, strict: false };
    Some(Tier { requests, period, algorithm: Algorithm::TokenBucket(bucket) })
}
