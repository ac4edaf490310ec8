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
    limit::{
        Coordination, Period, Timestamp,
        share::{AT_ONCE, Borrow, Lend},
    },
    store::{
        pool_command::{LATE_PART, PoolCommand, PoolOp, PoolOutcome, PoolReply},
        remote::{Remote, RemoteError},
    },
};

/// The longest time by which an exchange is delayed at random, so that instances do not all ask at once; at most this
/// part of a cycle.
const JITTER: Period = Period::from_millis(20);
const JITTER_PART: u64 = 40;

impl<R: Remote> SharedPools<R> {
    /// Tells the store what it does not know yet, and returns the hits that are held. To be called after the last
    /// decision.
    pub(in super::super) async fn close(&self) {
        for slot in self.pools.all() {
            // the first exchange returns what was not used since; the second one what was
            for _ in 0..2 {
                let has_news = self.pools.with(&slot, |pool| (pool.has_news(), pool.idle_at()));
                if has_news {
                    self.exchange(&slot).await;
                }
            }
        }
    }

    /// Returns the time from `at` until the next exchange of `pool`. It is near if the shares of the cycle are not
    /// known, and the store `replies`.
    pub(super) fn delay(&self, pool: &InstancePool, replies: bool, at: Timestamp) -> Period {
        let longest = JITTER.as_nanos().min(pool.period().as_nanos() / JITTER_PART);
        let mut hasher = DefaultHasher::new();
        (self.instance, &pool.target.path, at).hash(&mut hasher);
        let jitter = Period::from_nanos(hasher.finish() % (longest + 1));
        if pool.is_unknown() && replies {
            return jitter;
        }
        let step = pool.ends(at).0.since(at);
        if pool.mode() == Coordination::Interval {
            return step.min(self.client.caller.settings.sync_interval);
        }
        Period::from_nanos(step.as_nanos() + jitter.as_nanos())
    }

    /// Has the store grant hits to the member `name`, until no request waits.
    pub(super) async fn fetch(self: Arc<Self>, slot: Slot, name: Box<str>, mode: Coordination) {
        loop {
            let at = self.client.time().latest;
            let fetch = self
                .pools
                .with(&slot, |pool| (pool.begin_fetch(&name, mode, self.instances(), at), pool.idle_at()));
            let Some(fetch) = fetch else { return };
            let reply = self.client.call_pool(fetch.command.clone()).await;
            let at = self.client.time().latest;
            self.pools.with(&slot, |pool| {
                pool.end_fetch(&name, fetch, reply.map(|reply| reply.outcome), at);
                ((), pool.idle_at())
            });
        }
    }

    /// Exchanges tables with the store. Returns whether it replied.
    async fn exchange(&self, slot: &Slot) -> bool {
        let at = self.client.time().latest;
        let exchange = self.pools.with(slot, |pool| (pool.begin_exchange(at), pool.idle_at()));
        let is_away = self.client.is_unavailable_for(&exchange.command.target, at);
        let reply = if is_away {
            Err(RemoteError::NotSent("the node does not reply".into()))
        } else {
            self.client.call_pool(exchange.command.clone()).await
        };
        let PoolReply { now, outcome } = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.pools.with(slot, |pool| (pool.fail_exchange(exchange.command, &error), pool.idle_at()));
                return false;
            }
        };
        let table = match outcome {
            PoolOutcome::Table(table) => table,
            PoolOutcome::OtherCycle(cycle) => {
                let at = self.client.time().latest;
                self.pools
                    .with(slot, |pool| (pool.turn_exchange(exchange.command, cycle, at), pool.idle_at()));
                return true;
            }
            PoolOutcome::Leased(_) | PoolOutcome::Kept => return false,
        };
        self.client.caller.metrics.hits.lost_demand.add(table.dropped);
        let (target, sharing) = (Arc::clone(&exchange.command.target), Arc::clone(&exchange.sharing));
        let (members, cycle) = (table.members.len(), table.cycle);
        let (step, is_last, is_final) = {
            let rule = rule(&target, &sharing);
            let (open, step) = rule.place(now);
            let step = if open == cycle { step } else { 0 };
            let elapsed = now.as_nanos() - open * rule.cycle.as_nanos();
            let is_final = open == cycle && elapsed > rule.cycle.as_nanos() / LATE_PART;
            (step, step + 1 == rule.steps(), is_final)
        };
        let (kept_in, from_own) = (table.kept_in, table.account.from_own);
        let view = self.pools.with(slot, |pool| (Arc::clone(&pool.view), pool.idle_at()));
        let compute = move || {
            let rule = rule(&target, &sharing);
            let pool = view.adopt(&rule, &table, step);
            let next = is_last.then(|| pool.next(&rule));
            (table, pool, next)
        };
        // this thread also passes the store's replies to decisions that wait
        let computed = if members > AT_ONCE { spawn_blocking(compute).await.ok() } else { Some(compute()) };
        // otherwise the process ends
        let Some((table, pool, next)) = computed else { return false };
        let kept = pool.kept();
        let (earlier, mode) = self.pools.with(slot, |shared| {
            let earlier = shared.end_exchange(&table, is_final, pool, next);
            ((earlier, shared.mode()), shared.idle_at())
        });
        drop(earlier);
        let lends = exchange.sharing.lend == Lend::WithinCycle && exchange.sharing.borrow != Borrow::None;
        if lends && mode != Coordination::Interval && kept_in.is_none_or(|kept_in| kept_in < step) {
            let op = PoolOp::Keep { step, kept, from_own };
            // without it nothing is kept for owners in this step
            let _ = self.client.call_pool(PoolCommand { cycle, op, ..exchange.command }).await;
        }
        true
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
        let next = pools.pools.with(&slot, |pool| {
            let next = pool.has_news().then(|| pools.delay(pool, replies, at));
            if next.is_none() {
                pool.exchanges = None;
            }
            (next, pool.idle_at())
        });
        let Some(next) = next else { return };
        delay = next;
    }
}
