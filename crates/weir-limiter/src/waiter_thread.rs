//! The threads that serve waiting callers when their instant has come.

use std::{
    io,
    sync::{Arc, Weak},
    thread,
};

use super::{Limiter, asking::AskingLines};
use weir_store::{Store, Timers, clock::Clock};

/// The threads that serve waiting callers. One serves lines in memory, and sleeps until the next is due. Another one
/// asks the store for the other lines, if there can be any. They end when this is dropped.
#[derive(Debug)]
pub struct WaiterThread {
    timers: Option<Arc<Timers>>,
    asking: Arc<AskingLines>,
}

// === impl WaiterThread ===

impl WaiterThread {
    /// Starts the threads for `limiter`, whose callers read the time from `clock`.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub fn start<S: Store>(limiter: &Arc<Limiter<S>>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let timers = limiter.store().memory().map(|store| Arc::clone(store.timers()));
        if timers.is_none() || limiter.store().shared_counts().store.is_some() {
            let ask = Limiter::ask_store(limiter, Arc::clone(&clock));
            weir_store::runtime::spawn("weir-lines".into(), move || ask)?;
        }
        if let Some(timers) = timers.clone() {
            // does not keep the limiter alive
            let limiter: Weak<Limiter<S>> = Arc::downgrade(limiter);
            thread::Builder::new().name("weir-waiters".into()).spawn(move || {
                timers.run(&*clock, |now| {
                    if let Some(limiter) = limiter.upgrade() {
                        limiter.serve_waiters(now);
                    }
                });
            })?;
        }
        Ok(Self { timers, asking: Arc::clone(&limiter.asking) })
    }
}

impl Drop for WaiterThread {
    fn drop(&mut self) {
        if let Some(timers) = &self.timers {
            timers.close();
        }
        self.asking.end();
    }
}
