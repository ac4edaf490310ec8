//! Asking the store, and learning from how it answers: its clock, how long it takes, whether it is there.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::timeout;

use super::Inner;
use crate::{
    limit::{LimitCheck, Period, Timestamp},
    store::remote::{Command, Remote, RemoteError, Replies, StoreNode, Target},
};

/// What was asked may take so long. Then, if nothing at all was heard from the node that was asked, it is taken not to
/// answer. Longer than a lost packet or a fork holds up a Redis that is well.
const SILENCE: Period = Period::from_millis(500);

impl<R: Remote> Inner<R> {
    /// Calls the store about targets of one node.
    pub(super) async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(commands.len() as u64);
        let about = commands.first().map(|command| (Arc::clone(&command.target), command.at));
        let (target, at) = about.map_or((None, Timestamp::default()), |(target, at)| (Some(target), at));
        let node = self.node(target.as_deref(), at);
        let sent = self.clock.now();
        let replies = self.listen(node, target.as_ref(), self.remote.call(commands)).await;
        let received = self.clock.now();
        if let Ok(replies) = &replies {
            self.breaker.answered(node);
            self.store_clock.measured(sent, received, replies.now);
            let (last, all) = (received.since(sent).as_nanos(), self.round_trip.load(Ordering::Relaxed));
            self.round_trip.store(all - all / 8 + last / 8, Ordering::Relaxed);
        } else {
            self.breaker.failed(node, target.as_ref());
            self.metrics.failures.add(1);
        }
        replies
    }

    /// Waits for what `node` was asked to the end: it is never asked again, so a late answer must not be missed. But if
    /// nothing was heard from there meanwhile, nobody else need wait for it.
    pub(super) async fn listen<T>(
        &self,
        node: StoreNode,
        target: Option<&Arc<Target>>,
        asked: impl Future<Output = T>,
    ) -> T {
        let mut asked = pin!(asked);
        loop {
            let heard = self.breaker.answers(node);
            let patience = SILENCE.max(Period::from_nanos(self.round_trip().as_nanos().saturating_mul(2)));
            if let Ok(answer) = timeout(patience.into(), &mut asked).await {
                return answer;
            }
            if self.breaker.answers(node) == heard {
                self.breaker.silent(node, target);
            }
        }
    }

    /// Where `target` is counted; where instances are noted, if there is none.
    pub(super) fn node(&self, target: Option<&Target>, at: Timestamp) -> StoreNode {
        target.map_or_else(|| self.remote.members_node(), |target| self.remote.node(target, at))
    }

    /// Whether the node that counts `target` is taken not to answer.
    pub(super) fn is_cut_off(&self, target: &Target, at: Timestamp) -> bool {
        self.breaker.is_open() && self.breaker.is_open_for(self.remote.node(target, at))
    }

    /// What the store is to count for `ask`.
    pub(super) fn target(&self, check: &LimitCheck<'_>, now: Timestamp) -> Arc<Target> {
        self.with_counter(check, now, |counter| Arc::clone(&counter.target))
    }
}
