//! The thread that serves waiting callers when their instant has come.

use std::{io, sync::Arc};

use super::{
    Limiter,
    asking::{self, AskingLines},
};
use weir_store::{Store, clock::Clock};

/// The thread that serves waiting callers: lines in memory when the next one is due, and other lines with hits that it
/// asks the store for. It ends when this is dropped.
#[derive(Debug)]
pub struct WaiterThread(Arc<AskingLines>);

// === impl WaiterThread ===

impl WaiterThread {
    pub fn start<S: Store>(limiter: &Arc<Limiter<S>>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let timers = limiter.store().memory().map(|store| Arc::clone(store.timers()));
        // does not keep the limiter alive
        let (weak, lines) = (Arc::downgrade(limiter), Arc::clone(&limiter.asking));
        let serve = asking::serve(weak, lines, clock, None, timers);
        weir_store::runtime::spawn("weir-waiters".into(), move || serve)?;
        Ok(Self(Arc::clone(&limiter.asking)))
    }
}

impl Drop for WaiterThread {
    fn drop(&mut self) {
        self.0.end();
    }
}
