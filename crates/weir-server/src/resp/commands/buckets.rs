//! `DEL`, `EXISTS` and `TTL` of all buckets of a key.

use tokio::task::yield_now;

use super::{action::BucketCommand, refuse_store};
use crate::resp::{reply::CommandReplies, service::Service};
use weir_limit::{NANOS_PER_SECOND, Timestamp, request_bucket::BucketName};
use weir_store::Store;

pub(super) async fn carry_out<S: Store>(
    service: &Service<S>,
    command: BucketCommand,
    keys: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let store = service.limiter.store();
    let mut found = 0;
    for key in keys {
        // memory has all buckets of a key only by a look at many counters: before each of them other connections have
        // their turn, and it is seen whether the client has left
        yield_now().await;
        let name = BucketName::new(service.hasher, key);
        match (store.find_buckets(&name, command == BucketCommand::Delete, now).await, command) {
            (Ok(full_after), BucketCommand::Ttl) => {
                // to the nearest second, as in Redis
                let seconds = |nanos: u64| (nanos.saturating_add(NANOS_PER_SECOND / 2)) / NANOS_PER_SECOND;
                let seconds = full_after.map(|period| seconds(period.as_nanos()));
                // 584 years fit
                return replies
                    .integer(seconds.map_or(-2, |seconds| i64::try_from(seconds).unwrap_or(i64::MAX)));
            }
            (Ok(full_after), _) => found += i64::from(full_after.is_some()),
            (Err(error), _) => return refuse_store(&error, replies),
        }
    }
    replies.integer(found);
}
