//! The calls that wait to be sent on one connection, and their order: calls of decisions first.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::oneshot;

use weir_store::remote::{CallPriority, RemoteError};

/// Calls of one priority.
pub(super) const MAX_WAITING: usize = 4_096;

/// Commands in a pipeline of decisions, each `EXPIRE` counted. A call that has more is sent by itself.
const PIPELINE: usize = 128;

pub(super) struct QueuedCall<C, R> {
    pub(super) commands: Vec<C>,
    pub(super) priority: CallPriority,
    reply: oneshot::Sender<Result<R, RemoteError>>,
    is_sent: Arc<AtomicBool>,
    /// Last, so that it is dropped after the call was sent or failed.
    waiting: Option<WaitingCall>,
}

pub(super) struct PendingReply<R> {
    reply: oneshot::Receiver<Result<R, RemoteError>>,
    is_sent: Arc<AtomicBool>,
}

#[derive(Default)]
pub(super) struct WaitingCalls {
    decisions: Arc<AtomicUsize>,
    background: Arc<AtomicUsize>,
}

struct WaitingCall(Arc<AtomicUsize>);

pub(super) struct CallQueue<C, R> {
    decisions: VecDeque<QueuedCall<C, R>>,
    background: VecDeque<QueuedCall<C, R>>,
}

// === impl WaitingCalls ===

impl WaitingCalls {
    /// None if too many calls of this priority wait.
    pub(super) fn call<C, R>(
        &self,
        commands: Vec<C>,
        priority: CallPriority,
    ) -> Option<(QueuedCall<C, R>, PendingReply<R>)> {
        let count = match priority {
            CallPriority::Decision => &self.decisions,
            CallPriority::Background => &self.background,
        };
        let waiting = WaitingCall(Arc::clone(count));
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            return None;
        }
        let (reply, receiver) = oneshot::channel();
        let is_sent = Arc::<AtomicBool>::default();
        let pending = PendingReply { reply: receiver, is_sent: Arc::clone(&is_sent) };
        Some((QueuedCall { commands, priority, reply, is_sent, waiting: Some(waiting) }, pending))
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl QueuedCall ===

impl<C, R> QueuedCall<C, R> {
    /// Returns false if the caller has given up: it decides without the store, and its hits must not be counted twice.
    fn begin(&mut self) -> bool {
        // marked before the check, as the caller closes its end before it looks at the mark
        self.is_sent.store(true, Ordering::SeqCst);
        self.waiting = None;
        let is_awaited = !self.reply.is_closed();
        if !is_awaited {
            self.is_sent.store(false, Ordering::SeqCst);
        }
        is_awaited
    }

    pub(super) fn complete(self, reply: R) {
        // a caller that has given up has dropped its receiver
        let _ = self.reply.send(Ok(reply));
    }

    pub(super) fn fail(self, error: RemoteError) {
        let _ = self.reply.send(Err(error));
    }
}

// === impl PendingReply ===

impl<R> PendingReply<R> {
    /// Cancel-safe.
    pub(super) async fn receive(&mut self) -> Result<R, RemoteError> {
        let lost = || RemoteError::Unreachable("the connection broke".into());
        (&mut self.reply).await.unwrap_or_else(|_| Err(lost()))
    }

    /// Returns the reply if it has just arrived. If the call was never sent, the error says so, and it never will be.
    pub(super) fn give_up(mut self, timed_out: RemoteError) -> Result<R, RemoteError> {
        self.reply.close();
        if let Ok(reply) = self.reply.try_recv() {
            return reply;
        }
        if self.is_sent.load(Ordering::SeqCst) {
            return Err(timed_out);
        }
        Err(RemoteError::NotSent("other commands for the server took too long".into()))
    }
}

// === impl CallQueue ===

impl<C, R> CallQueue<C, R> {
    pub(super) fn push(&mut self, call: QueuedCall<C, R>) {
        match call.priority {
            CallPriority::Decision => self.decisions.push_back(call),
            CallPriority::Background => self.background.push_back(call),
        }
    }

    pub(super) fn pop(&mut self) -> Option<QueuedCall<C, R>> {
        self.decisions.pop_front().or_else(|| self.background.pop_front())
    }

    /// All of one priority: decisions if few enough of their pipelines are in flight (`may_decide`), or else one
    /// background call. Calls whose callers have given up are left out.
    pub(super) fn next_pipeline(&mut self, may_decide: bool) -> Option<Vec<QueuedCall<C, R>>> {
        let (mut calls, mut commands) = (Vec::new(), 0);
        while may_decide && let Some(call) = self.decisions.front() {
            commands += call.commands.len();
            if commands > PIPELINE && !calls.is_empty() {
                break;
            }
            calls.extend(self.decisions.pop_front().and_then(begun));
        }
        while calls.is_empty()
            && let Some(call) = self.background.pop_front()
        {
            calls.extend(begun(call));
        }
        (!calls.is_empty()).then_some(calls)
    }
}

impl<C, R> Default for CallQueue<C, R> {
    fn default() -> Self {
        Self { decisions: VecDeque::new(), background: VecDeque::new() }
    }
}

fn begun<C, R>(mut call: QueuedCall<C, R>) -> Option<QueuedCall<C, R>> {
    call.begin().then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Call = QueuedCall<&'static str, ()>;

    fn call(
        waiting: &WaitingCalls,
        name: &'static str,
        commands: usize,
        priority: CallPriority,
    ) -> (Call, PendingReply<()>) {
        waiting.call(vec![name; commands], priority).expect("there is room")
    }

    fn next(queue: &mut CallQueue<&'static str, ()>, may_decide: bool) -> Vec<&'static str> {
        let pipeline = queue.next_pipeline(may_decide).unwrap_or_default();
        pipeline.into_iter().map(|call| call.commands[0]).collect()
    }

    #[test]
    fn decisions_go_first_and_share_no_pipeline_with_background_calls() {
        let (waiting, mut queue) = (WaitingCalls::default(), CallQueue::default());
        let mut pending = Vec::new();
        for (name, priority) in [
            ("B1", CallPriority::Background),
            ("D1", CallPriority::Decision),
            ("B2", CallPriority::Background),
            ("D2", CallPriority::Decision),
        ] {
            let (call, reply) = call(&waiting, name, 2, priority);
            queue.push(call);
            pending.push(reply);
        }
        assert_eq!(next(&mut queue, true), ["D1", "D2"]);
        let (late, _reply) = call(&waiting, "D3", 2, CallPriority::Decision);
        queue.push(late);
        assert_eq!(next(&mut queue, false), ["B1"], "no further decisions may be in flight");
        assert_eq!(next(&mut queue, true), ["D3"]);
        assert_eq!(next(&mut queue, true), ["B2"]);
        assert!(next(&mut queue, true).is_empty());
    }

    #[test]
    fn a_pipeline_of_decisions_is_bounded_by_its_commands() {
        let (waiting, mut queue) = (WaitingCalls::default(), CallQueue::default());
        let mut pending = Vec::new();
        for (name, commands) in [("A", 100), ("B", 28), ("C", 1), ("D", 500)] {
            let (call, reply) = call(&waiting, name, commands, CallPriority::Decision);
            queue.push(call);
            pending.push(reply);
        }
        assert_eq!(next(&mut queue, true), ["A", "B"]);
        assert_eq!(next(&mut queue, true), ["C"]);
        assert_eq!(next(&mut queue, true), ["D"], "a longer call is sent by itself");
    }

    #[test]
    fn a_call_that_was_given_up_before_it_was_sent_is_never_sent() {
        let (waiting, mut queue) = (WaitingCalls::default(), CallQueue::default());
        let timed_out = || RemoteError::TimedOut(weir_limit::Period::from_secs(1));
        let (unsent, reply) = call(&waiting, "A", 1, CallPriority::Decision);
        queue.push(unsent);
        let given_up = reply.give_up(timed_out());
        assert!(matches!(given_up, Err(RemoteError::NotSent(_))), "it was certainly not carried out");
        assert!(next(&mut queue, true).is_empty());
        let (sent, reply) = call(&waiting, "B", 1, CallPriority::Decision);
        queue.push(sent);
        let _in_flight = queue.next_pipeline(true).expect("it is waiting");
        assert!(matches!(reply.give_up(timed_out()), Err(RemoteError::TimedOut(_))), "it may be carried out");
    }

    #[test]
    fn each_priority_has_a_bound_of_its_own() {
        let waiting = WaitingCalls::default();
        let make = |priority| waiting.call::<_, ()>(vec!["PING"], priority);
        let mut calls: Vec<_> =
            (0..MAX_WAITING).map(|_| make(CallPriority::Background).expect("room")).collect();
        assert!(make(CallPriority::Background).is_none());
        assert!(make(CallPriority::Decision).is_some());
        calls.pop();
        assert!(make(CallPriority::Background).is_some(), "a call that has ended leaves room");
    }
}
