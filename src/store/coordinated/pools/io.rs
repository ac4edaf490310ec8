//! What an instance asks the store of a pool, beside decisions: hits for requests that wait, and tables at each step.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Weak},
};

use tokio::{task::spawn_blocking, time::sleep};

use super::{
    SharedPools, Slot,
    instance::{InstancePool, rule},
};
use crate::{
    limit::{Coordination, Period, Timestamp, share::AT_ONCE},
    store::{
        pool_command::{PoolOutcome, PoolReply},
        remote::{Remote, RemoteError},
    },
};

/// The longest random delay of an exchange, so that instances do not all ask at once, and its largest part of a cycle.
const JITTER: Period = Period::from_millis(20);
const JITTER_PART: u64 = 40;

impl<R: Remote> SharedPools<R> {
    /// To be called after the last decision. Reports what the store does not know, and returns held hits.
    pub(in super::super) async fn close(&self) {
        for slot in self.pools.all() {
            // what the last cycle has left, then what was not used since the last exchange, then what was
            for _ in 0..3 {
                if self.locked(&slot, |pool| pool.has_more()) {
                    self.exchange(&slot).await;
                }
            }
        }
    }

    /// It is near if the shares of the cycle are not known, and the store `replies`.
    pub(super) fn delay(&self, pool: &InstancePool, replies: bool, at: Timestamp) -> Period {
        let longest = JITTER.as_nanos().min(pool.period().as_nanos() / JITTER_PART);
        let mut hasher = DefaultHasher::new();
        (self.instance, &pool.target.path, at).hash(&mut hasher);
        let jitter = Period::from_nanos(hasher.finish() % (longest + 1));
        if !pool.has_table && replies {
            return jitter;
        }
        let step = pool.ends(at).0.since(at);
        if pool.mode == Coordination::Interval {
            return step.min(self.client.caller.settings.sync_interval);
        }
        Period::from_nanos(step.as_nanos() + jitter.as_nanos())
    }

    /// Until no request of the member waits.
    pub(super) async fn fetch(self: Arc<Self>, slot: Slot, name: Box<str>) {
        loop {
            let at = self.client.time().latest;
            let fetch = self.locked(&slot, |pool| pool.begin_fetch(&name, self.instances(), at));
            let Some(fetch) = fetch else { return };
            let reply = self.client.call_pool(fetch.command.clone()).await;
            let at = self.client.time().latest;
            self.locked(&slot, |pool| pool.end_fetch(&name, fetch, reply.map(|reply| reply.outcome), at));
        }
    }

    /// Returns whether the store replied.
    async fn exchange(&self, slot: &Slot) -> bool {
        let at = self.client.time().latest;
        let command = self.locked(slot, |pool| pool.begin_exchange(at));
        let reply = if self.client.is_unavailable_for(&command.target, at) {
            Err(RemoteError::NotSent("the node does not reply".into()))
        } else {
            self.client.call_pool(command.clone()).await
        };
        let (now, table) = match reply {
            Ok(PoolReply { now, outcome: PoolOutcome::Table(table) }) => (now, table),
            other => {
                let (at, outcome) = (self.client.time().latest, other.map(|reply| reply.outcome));
                return self.locked(slot, |pool| pool.fail_exchange(command, outcome, at));
            }
        };
        self.client.caller.metrics.hits.lost_demand.add(table.dropped);
        let (view, sharing) = self.locked(slot, |pool| {
            pool.roll_to(table.cycle);
            (Arc::clone(&pool.view), Arc::clone(&pool.sharing))
        });
        let members = table.members.len();
        let compute = move || {
            let rule = rule(&command.target, &sharing);
            let (open, step) = rule.place(now);
            let step = if open == table.cycle { step } else { 0 };
            (view.adopt(&rule, &table, step), table.cycle)
        };
        // this thread also passes the store's replies to decisions that wait
        let computed = if members > AT_ONCE { spawn_blocking(compute).await.ok() } else { Some(compute()) };
        // otherwise the process ends
        let Some((pool, cycle)) = computed else { return false };
        let earlier = self.locked(slot, |shared| shared.end_exchange(cycle, pool));
        drop(earlier);
        true
    }

    fn locked<T>(&self, slot: &Slot, act: impl FnOnce(&mut InstancePool) -> T) -> T {
        self.pools.with(slot, |pool| (act(pool), pool.idle_at()))
    }
}

/// Exchanges tables after `delay`, and then at each step, as long as there is something to exchange.
pub(super) async fn exchange_often<R: Remote>(pools: Weak<SharedPools<R>>, slot: Slot, mut delay: Period) {
    loop {
        sleep(delay.into()).await;
        let Some(pools) = pools.upgrade() else { return };
        // only for its time: pools wait much longer than they exchange tables
        let replies = Box::pin(pools.exchange(&slot)).await;
        let at = pools.client.time().latest;
        let next = pools.locked(&slot, |pool| {
            let next = pool.has_more().then(|| pools.delay(pool, replies, at));
            if next.is_none() {
                pool.exchanges = None;
            }
            next
        });
        let Some(next) = next else { return };
        delay = next;
    }
}
