//! `lease`: this instance takes some of the limit in advance, and spends it without asking.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::time::sleep;

use super::{
    Inner,
    clock::StoreTime,
    counter::{Answer, LocalCounter, negative},
};
use crate::{
    limit::{CounterKey, Decision, Direction, Hits, LimitCheck, Period, Timestamp},
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
            (Op::Return { hits, .. }, Some(_)) => self.metrics.stranded.add(hits),
            (Op::Grant { want, .. }, Some(error)) if !error.is_definitely_not_applied() => {
                self.metrics.unknown.add(want)
            }
            _ => {}
        }
    }

    /// Decides by what was granted, while the store cannot be asked for more; none if that does not do.
    pub(super) fn decide_by_held(&self, check: &LimitCheck<'_>, time: StoreTime) -> Option<Decision> {
        if check.direction == Direction::GiveBack || check.hits == Hits(0) {
            return None;
        }
        self.with_counter(check, time.now, |counter| {
            self.count_given_up(counter.end_leases(time));
            self.spend(counter, check, time.now)
        })
    }

    /// Takes the hits of `ask` from what was granted, if that does.
    fn spend(&self, counter: &mut LocalCounter, check: &LimitCheck<'_>, now: Timestamp) -> Option<Decision> {
        counter.demand.asked(check.hits.0, now);
        let decision = counter.spend(check.hits, now)?;
        self.metrics.leased.add(1);
        Some(decision)
    }

    /// Decides by what was granted, or by what is known to be denied; none if the store has to be asked first.
    pub(super) fn decide_by_lease(
        self: &Arc<Self>,
        check: &LimitCheck<'_>,
        time: StoreTime,
    ) -> Option<Decision> {
        let now = time.now;
        let (decision, ahead) = self.with_counter(check, now, |counter| {
            self.count_given_up(counter.end_leases(time));
            if check.direction == Direction::GiveBack {
                counter.owe(negative(check.hits.0), now);
                self.metrics.local.add(1);
                return (Some(counter.look(now)), false);
            }
            if check.hits == Hits(0) {
                self.metrics.local.add(1);
                return (Some(counter.look(now)), false);
            }
            if let Some(decision) = self.spend(counter, check, now) {
                // the next lease is to be here before this one is used up
                let soon = Period::from_nanos(2 * self.round_trip().as_nanos());
                let ahead =
                    !counter.is_denied(now) && counter.leased() < counter.demand.in_the_next(soon, now);
                return (Some(decision), ahead);
            }
            if counter.is_denied(now)
                && let Some(decision) = counter.refuses(check.hits, now)
            {
                self.metrics.denied.add(1);
                return (Some(decision), counter.is_probe_due(now));
            }
            (None, false)
        });
        if ahead {
            fetch(self, check.key);
        }
        decision
    }
}

/// Waits for a lease that lets `ask` pass, or for the store's word that it cannot; none if it does not answer.
pub(super) async fn decide<R: Remote>(inner: &Arc<Inner<R>>, check: &LimitCheck<'_>) -> Option<Decision> {
    // the call that asks for these hits, once they are among those that are waited for
    let mut round = None;
    loop {
        let now = inner.time().now;
        // registered under the lock, so that no answer comes in between
        let done = inner.with_counter(check, now, |counter| {
            let missing = check.hits.minus(Hits(counter.leased()));
            round.get_or_insert_with(|| counter.fetch.wait_for(check.hits, missing));
            Arc::clone(counter.fetch.done.get_or_insert_default()).notified_owned()
        });
        fetch(inner, check.key);
        done.await;

        let time = inner.time();
        let now = time.now;
        let outcome = inner.with_counter(check, now, |counter| {
            inner.count_given_up(counter.end_leases(time));
            if counter.fetch.answer == Answer::Nothing {
                return Some(None);
            }
            let decided = counter.spend(check.hits, now).or_else(|| counter.refuses(check.hits, now));
            if decided.is_none() && round.is_some_and(|round| counter.fetch.has_answered(round)) {
                // to ask again for what the store has just had no more of would make an endless queue of those who wait
                if counter.fetch.answer == Answer::Short {
                    return Some(Some(counter.refuse(check.hits, now)));
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

/// LimitChecks the store for a lease in the background, unless that is under way: whoever waits for it may go away, what it
/// brings must not.
fn fetch<R: Remote>(inner: &Arc<Inner<R>>, key: CounterKey) {
    let (commands, told) = {
        let mut shard = inner.counters.lock(key);
        let Some(counter) = shard.get_mut(&key) else {
            return;
        };
        if counter.fetch.running {
            return;
        }
        counter.fetch.running = true;
        counter.fetch.round += 1;
        // first of all what the store does not know of, so that it does not grant that a second time
        let (mut commands, now) = (Vec::new(), inner.time().now);
        inner.count_given_up(counter.send(now, &mut commands));
        let told = commands.len();
        commands.extend(counter.fetch_commands(inner.instances(), inner.horizon(), inner.lead(), now));
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
    let mut shard = inner.counters.lock(key);
    let Some(counter) = shard.get_mut(&key) else {
        return;
    };
    if told > 0 {
        inner.told(counter, &outcome, 0..told);
        // what was not carried out is owed again
        inner.list(key, counter, inner.time().now);
    }
    counter.fetch.running = false;
    counter.fetch.answer = Answer::Nothing;
    if let Ok(replies) = outcome
        && let Some(Ok(reply)) = replies.replies.last()
    {
        match ops.last() {
            Some(Op::Grant { .. }) => counter.granted(reply, inner.round_trip(), replies.now),
            _ => counter.gave_back(reply, replies.now),
        }
        if target.is_none_or(|target| !Arc::ptr_eq(&target, &counter.target)) {
            // it was granted under a limit that has changed since
            counter.give_leases_back();
            inner.list(key, counter, replies.now);
        } else if !counter.fetch.watched
            && let Some(time) = counter.ends_in(inner.lead(), inner.time().now)
        {
            counter.fetch.watched = true;
            inner.background.spawn(watch(Arc::downgrade(&inner), key, time));
        }
    }
    if let Some(done) = &counter.fetch.done {
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
            let mut shard = inner.counters.lock(key);
            let Some(counter) = shard.get_mut(&key) else {
                return;
            };
            let left = counter.ends_in(inner.lead(), inner.time().now);
            counter.fetch.watched = left.is_some_and(|left| left > Period::default());
            left
        };
        match left {
            None => return,
            Some(left) if left > Period::default() => time = left,
            Some(_) => return fetch(&inner, key),
        }
    }
}
