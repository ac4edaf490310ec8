//! The threads that read counters, so that no thread that serves waits for the disk.

use std::{collections::VecDeque, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{
    error::DiskError,
    notes::Changed,
    shared::{Pins, SharedDisk, StoredBucket},
};

/// While one waits for the disk, another one finds what is cached.
const THREADS: usize = 2;

/// The most decisions that wait. Above this the disk is much too slow, and `on_store_failure` decides at once.
const MAX_WAITING: usize = 16_384;

pub(super) const SCANNED: usize = 1_000;

/// What a decision or a command waits for. None is sent if the disk cannot be read.
enum ReadJob {
    Load {
        counters: Vec<Changed>,
        done: oneshot::Sender<Option<Pins>>,
    },
    /// The first [`SCANNED`] buckets whose keys begin with `prefix` and come after `after`.
    Scan {
        prefix: Vec<u8>,
        after: Option<Box<[u8]>>,
        done: oneshot::Sender<Option<Vec<StoredBucket>>>,
    },
}

#[derive(Default)]
struct ReadQueue {
    jobs: VecDeque<ReadJob>,
    is_closed: bool,
}

pub(super) struct Readers {
    queue: Arc<(Mutex<ReadQueue>, Condvar)>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Readers {
    pub(super) fn start(shared: &Arc<SharedDisk>) -> Result<Self, DiskError> {
        let queue = Arc::<(Mutex<ReadQueue>, Condvar)>::default();
        let threads = (0..THREADS).map(|_| {
            let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
            thread::Builder::new().name("weir-disk-read".into()).spawn(move || {
                while let Some(job) = next(&queue) {
                    job.carry_out(&shared);
                }
            })
        });
        let threads = threads.collect::<Result<_, _>>().map_err(DiskError::Thread)?;
        Ok(Self { queue, threads: Mutex::new(threads) })
    }

    /// The receiver gets none if a counter could not be read. Returns none if too many decisions wait already.
    pub(super) fn read(&self, counters: Vec<Changed>) -> Option<oneshot::Receiver<Option<Pins>>> {
        let (done, read) = oneshot::channel();
        self.push(ReadJob::Load { counters, done }).then_some(read)
    }

    /// In the order of the keys; an empty list if there are no more. None as in [`Readers::read`].
    pub(super) fn scan(
        &self,
        prefix: Vec<u8>,
        after: Option<Box<[u8]>>,
    ) -> Option<oneshot::Receiver<Option<Vec<StoredBucket>>>> {
        let (done, read) = oneshot::channel();
        self.push(ReadJob::Scan { prefix, after, done }).then_some(read)
    }

    fn push(&self, job: ReadJob) -> bool {
        let (queue, wake) = &*self.queue;
        let mut queue = queue.lock();
        if queue.jobs.len() >= MAX_WAITING || queue.is_closed {
            return false;
        }
        queue.jobs.push_back(job);
        wake.notify_one();
        true
    }

    pub(super) fn stop(&self) {
        self.queue.0.lock().is_closed = true;
        self.queue.1.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl ReadJob {
    fn carry_out(self, shared: &Arc<SharedDisk>) {
        // the decision may have given up already, which drops the pins
        match self {
            Self::Load { counters, done } => {
                let _ = done.send(read_all(shared, &counters));
            }
            Self::Scan { prefix, after, done } => {
                let found = shared.scan(&prefix, after.as_deref(), SCANNED);
                let found = found.inspect_err(|error| tracing::debug!(%error, "cannot search buckets"));
                let _ = done.send(found.ok());
            }
        }
    }
}

fn read_all(shared: &Arc<SharedDisk>, counters: &[Changed]) -> Option<Pins> {
    let mut pins = Pins { shared: Arc::clone(shared), keys: Vec::with_capacity(counters.len()) };
    for counter in counters {
        shared.wait_for_room(counter.key);
        if let Err(error) = shared.load(counter, true) {
            tracing::debug!(%error, "cannot read a counter");
            return None;
        }
        pins.keys.push(counter.key);
    }
    Some(pins)
}

fn next(queue: &(Mutex<ReadQueue>, Condvar)) -> Option<ReadJob> {
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
