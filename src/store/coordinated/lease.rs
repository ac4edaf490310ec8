//! `lease`: this instance takes some of the limit in advance, and spends it without asking.

use std::sync::Arc;

use super::{Inner, cell::negative, clock::StoreTime};
use crate::{
    limit::{Ask, CounterKey, Direction, Hits, Period, Taken},
    store::remote::Remote,
};

/// What a lease is meant to last for, at least.
const HORIZON: Period = Period::from_millis(50);

/// Round trips that a lease is meant to last for, at least.
const ROUND_TRIPS: u64 = 8;

impl<R: Remote> Inner<R> {
    /// The time that a lease is to last for, by the demand that was seen.
    fn horizon(&self) -> Period {
        HORIZON.max(Period::from_nanos(self.round_trip().as_nanos().saturating_mul(ROUND_TRIPS)))
    }

    /// Decides by what was granted, or by what is known to be denied; none if the store has to be asked first.
    pub(super) fn decide_by_lease(self: &Arc<Self>, ask: &Ask<'_>, time: StoreTime) -> Option<Taken> {
        let now = time.now;
        let (taken, ahead) = self.with_cell(ask, now, |cell| {
            self.figures.stranded.add(cell.end_leases(time).stranded);
            if ask.direction == Direction::GiveBack {
                cell.owe(negative(ask.hits.0), now);
                self.figures.local.add(1);
                return (Some(cell.look(now)), false);
            }
            if ask.hits == Hits(0) {
                self.figures.local.add(1);
                return (Some(cell.look(now)), false);
            }
            cell.demand.asked(ask.hits.0, now);
            if let Some(taken) = cell.spend(ask.hits, now) {
                self.figures.leased.add(1);
                // the next lease is to be here before this one is used up
                let soon = Period::from_nanos(2 * self.round_trip().as_nanos());
                let ahead = !cell.is_denied(now) && cell.leased() < cell.demand.in_the_next(soon);
                return (Some(taken), ahead);
            }
            if cell.is_denied(now)
                && let Some(taken) = cell.refuses(ask.hits, now)
            {
                self.figures.denied.add(1);
                return (Some(taken), cell.is_probe_due(now));
            }
            (None, false)
        });
        if ahead {
            fetch(self, ask.key);
        }
        taken
    }
}

/// Waits for a lease that lets `ask` pass, or for the store's word that it cannot; none if it does not answer.
pub(super) async fn decide<R: Remote>(inner: &Arc<Inner<R>>, ask: &Ask<'_>) -> Option<Taken> {
    // the call that asks for these hits, once they are among those that are waited for
    let mut round = None;
    loop {
        let now = inner.time().now;
        // registered under the lock, so that no answer comes in between
        let done = inner.with_cell(ask, now, |cell| {
            let missing = ask.hits.minus(Hits(cell.leased()));
            round.get_or_insert_with(|| cell.fetch.wait_for(ask.hits, missing));
            Arc::clone(&cell.fetch.done).notified_owned()
        });
        fetch(inner, ask.key);
        done.await;

        let time = inner.time();
        let now = time.now;
        let outcome = inner.with_cell(ask, now, |cell| {
            inner.figures.stranded.add(cell.end_leases(time).stranded);
            if cell.fetch.failed {
                return Some(None);
            }
            let decided = cell.spend(ask.hits, now).or_else(|| cell.refuses(ask.hits, now));
            if decided.is_none() && round.is_some_and(|round| cell.fetch.has_answered(round)) {
                // to ask again for what the store has just had no more of would make an endless queue of those who wait
                if cell.fetch.short {
                    return Some(Some(cell.refuse(ask.hits, now)));
                }
                round = None;
            }
            decided.map(Some)
        });
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
}

/// Asks the store for a lease in the background, unless that is under way: whoever waits for it may go away, what it
/// brings must not.
fn fetch<R: Remote>(inner: &Arc<Inner<R>>, key: CounterKey) {
    let command = {
        let mut shard = inner.cells.lock(key);
        let Some(cell) = shard.get_mut(&key) else {
            return;
        };
        if cell.fetch.running {
            return;
        }
        cell.fetch.running = true;
        cell.fetch.round += 1;
        cell.fetch_command(inner.instances(), inner.horizon(), inner.time().now)
    };
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let target = Arc::clone(&command.target);
        let replies = inner.call(vec![command]).await;
        let mut shard = inner.cells.lock(key);
        let Some(cell) = shard.get_mut(&key) else {
            return;
        };
        cell.fetch.running = false;
        let granted = replies.ok().and_then(|replies| {
            let reply = replies.replies.into_iter().next()?.ok()?;
            Some((reply, replies.now))
        });
        cell.fetch.failed = granted.is_none();
        if let Some((reply, now)) = granted {
            cell.granted(&reply, now);
            if !Arc::ptr_eq(&target, &cell.target) {
                // it was granted under a limit that has changed since
                cell.give_leases_back();
                inner.list(key, cell, now);
            }
        }
        cell.fetch.done.notify_waiters();
    });
}
