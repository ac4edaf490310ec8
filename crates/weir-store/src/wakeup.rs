//! Wakes tasks of other threads, all tasks of one thread at once.
//!
//! To wake a task of another thread takes a system call, and where that thread waits for this one's processor it runs at
//! once: it answers one caller, with a write of its own, and sleeps until the next one is woken. So threads with [a
//! runtime of their own](crate::runtime) wake their tasks themselves: whoever has outcomes for several of them leaves
//! their wakers with the thread, and wakes it once.

use std::{
    cell::OnceCell,
    sync::Arc,
    task::{Context, Waker},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

thread_local! {
    static OWN: OnceCell<Arc<Woken>> = const { OnceCell::new() };
}

/// What wakes a task, on its own thread if that has wake-ups.
#[derive(Debug)]
pub struct Wakeup {
    waker: Waker,
    /// The wakers that the polling thread wakes itself; none for a thread without [`ThreadWakeups`].
    thread: Option<Arc<Woken>>,
}

pub type Wakeups = SmallVec<[Wakeup; 1]>;

/// Tasks that a thread is to wake itself.
#[derive(Debug)]
struct Woken {
    /// None once the thread has ended.
    wakers: Mutex<Option<Vec<Waker>>>,
    /// Notified when there are wakers.
    some: Notify,
}

/// Wakes the tasks of its thread.
#[derive(Debug)]
pub(crate) struct ThreadWakeups(Arc<Woken>);

/// Wakes the tasks of `woken`. No lock may be held: on another processor they run at once.
pub fn wake_all(woken: &mut Wakeups) {
    if woken.len() == 1 {
        return woken.drain(..).for_each(Wakeup::wake);
    }
    let mut threads = SmallVec::<[Arc<Woken>; 4]>::new();
    for Wakeup { waker, thread } in woken.drain(..) {
        match thread {
            Some(thread) => threads.extend(Woken::push(thread, waker)),
            None => waker.wake(),
        }
    }
    for thread in threads {
        thread.some.notify_one();
    }
}

// === impl Wakeup ===

impl Wakeup {
    /// Must be called by the thread that polls the task.
    pub fn of(context: &Context<'_>) -> Self {
        Self { waker: context.waker().clone(), thread: OWN.with(|own| own.get().cloned()) }
    }

    pub fn update(&mut self, context: &Context<'_>) {
        if !self.waker.will_wake(context.waker()) {
            *self = Self::of(context);
        }
    }

    pub fn wake(self) {
        self.waker.wake();
    }
}

// === impl Woken ===

impl Woken {
    /// Returns `thread` if it must be notified: this is its first waker.
    fn push(thread: Arc<Self>, waker: Waker) -> Option<Arc<Self>> {
        let mut wakers = thread.wakers.lock();
        let Some(list) = &mut *wakers else {
            drop(wakers);
            waker.wake();
            return None;
        };
        list.push(waker);
        let is_first = list.len() == 1;
        drop(wakers);
        is_first.then_some(thread)
    }
}

// === impl ThreadWakeups ===

impl ThreadWakeups {
    /// Has this thread wake its tasks itself from now on.
    pub(crate) fn attach() -> Self {
        let new = || Arc::new(Woken { wakers: Mutex::new(Some(Vec::new())), some: Notify::new() });
        Self(OWN.with(|own| Arc::clone(own.get_or_init(new))))
    }

    pub(crate) async fn run(self) {
        let mut taken = Vec::new();
        loop {
            self.0.some.notified().await;
            if let Some(list) = &mut *self.0.wakers.lock() {
                std::mem::swap(list, &mut taken);
            }
            taken.drain(..).for_each(Waker::wake);
        }
    }
}

impl Drop for ThreadWakeups {
    fn drop(&mut self) {
        let left = self.0.wakers.lock().take();
        left.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        mem,
        sync::{Barrier, mpsc},
        task::Wake,
        thread::{self, ThreadId},
    };

    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime;

    /// Sends the thread that wakes it.
    struct Witness(mpsc::Sender<ThreadId>);

    impl Wake for Witness {
        fn wake(self: Arc<Self>) {
            self.0.send(thread::current().id()).expect("the test waits");
        }
    }

    /// A thread with its own runtime, until `stop` is dropped.
    struct Thread {
        id: ThreadId,
        wakeups: Wakeups,
        stop: oneshot::Sender<()>,
    }

    fn start(tasks: usize, witness: &mpsc::Sender<ThreadId>) -> Thread {
        let (started, start) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let waker = Waker::from(Arc::new(Witness(witness.clone())));
        let run = async move || {
            let context = Context::from_waker(&waker);
            let wakeups: Wakeups = (0..tasks).map(|_| Wakeup::of(&context)).collect();
            started.send((thread::current().id(), wakeups)).expect("the test waits");
            let _ = stopped.await;
        };
        runtime::spawn("wakeups".into(), run).expect("a thread");
        let (id, wakeups) = start.recv().expect("it starts");
        Thread { id, wakeups, stop }
    }

    #[test]
    fn threads_wake_their_own_tasks() {
        let (witness, heard) = mpsc::channel();
        let here = Wakeup::of(&Context::from_waker(&Waker::from(Arc::new(Witness(witness.clone())))));
        let mut threads = [3, 1, 200].map(|tasks| start(tasks, &witness));
        let mut wakeups: Wakeups =
            threads.iter_mut().flat_map(|thread| mem::take(&mut thread.wakeups)).collect();
        wakeups.push(here);
        wake_all(&mut wakeups);
        let mut by: Vec<_> = (0..205).map(|_| heard.recv().expect("each is woken")).collect();
        by.sort_unstable_by_key(|id| format!("{id:?}"));
        let count = |id| by.iter().filter(|by| **by == id).count();
        let counts = threads.each_ref().map(|thread| count(thread.id));
        assert_eq!((counts, count(thread::current().id())), ([3, 1, 200], 1));
    }

    #[test]
    fn no_task_is_lost_when_its_thread_ends() {
        let (witness, heard) = mpsc::channel();
        for _ in 0..200 {
            let Thread { mut wakeups, stop, .. } = start(8, &witness);
            let begin = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    wake_all(&mut wakeups);
                });
                begin.wait();
                drop(stop);
            });
            for _ in 0..8 {
                heard.recv().expect("it is woken");
            }
        }
    }

    #[test]
    fn a_task_is_woken_by_the_thread_that_has_polled_it_last() {
        let (witness, heard) = mpsc::channel();
        let mut thread = start(2, &witness);
        let other = Waker::from(Arc::new(Witness(witness)));
        for wakeup in &mut thread.wakeups {
            wakeup.update(&Context::from_waker(&other));
        }
        wake_all(&mut thread.wakeups);
        let here = thread::current().id();
        assert_eq!([heard.recv(), heard.recv()], [Ok(here), Ok(here)]);
    }
}
