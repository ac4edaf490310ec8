//! `lease`: this instance takes some of the limit in advance, and spends it without asking.

use std::sync::{Arc, Weak};

use tokio::time::sleep;

use super::{
    Inner,
    cell::{Answer, negative},
    clock::StoreTime,
};
use crate::{
    limit::{Ask, CounterKey, Direction, Hits, Period, Taken},
    store::remote::{Command, Op, Remote},
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

    /// So long before a lease ends it has to be given back to arrive in time.
    fn lead(&self) -> Period {
        Period::from_nanos(self.round_trip().as_nanos().saturating_mul(2))
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
                let ahead = !cell.is_denied(now) && cell.leased() < cell.demand.in_the_next(soon, now);
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
            if cell.fetch.answer == Answer::Nothing {
                return Some(None);
            }
            let decided = cell.spend(ask.hits, now).or_else(|| cell.refuses(ask.hits, now));
            if decided.is_none() && round.is_some_and(|round| cell.fetch.has_answered(round)) {
                // to ask again for what the store has just had no more of would make an endless queue of those who wait
                if cell.fetch.answer == Answer::Short {
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
    let commands = {
        let mut shard = inner.cells.lock(key);
        let Some(cell) = shard.get_mut(&key) else {
            return;
        };
        if cell.fetch.running {
            return;
        }
        cell.fetch.running = true;
        cell.fetch.round += 1;
        cell.fetch_commands(inner.instances(), inner.horizon(), inner.lead(), inner.time().now)
    };
    tokio::spawn(call(Arc::clone(inner), key, commands));
}

/// Carries out what [`fetch`] asks for.
async fn call<R: Remote>(inner: Arc<Inner<R>>, key: CounterKey, commands: Vec<Command>) {
    let target = commands.first().map(|command| Arc::clone(&command.target));
    let asked = commands.last().is_some_and(|command| matches!(command.op, Op::Grant { .. }));
    let returned: Vec<u64> = commands.iter().map_while(|command| command.op.returned()).collect();
    let replies = inner.call(commands).await;
    let arrived =
        |i: usize| matches!(&replies, Ok(replies) if replies.replies.get(i).is_some_and(Result::is_ok));
    for (_, hits) in returned.into_iter().enumerate().filter(|(i, _)| !arrived(*i)) {
        inner.figures.stranded.add(hits);
    }
    let mut shard = inner.cells.lock(key);
    let Some(cell) = shard.get_mut(&key) else {
        return;
    };
    cell.fetch.running = false;
    let last = replies.ok().and_then(|replies| {
        let reply = replies.replies.into_iter().next_back()?.ok()?;
        Some((reply, replies.now))
    });
    cell.fetch.answer = Answer::Nothing;
    if let Some((reply, now)) = last {
        if asked {
            cell.granted(&reply, inner.round_trip(), now);
        } else {
            cell.fetch.answer = Answer::Enough;
            cell.heard(&reply, now);
        }
        if target.is_none_or(|target| !Arc::ptr_eq(&target, &cell.target)) {
            // it was granted under a limit that has changed since
            cell.give_leases_back();
            inner.list(key, cell, now);
        } else if let Some(time) = cell.ends_in(inner.lead(), inner.time().now) {
            tokio::spawn(renew(Arc::downgrade(&inner), key, time));
        }
    }
    cell.fetch.done.notify_waiters();
}

/// After `time`, gives back what nobody has used and soon nobody may use any more, or has it granted anew.
async fn renew<R: Remote>(inner: Weak<Inner<R>>, key: CounterKey, time: Period) {
    sleep(time.into()).await;
    let Some(inner) = inner.upgrade() else {
        return;
    };
    let ends = {
        let shard = inner.cells.lock(key);
        let now = inner.time().now;
        shard.get(&key).is_some_and(|cell| cell.ends_in(inner.lead(), now) == Some(Period::default()))
    };
    if ends {
        fetch(&inner, key);
    }
}
