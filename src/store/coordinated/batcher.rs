//! The way of questions to the store, where each decision is one.
//!
//! Decisions are made on many threads, and leave their questions here, node by node. One task takes what is waiting to the
//! store, in as few calls as there can be: what a call costs is shared by all who ask at the same time.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use super::{
    Inner,
    fallback::{Told, Undecided},
};
use crate::{
    limit::{Period, Timestamp},
    store::remote::{Command, Remote, RemoteError, Reply, StoreNode},
};

/// Calls to one node that may be under way at once: more than one, so that it is not idle while answers travel; few, so that
/// what is asked meanwhile travels together.
const CALLS: usize = 4;

/// Questions of one call.
const TOGETHER: usize = 512;

/// Questions to one node that may wait.
const QUEUE: usize = 4_096;

/// Where questions are left.
#[derive(Debug, Default)]
pub(super) struct Batcher {
    piles: Mutex<Piles>,
    /// Told when something is there that may be asked.
    ready: Notify,
}

#[derive(Debug, Default)]
struct Piles {
    of: BTreeMap<StoreNode, Pile>,
    /// Questions that there ever were.
    questions: u64,
}

/// What one node is to be asked.
#[derive(Debug, Default)]
struct Pile {
    /// By their numbers.
    waiting: Vec<Question>,
    /// Under way.
    calls: usize,
}

/// Something to be done by the store, and who waits for what comes of it.
#[derive(Debug)]
struct Question {
    number: u64,
    command: Command,
    answer: oneshot::Sender<Result<Answer, RemoteError>>,
}

/// The store's reply, and its clock then.
type Answer = (Reply, Timestamp);

// === impl Batcher ===

impl Batcher {
    /// Has `node` do `command`, and waits for what comes of it, but not for longer than `budget`.
    pub(super) async fn ask(
        &self,
        node: StoreNode,
        command: Command,
        budget: Period,
    ) -> Result<Answer, Undecided> {
        let (answer, mut answered) = oneshot::channel();
        let (number, ready) = self.piles.lock().add(node, command, answer);
        // while there are calls enough, the one that comes back first takes it along
        if ready {
            self.ready.notify_one();
        }
        let undecided = |told, late| Err(Undecided { told, late });
        let answer = if let Ok(answer) = timeout(budget.into(), &mut answered).await {
            answer.ok()
        } else if self.piles.lock().call_off(node, number, &mut answered) {
            return undecided(Told::No, true);
        } else {
            // it may have come at the last moment
            answered.try_recv().ok()
        };
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) if error.is_definitely_not_applied() => undecided(Told::No, false),
            Some(Err(_)) => undecided(Told::Perhaps, false),
            None => undecided(Told::Perhaps, true),
        }
    }

    /// What each node may be asked now.
    fn next(&self) -> Vec<(StoreNode, Vec<Question>)> {
        let piles = &mut self.piles.lock().of;
        let mut next = Vec::new();
        for (node, pile) in &mut *piles {
            while let Some(asked) = pile.next() {
                next.push((*node, asked));
            }
        }
        piles.retain(|_, pile| pile.calls > 0);
        next
    }

    /// A call to `node` has come back.
    fn done(&self, node: StoreNode) {
        if let Some(pile) = self.piles.lock().of.get_mut(&node) {
            pile.calls -= 1;
        }
    }
}

impl Piles {
    /// Returns the question's number, and whether it may be asked at once.
    fn add(
        &mut self,
        node: StoreNode,
        command: Command,
        answer: oneshot::Sender<Result<Answer, RemoteError>>,
    ) -> (u64, bool) {
        self.questions += 1;
        let number = self.questions;
        (number, self.of.entry(node).or_default().add(Question { number, command, answer }))
    }

    /// Closes `answer`. Returns whether its question was still waiting, so that it is never asked.
    fn call_off<T>(&mut self, node: StoreNode, number: u64, answer: &mut oneshot::Receiver<T>) -> bool {
        answer.close();
        let waiting = self.of.get(&node).map_or(&[][..], |pile| pile.waiting.as_slice());
        waiting.binary_search_by_key(&number, |question| question.number).is_ok()
    }
}

/// Takes questions to the store, until it is dropped.
pub(super) async fn run<R: Remote>(inner: Arc<Inner<R>>) {
    let mut calls = FuturesUnordered::new();
    loop {
        tokio::select! {
            // in this order, not by chance: a simulation is to repeat
            biased;
            Some(node) = calls.next() => inner.batcher.done(node),
            () = inner.batcher.ready.notified() => {}
        }
        calls.extend(inner.batcher.next().into_iter().map(|(node, asked)| call(&inner, node, asked)));
    }
}

/// LimitChecks all of `asked` at once, and hands the answers out.
async fn call<R: Remote>(inner: &Inner<R>, node: StoreNode, asked: Vec<Question>) -> StoreNode {
    let (commands, answers): (Vec<_>, Vec<_>) = asked.into_iter().map(|q| (q.command, q.answer)).unzip();
    // who has given up is gone
    match inner.call(commands).await {
        Ok(replies) => {
            for (answer, reply) in answers.into_iter().zip(replies.replies) {
                let _ = answer.send(reply.map(|reply| (reply, replies.now)));
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
    node
}

// === impl Pile ===

impl Pile {
    /// Puts `question` on it, if there is room. Returns whether it may be asked at once.
    fn add(&mut self, question: Question) -> bool {
        if self.waiting.len() >= QUEUE {
            self.waiting.retain(Question::is_waited_for);
        }
        if self.waiting.len() >= QUEUE {
            let error = format!("{QUEUE} decisions are waiting for it already");
            let _ = question.answer.send(Err(RemoteError::NotSent(error)));
            return false;
        }
        self.waiting.push(question);
        self.calls < CALLS
    }

    /// What may be asked in one more call now. Who has given up will do something else, which must not come on top of this.
    fn next(&mut self) -> Option<Vec<Question>> {
        if self.calls >= CALLS {
            return None;
        }
        self.waiting.retain(Question::is_waited_for);
        if self.waiting.is_empty() {
            return None;
        }
        self.calls += 1;
        let rest = self.waiting.split_off(TOGETHER.min(self.waiting.len()));
        Some(std::mem::replace(&mut self.waiting, rest))
    }
}

impl Question {
    fn is_waited_for(&self) -> bool {
        !self.answer.is_closed()
    }
}
