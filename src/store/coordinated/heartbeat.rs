//! The instances know how many they are, what the store's clock shows, and whether what was given up is back.

use std::sync::{Arc, atomic::Ordering};

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Inner;
use crate::{
    limit::{Algorithm, OverLimitPolicy, Period, Tier, Timestamp},
    store::remote::{Command, Op, Remote, StoreNode, Target},
};

/// Says every now and then that this instance lives, until it is dropped or leaves. A heartbeat that is not heard for twice
/// its time is taken for a death.
pub(super) async fn run<R: Remote>(inner: Arc<Inner<R>>) {
    let every = inner.settings.heartbeat;
    let mut ticks = interval(every.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if inner.closed.load(Ordering::Relaxed) {
            return;
        }
        // together, for what does not answer must not keep the heartbeat from those that do
        tokio::join!(look_at_the_clock(&inner), beat(&inner), probe(&inner));
    }
}

async fn beat<R: Remote>(inner: &Inner<R>) {
    let every = inner.settings.heartbeat;
    let node = inner.remote.members_node();
    let lives_for = Period::from_nanos(2 * every.as_nanos());
    let beat = inner.remote.heartbeat(&inner.settings.instance, lives_for);
    // it is also how a store that was given up is found to be back
    match timeout(every.into(), inner.listen(node, None, beat)).await {
        Ok(Ok(instances)) => {
            inner.instances.store(instances.max(1), Ordering::Relaxed);
            inner.breaker.answered(node);
        }
        Ok(Err(_)) | Err(_) => inner.breaker.failed(node, None),
    }
}

/// LimitChecks nodes that were given up whether they are back: for no hits of what they did not count then.
async fn probe<R: Remote>(inner: &Inner<R>) {
    let now = inner.time().now;
    let probes = inner.breaker.given_up().into_iter().filter_map(|(node, target)| {
        // what it held may be elsewhere by now
        if inner.node(target.as_deref(), now) != node {
            inner.breaker.forget(node);
            return None;
        }
        // the heartbeat itself goes to one
        let target = target.filter(|_| node != inner.remote.members_node());
        target.map(|target| ask_for_nothing(inner, node, target, now))
    });
    join_all(probes).await;
}

async fn ask_for_nothing<R: Remote>(inner: &Inner<R>, node: StoreNode, target: Arc<Target>, at: Timestamp) {
    let asked = inner.remote.call(vec![Command { target, at, op: Op::Take { hits: 0 } }]);
    if let Ok(Ok(_)) = timeout(inner.settings.heartbeat.into(), asked).await {
        inner.breaker.answered(node);
    }
}

/// LimitChecks for no hits where no call has brought it along for long, to learn what the store's clock shows: so that the first
/// window that is counted in is the right one.
async fn look_at_the_clock<R: Remote>(inner: &Inner<R>) {
    let sent = inner.clock.now();
    if !inner.store_clock.is_stale(sent) {
        return;
    }
    let tier = Tier { requests: 1, period: Period::from_secs(1), algorithm: Algorithm::SlidingWindow };
    let target = Target {
        path: "weir:clock_".into(),
        tiers: smallvec![tier],
        over_limit_policy: OverLimitPolicy::Ignore,
    };
    let command = Command { target: Arc::new(target), at: sent, op: Op::Take { hits: 0 } };
    let asked = timeout(inner.settings.heartbeat.into(), inner.remote.call(vec![command]));
    if let Ok(Ok(replies)) = asked.await {
        inner.store_clock.measured(sent, inner.clock.now(), replies.now);
    }
}

/// Says that this instance leaves, and nothing more after that.
pub(super) async fn leave<R: Remote>(inner: &Inner<R>) {
    inner.closed.store(true, Ordering::Relaxed);
    let left = inner.remote.heartbeat(&inner.settings.instance, Period::default());
    let _ = timeout(inner.settings.heartbeat.into(), left).await;
}
