//! Buckets whose parameters come with requests: those that are not in memory are read before their first decision, and
//! searched by their names.

use std::collections::HashSet;

use super::{
    merge::RETRY,
    notes::{Changed, DiskNotes},
    record::{CounterKind, bucket_prefix},
    state::StoredBucket,
    store::DiskStore,
};
use weir_limit::{
    CounterKey, OnStoreFailure, Period, Timestamp,
    algorithm::CounterState,
    request_bucket::{BucketKind, BucketName, BucketReply, BucketRequest},
};
use weir_store::{
    StoreError, TakeOptions,
    memory::{Counted, full_after},
};

/// The buckets that are read at once.
const SCANNED: usize = 1_000;

impl DiskStore {
    /// `known` is the reply if memory has decided already; otherwise the bucket is read first. Past the decision budget
    /// `on_store_failure` decides; what was taken counts.
    pub(super) async fn decide_bucket_waiting(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        known: Option<BucketReply>,
        now: Timestamp,
    ) -> BucketReply {
        let budget = self.budget(&TakeOptions::default());
        let decide = || self.shared.memory.decide_bucket_now(name, request, now);
        let counted = Counted::Bucket(name, request);
        let reply = if let Some(reply) = known {
            reply
        } else if let Some(_pins) = self.read(&[counted], budget).await {
            decide()
        } else {
            self.count_fallback(1, budget);
            return self.without_disk(request, decide, now);
        };
        // a rejected request in steps takes the tokens that are there
        let changes = request.changes() && (reply.admits(request) || matches!(reply, BucketReply::Step(_)));
        if !self.is_synced_first() || !changes || self.wait_for_round(1, budget).await {
            return reply;
        }
        self.count_fallback(1, budget);
        self.without_disk(request, || reply, now)
    }

    fn without_disk(
        &self,
        request: &BucketRequest,
        reply: impl FnOnce() -> BucketReply,
        now: Timestamp,
    ) -> BucketReply {
        match self.shared.settings.on_store_failure {
            OnStoreFailure::Deny if request.takes() => request.rejection(RETRY, now),
            OnStoreFailure::Allow if request.takes() => reply().admitting(request),
            _ => reply(),
        }
    }

    /// Returns the time until all buckets of `name` are full; none if there are none.
    pub(super) async fn find_buckets_of(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        let budget = self.budget(&TakeOptions::default());
        let (mut latest, mut known) = (None, HashSet::new());
        // first, since what leaves memory later is on disk then. What is being written stays until the writer has seen
        // it again
        self.shared.memory.for_each_bucket(name, |slot| {
            latest = latest.max(Some(slot.counter.idle_at()));
            if slot.notes.is_read {
                known.insert(slot.key);
            }
            if deletes {
                slot.counter = CounterState::default();
            }
        });
        let prefix = bucket_prefix(name);
        let mut after = None;
        loop {
            let searched = prefix.clone();
            let read = self.readers.read(move |shared| shared.scan(&searched, after.as_deref(), SCANNED));
            let read = read.ok_or(late())?;
            let stored = budget.wait(1, async { read.await.ok()?.ok() }).await.ok_or(late())?;
            after = stored.last().map(|last| last.name.clone());
            let is_end = stored.len() < SCANNED;
            for bucket in stored.into_iter().filter(|bucket| bucket.idle_at > now) {
                let key = name.counter(&bucket.kind);
                if !known.contains(&key) {
                    latest = latest.max(Some(bucket.idle_at));
                }
                if deletes {
                    self.delete(key, bucket);
                }
            }
            let is_crowded = self.shared.is_crowded(name.counter(&BucketKind::Paced));
            let must_wait = is_crowded || is_end && self.is_synced_first();
            if deletes && latest.is_some() && must_wait && !self.wait_for_round(1, budget).await {
                return Err(late());
            }
            if is_end {
                return Ok(full_after(latest, now));
            }
        }
    }

    /// In memory at once, and soon on disk.
    fn delete(&self, key: CounterKey, bucket: StoredBucket) {
        let StoredBucket { name, kind, expiry, .. } = bucket;
        let notes = DiskNotes { expiry, is_read: true, is_logged: true, pins: 0 };
        let mut is_logged = false;
        let make = || (CounterState::default(), notes);
        self.shared.memory.insert_if(
            key,
            || true,
            make,
            |slot| {
                slot.counter = CounterState::default();
                if !slot.notes.is_read {
                    // what the disk has is no part of it any more
                    (slot.notes.is_read, slot.notes.expiry) = (true, expiry);
                }
                is_logged = std::mem::replace(&mut slot.notes.is_logged, true);
            },
        );
        if !is_logged {
            let changed = Changed { key, name, kind: CounterKind::Bucket(kind) };
            self.shared.memory.with_log(key, |log| log.push(changed));
        }
    }
}

fn late() -> StoreError {
    StoreError::Unavailable("the disk did not answer in time".into())
}
