//! The threads that read counters, so that no thread that serves waits for the disk.

use std::{
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{error::DiskError, state::SharedDisk};

/// While one waits for the disk, another one finds what is cached.
const THREADS: usize = 2;

/// The most decisions that wait. Above this the disk is much too slow, and `on_store_failure` decides at once.
const MAX_WAITING: usize = 16_384;

type ReadJob = Box<dyn FnOnce(&Arc<SharedDisk>) + Send>;

pub(super) struct Readers {
    /// None once the threads are stopped.
    jobs: Mutex<Option<SyncSender<ReadJob>>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Readers {
    pub(super) fn start(shared: &Arc<SharedDisk>) -> Result<Self, DiskError> {
        let (jobs, waiting) = sync_channel::<ReadJob>(MAX_WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let threads = (0..THREADS).map(|_| {
            let (waiting, shared) = (Arc::clone(&waiting), Arc::clone(shared));
            let next = move || waiting.lock().recv().ok();
            thread::Builder::new().name("weir-disk-read".into()).spawn(move || {
                while let Some(job) = next() {
                    job(&shared);
                }
            })
        });
        let threads = threads.collect::<Result<_, _>>().map_err(DiskError::thread)?;
        Ok(Self { jobs: Mutex::new(Some(jobs)), threads: Mutex::new(threads) })
    }

    /// Reads on one of the threads, also if the receiver is dropped. None if too many wait already.
    pub(super) fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<SharedDisk>) -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (done, received) = oneshot::channel();
        let job: ReadJob = Box::new(move |shared| drop(done.send(read(shared))));
        self.jobs.lock().as_ref()?.try_send(job).ok()?;
        Some(received)
    }

    pub(super) fn stop(&self) {
        drop(self.jobs.lock().take());
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}
