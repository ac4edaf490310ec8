//! The threads that read counters, so that no thread that serves waits for the disk.

use std::{collections::VecDeque, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{error::DiskError, notes::Changed, shared::Shared};

/// The threads: while one waits for the disk, another one finds what is cached.
const THREADS: usize = 2;

/// The most decisions that wait. Above this the disk is much too slow, and `on_store_failure` decides at once.
const MAX_WAITING: usize = 16_384;

/// The counters that a decision waits for.
struct Job {
    counters: Vec<Changed>,
    done: oneshot::Sender<bool>,
}

/// Reads that wait for a thread.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// The reading threads.
pub(super) struct Readers {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Readers {
    /// Starts the threads.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, DiskError> {
        let queue = Arc::<(Mutex<Queue>, Condvar)>::default();
        let threads = (0..THREADS).map(|_| {
            let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
            thread::Builder::new().name("weir-disk-read".into()).spawn(move || {
                while let Some(job) = next(&queue) {
                    // the decision may have given up already, which leaves the counters for the next one
                    let loaded = job.counters.iter().map(|counter| shared.load(counter)).fold(true, |all, loaded| {
                        if let Err(error) = &loaded {
                            tracing::debug!(%error, "cannot read a counter");
                        }
                        all && loaded.is_ok()
                    });
                    let _ = job.done.send(loaded);
                }
            })
        });
        let threads = threads.collect::<Result<_, _>>().map_err(DiskError::Thread)?;
        Ok(Self { queue, threads: Mutex::new(threads) })
    }

    /// Reads `counters`. Returns true when they are in memory, false if one could not be read, or too many wait.
    pub(super) async fn read(&self, counters: Vec<Changed>) -> bool {
        let (done, read) = oneshot::channel();
        {
            let (queue, wake) = &*self.queue;
            let mut queue = queue.lock();
            if queue.jobs.len() >= MAX_WAITING || queue.is_closed {
                return false;
            }
            queue.jobs.push_back(Job { counters, done });
            wake.notify_one();
        }
        read.await.unwrap_or(false)
    }

    /// Ends the threads.
    pub(super) fn stop(&self) {
        self.queue.0.lock().is_closed = true;
        self.queue.1.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

fn next(queue: &(Mutex<Queue>, Condvar)) -> Option<Job> {
    let (queue, wake) = queue;
    let mut queue = queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        if queue.is_closed {
            return None;
        }
        wake.wait(&mut queue);
    }
}
