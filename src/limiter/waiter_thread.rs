//! The thread that serves waiting callers when their instant has come.

use std::{
    io,
    sync::{Arc, Weak},
    thread,
};

use super::Limiter;
use crate::{
    clock::Clock,
    store::{Store, Timers},
};

/// The thread that serves the lines of a limiter: one for all waiting callers. It sleeps until the next of them is due,
/// and ends when this is dropped.
#[derive(Debug)]
pub struct WaiterThread {
    timers: Option<Arc<Timers>>,
}

// === impl WaiterThread ===

impl WaiterThread {
    /// Starts the thread for `limiter`, whose callers read the time from `clock`. A store without lines needs none.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub fn start<S: Store>(limiter: &Arc<Limiter<S>>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let Some(timers) = limiter.store().memory().map(|store| Arc::clone(store.timers())) else {
            return Ok(Self { timers: None });
        };
        // does not keep the limiter alive
        let limiter: Weak<Limiter<S>> = Arc::downgrade(limiter);
        let run = Arc::clone(&timers);
        thread::Builder::new().name("weir-waiters".into()).spawn(move || {
            run.run(&*clock, |now| {
                if let Some(limiter) = limiter.upgrade() {
                    limiter.serve_waiters(now);
                }
            });
        })?;
        Ok(Self { timers: Some(timers) })
    }
}

impl Drop for WaiterThread {
    fn drop(&mut self) {
        if let Some(timers) = &self.timers {
            timers.close();
        }
    }
}
