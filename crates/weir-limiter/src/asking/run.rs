//! Asks the store for the hits of lines.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{AskingLines, Work};
use crate::{Limiter, acquire::waits};
use weir_limit::{
    CounterKey, LimitCheck, Matched, Named, Period, ReservationRequest,
    line::{Ask, Supply, Unused},
    part::InstanceRank,
};
use weir_store::{Store, Timers, clock::Clock};

/// The longest sleep: a wall clock that is set forward must not keep callers waiting for longer.
const LONGEST_SLEEP: Period = Period::from_secs(1);

/// How long a line waits for the store before `on_store_failure` decides.
const PATIENCE: Period = Period::from_secs(1);

/// Ends with `lines` or the limiter. Sleeps for up to `longest`, or else [`LONGEST_SLEEP`], if nothing is due. Serves the
/// lines of `timers`, too, which are in memory.
pub(crate) async fn serve<S: Store>(
    limiter: Weak<Limiter<S>>,
    lines: Arc<AskingLines>,
    clock: Arc<dyn Clock>,
    longest: Option<Period>,
    timers: Option<Arc<Timers>>,
) {
    let serves_memory = timers.is_some();
    // otherwise they are rung by nobody
    let timers = timers.unwrap_or_default();
    let longest = longest.unwrap_or(LONGEST_SLEEP);
    let mut work = JoinSet::new();
    // a second one serves the same lines
    let _ = lines.runtime.set(Handle::current());
    loop {
        {
            let Some(limiter) = limiter.upgrade() else { break };
            if serves_memory {
                limiter.serve_waiters(clock.now());
            }
            limiter.reload_asking(clock.now());
            for due in lines.due(clock.now()) {
                let (limiter, clock) = (Arc::clone(&limiter), Arc::clone(&clock));
                work.spawn(async move { limiter.carry_out(due, &*clock).await });
            }
            for due in lines.places.due(clock.now()) {
                let (limiter, clock) = (Arc::clone(&limiter), Arc::clone(&clock));
                work.spawn(async move { limiter.carry_out_places(due, &*clock).await });
            }
        }
        let next = [lines.next(), lines.places.next(), timers.next()].into_iter().flatten().min();
        let next = next.map_or(longest, |next| next.since(clock.now()).min(longest));
        tokio::select! {
            () = timers.rung() => {}
            () = lines.places.rung() => {}
            is_open = lines.rung() => if !is_open { break },
            Some(_) = work.join_next() => {}
            () = sleep(next.into()) => {}
        }
    }
    // what was granted meanwhile is given back
    let last = async { while work.join_next().await.is_some() {} };
    let _ = timeout(Duration::from(PATIENCE), last).await;
}

impl<S: Store> Limiter<S> {
    async fn carry_out(&self, work: Work, clock: &(impl Clock + ?Sized)) {
        match work {
            Work::Ask(key, names, ask) => {
                let supply = self.ask(key, &names, ask, clock).await;
                self.asking.supply(key, supply, clock.now());
            }
            Work::Return(key, names, unused) => self.return_unused(key, &names, unused, clock).await,
        }
    }

    async fn ask(
        &self,
        key: CounterKey,
        names: &Named,
        Ask { least, want, hold }: Ask,
        clock: &(impl Clock + ?Sized),
    ) -> Option<(Supply, InstanceRank)> {
        let loaded = self.loaded.load_full()?;
        let request = names.request(least);
        let matched = Matched::new(&loaded.rules, &request);
        // otherwise a reload has taken the rule away, and its callers are about to be told
        let check = matched.checks.first().filter(|check| check.key == key && waits(check))?;
        let wanted = ReservationRequest { least, want, hold };
        let reserved = self.store.reserve_for_waiters(check, wanted, PATIENCE, clock.now()).await.ok()?;
        let supply = Supply {
            hits: reserved.hits,
            until: reserved.until,
            span: reserved.counted,
            wait: reserved.decision.reset,
            estimate: self.estimate(check, clock.now()),
        };
        Some((supply, self.store.instance_rank(check)))
    }

    async fn return_unused(
        &self,
        key: CounterKey,
        names: &Named,
        unused: Unused,
        clock: &(impl Clock + ?Sized),
    ) {
        let Some(loaded) = self.loaded.load_full() else { return };
        let request = names.request(unused.hits);
        let matched = Matched::new(&loaded.rules, &request);
        let is_same = |check: &&LimitCheck<'_>| check.key == key;
        let Some(check) = matched.checks.first().filter(is_same) else { return };
        self.give_back_unused(check, unused, clock.now()).await;
    }
}
