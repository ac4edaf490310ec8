//! `lease`: this instance takes some of the limit in advance, and spends it without asking.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::time::sleep;

use super::{
    Inner,
    cell::{Answer, Cell, negative},
    clock::StoreTime,
};
use crate::{
    limit::{Ask, CounterKey, Direction, Hits, Period, Taken, Timestamp},
    store::remote::{Command, Op, Remote, RemoteError, Replies},
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

    /// Counts what is lost with the command of a call that was to do `op`, if it was not carried out or may not have been.
    fn count_lost(&self, op: Op, outcome: &Result<Replies, RemoteError>, i: usize) {
        let error = match outcome {
            Ok(replies) => replies.replies.get(i).and_then(|reply| reply.as_ref().err()),
            Err(error) => Some(error),
        };
        match (op, error) {
            (Op::Return { hits, .. }, Some(_)) => self.figures.stranded.add(hits),
            (Op::Grant { want, .. }, Some(error)) if !error.is_undone() => self.figures.unknown.add(want),
            _ => {}
        }
    }

    /// Decides by what was granted, while the store cannot be asked for more; none if that does not do.
    pub(super) fn decide_by_held(&self, ask: &Ask<'_>, time: StoreTime) -> Option<Taken> {
        if ask.direction == Direction::GiveBack || ask.hits == Hits(0) {
            return None;
        }
        self.with_cell(ask, time.now, |cell| {
            self.count_given_up(cell.end_leases(time));
            self.spend(cell, ask, time.now)
        })
    }

    /// Takes the hits of `ask` from what was granted, if that does.
    fn spend(&self, cell: &mut Cell, ask: &Ask<'_>, now: Timestamp) -> Option<Taken> {
        cell.demand.asked(ask.hits.0, now);
        let taken = cell.spend(ask.hits, now)?;
        self.figures.leased.add(1);
        Some(taken)
    }

    /// Decides by what was granted, or by what is known to be denied; none if the store has to be asked first.
    pub(super) fn decide_by_lease(self: &Arc<Self>, ask: &Ask<'_>, time: StoreTime) -> Option<Taken> {
        let now = time.now;
        let (taken, ahead) = self.with_cell(ask, now, |cell| {
            self.count_given_up(cell.end_leases(time));
            if ask.direction == Direction::GiveBack {
                cell.owe(negative(ask.hits.0), now);
                self.figures.local.add(1);
                return (Some(cell.look(now)), false);
            }
            if ask.hits == Hits(0) {
                self.figures.local.add(1);
                return (Some(cell.look(now)), false);
            }
            if let Some(taken) = self.spend(cell, ask, now) {
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
            Arc::clone(cell.fetch.done.get_or_insert_default()).notified_owned()
        });
        fetch(inner, ask.key);
        done.await;

        let time = inner.time();
        let now = time.now;
        let outcome = inner.with_cell(ask, now, |cell| {
            inner.count_given_up(cell.end_leases(time));
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
    let (commands, told) = {
        let mut shard = inner.cells.lock(key);
        let Some(cell) = shard.get_mut(&key) else {
            return;
        };
        if cell.fetch.running {
            return;
        }
        cell.fetch.running = true;
        cell.fetch.round += 1;
        // first of all what the store does not know of, so that it does not grant that a second time
        let (mut commands, now) = (Vec::new(), inner.time().now);
        inner.count_given_up(cell.send(now, &mut commands));
        let told = commands.len();
        commands.extend(cell.fetch_commands(inner.instances(), inner.horizon(), inner.lead(), now));
        (commands, told)
    };
    inner.background.spawn(call(Arc::clone(inner), key, commands, told));
}

/// Carries out what [`fetch`] asks for; the first `told` of the commands tell what was counted here.
async fn call<R: Remote>(inner: Arc<Inner<R>>, key: CounterKey, commands: Vec<Command>, told: usize) {
    let ops: SmallVec<[Op; 2]> = commands[told..].iter().map(|command| command.op).collect();
    let target = commands.first().map(|command| Arc::clone(&command.target));
    let outcome = inner.call(commands).await;
    for (i, op) in ops.iter().enumerate() {
        inner.count_lost(*op, &outcome, told + i);
    }
    let mut shard = inner.cells.lock(key);
    let Some(cell) = shard.get_mut(&key) else {
        return;
    };
    if told > 0 {
        inner.told(cell, &outcome, 0..told);
        // what was not carried out is owed again
        inner.list(key, cell, inner.time().now);
    }
    cell.fetch.running = false;
    cell.fetch.answer = Answer::Nothing;
    if let Ok(replies) = outcome
        && let Some(Ok(reply)) = replies.replies.last()
    {
        match ops.last() {
            Some(Op::Grant { .. }) => cell.granted(reply, inner.round_trip(), replies.now),
            _ => cell.gave_back(reply, replies.now),
        }
        if target.is_none_or(|target| !Arc::ptr_eq(&target, &cell.target)) {
            // it was granted under a limit that has changed since
            cell.give_leases_back();
            inner.list(key, cell, replies.now);
        } else if !cell.fetch.watched
            && let Some(time) = cell.ends_in(inner.lead(), inner.time().now)
        {
            cell.fetch.watched = true;
            inner.background.spawn(watch(Arc::downgrade(&inner), key, time));
        }
    }
    if let Some(done) = &cell.fetch.done {
        done.notify_waiters();
    }
}

/// When the time of a lease is nearly over, the first one in `time`, gives back what is left of it, or has it granted anew.
async fn watch<R: Remote>(inner: Weak<Inner<R>>, key: CounterKey, mut time: Period) {
    loop {
        sleep(time.into()).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let left = {
            let mut shard = inner.cells.lock(key);
            let Some(cell) = shard.get_mut(&key) else {
                return;
            };
            let left = cell.ends_in(inner.lead(), inner.time().now);
            cell.fetch.watched = left.is_some_and(|left| left > Period::default());
            left
        };
        match left {
            None => return,
            Some(left) if left > Period::default() => time = left,
            Some(_) => return fetch(&inner, key),
        }
    }
}
