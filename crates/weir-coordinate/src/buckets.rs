//! Buckets whose parameters come with each request: a token bucket of any pace in the shared store, in the mode of rules
//! that name none. Those that are refilled in steps are in memory and on disk only.

use smallvec::smallvec;
use tokio::time::Instant;

use super::{Coordinated, counter::TryKind};
use weir_limit::{
    Bucket, Direction, Entry, Hits, LimitCheck, OverLimitPolicy, Period, Refill, RuleRef, RuntimeLimit,
    Scope, Tier, Timestamp,
    request_bucket::{BucketKind, BucketName, Pace, PacedReply, PacedRequest},
};
use weir_store::{
    Store as _, StoreError,
    path::{BUCKET_DOMAIN, BUCKET_KEY, bytes_as_text},
    remote::Remote,
};

/// Callers see these texts.
pub(super) const STEPS: StoreError = StoreError::Unsupported(
    "RL.* are served in memory and on disk, not over a store that instances share; use CL.THROTTLE",
);
pub(super) const UNKNOWN_PACE: StoreError = StoreError::Unsupported(
    "a shared store does not know when a bucket is full: only DEL can be asked about one",
);
const TOO_LARGE: StoreError = StoreError::Unsupported(
    "a shared store counts up to 4294967295 tokens, in periods from 1 s to 31536000 s",
);

/// Returns the time until the bucket would have been full; none if it was.
pub(super) async fn delete<R: Remote>(
    store: &Coordinated<R>,
    name: &BucketName<'_>,
    now: Timestamp,
) -> Result<Option<Period>, StoreError> {
    // at the slowest pace, so that nothing flows in meanwhile: everything is given back that can be taken
    let pace = Pace::new(1, 31_536_000).ok_or(TOO_LARGE)?;
    let all = PacedRequest { capacity: u32::MAX.into(), pace, quantity: -i64::from(u32::MAX) };
    let before = decide_paced(store, name, &all, true, now).await?;
    if before.remaining == all.capacity {
        return Ok(None);
    }
    decide_paced(store, name, &all, false, now).await?;
    Ok(Some(before.reset_after))
}

/// Decides `request`; or only `reads` how the bucket stands, which another instance may have used.
pub(super) async fn decide_paced<R: Remote>(
    store: &Coordinated<R>,
    name: &BucketName<'_>,
    request: &PacedRequest,
    reads: bool,
    now: Timestamp,
) -> Result<PacedReply, StoreError> {
    let tier = tier(request).ok_or(TOO_LARGE)?;
    let Ok(limit) = RuntimeLimit::new(smallvec![tier], OverLimitPolicy::Ignore) else {
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
        settles: false,
    };
    let decision = if reads {
        let until = Instant::now() + store.client.settings.budget.into();
        let asked = store.ask(&check, TryKind::Look, until).await;
        // without a reply, this instance's estimate has to do
        asked.map_or_else(|_| store.look(&check, Hits(0), now), |tried| tried.decision)
    } else {
        store.take(std::slice::from_ref(&check), Scope::Descriptor, now).await?[0]
    };
    let (wait, rest) = if decision.over {
        let rest = request.capacity.saturating_sub(request.quantity.unsigned_abs());
        // when the request fits; then the rest of the bucket flows in
        (decision.reset, request.pace.time_of(rest))
    } else {
        (Period::default(), decision.reset)
    };
    Ok(PacedReply {
        limited: decision.over,
        remaining: decision.remaining.into(),
        retry_after: wait,
        reset_after: wait + rest,
    })
}

/// None if a number is too large.
fn tier(request: &PacedRequest) -> Option<Tier> {
    let period = request.pace.period().filter(|period| *period <= Period::from_secs(31_536_000))?;
    let burst = u32::try_from(request.capacity).ok()?;
    let requests = u32::try_from(request.pace.count()).ok()?;
    Some(Tier::token_bucket(requests, period, Bucket { refill: Refill::AnyPace, ..Bucket::of(burst) }))
}
