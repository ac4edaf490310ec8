//! The commands of tries: composed when a call leaves, and applied when the reply arrives.

use std::sync::Arc;

use super::CounterTable;
use crate::{
    limit::{Coordination, CounterKey, Timestamp},
    store::{
        coordinated::{
            client::{Exchanges, QueuedOutcome},
            counter::{Composed, Decided, LocalCounter, Sent},
            delivery::{Delivery, Undecided},
        },
        remote::{Command, Remote, Reply},
    },
};

impl<R: Remote> Exchanges for CounterTable<R> {
    type Sent = Sent;

    fn compose(&self, key: CounterKey) -> impl IntoIterator<Item = (Command, Sent), IntoIter: Send> {
        let at = self.client.time().now;
        // the tries of a counter that was evicted have failed
        let composed: Composed =
            self.with_existing(key, |counter| counter.compose(key, at)).unwrap_or_default();
        composed
    }

    fn apply(&self, sent: Sent, outcome: QueuedOutcome) {
        // without the counter's lock, so that those who are woken do not wait for it
        for (waiting, outcome) in self.decide(sent, outcome) {
            // a caller that waits no longer has nobody to receive it
            let _ = waiting.send(outcome);
        }
    }
}

impl<R: Remote> CounterTable<R> {
    /// Applies the outcome of a command to the counter that has composed it, unless that was evicted. Returns the decisions about its tries.
    fn decide(&self, sent: Sent, outcome: QueuedOutcome) -> Decided {
        let (key, generation) = (sent.key, sent.place.generation);
        let now = outcome.as_ref().map_or_else(|_| self.client.time().now, |(_, now)| *now);
        let mut applied = Some((sent, outcome));
        let decided = self.with_generation(key, generation, |counter| {
            counter.end_command();
            let decided =
                applied.take().map(|(sent, outcome)| self.decide_with(Some(counter), sent, outcome));
            self.enqueue(key, counter, now);
            decided
        });
        let alone =
            || applied.map(|(sent, outcome)| self.decide_with(None, sent, outcome)).unwrap_or_default();
        decided.flatten().unwrap_or_else(alone)
    }

    /// Applies the outcome of a command to `counter`. Returns the decisions about its tries.
    pub(in super::super) fn decide_with(
        &self,
        counter: Option<&mut LocalCounter>,
        sent: Sent,
        outcome: QueuedOutcome,
    ) -> Decided {
        let (reply, now) = match outcome {
            Ok((reply, now)) if reply.counters.len() == sent.target.tiers.len() => (reply, now),
            // the store has counted, but does not say what
            Ok(_) => return sent.fail(Undecided { delivery: Delivery::Unknown, late: false }),
            Err(error) => {
                return sent.fail(Undecided { delivery: Delivery::of_error(&error), late: false });
            }
        };
        let Some(counter) = counter else { return sent.decide(&reply, None, now) };
        let replaced = sent.is_own.then(|| counter.replace_limit(Arc::clone(&sent.target)));
        let is_applied = self.apply_to(counter, &sent, &reply, now);
        let decided = sent.decide(&reply, Some(&*counter).filter(|_| is_applied), now);
        if let Some(replaced) = replaced {
            counter.restore_limit(replaced, now);
        }
        decided
    }

    /// Applies `reply` to `counter`. The local cache learns of tries that were rejected. Returns whether the reply was applied: one that a
    /// later one has overtaken changes nothing.
    fn apply_to(&self, counter: &mut LocalCounter, sent: &Sent, reply: &Reply, now: Timestamp) -> bool {
        let (rejects, admits) = sent.outcomes(reply, now);
        // the cache is that of mode `strict`, which the counter need not have
        let is_cached = rejects && self.local_cache && counter.mode == Coordination::Strict;
        if is_cached {
            // it needs the counts of the rejection, even if an estimated time puts it before an earlier reply
            counter.accept_time(now);
        }
        let is_applied = counter.apply_reply(reply, sent.place, now);
        if admits {
            counter.note_change();
            counter.note_admission();
        }
        if is_cached {
            counter.deny_while_empty(now);
        }
        is_applied
    }
}
