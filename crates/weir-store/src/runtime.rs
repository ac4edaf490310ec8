//! Threads with their own runtime.

use std::{future::Future, io, sync::mpsc, thread};

use tokio::runtime::Builder;

/// Runs the future of `make` to its end on a new thread with a single-threaded runtime. The runtime is built and
/// dropped there, because dropping a runtime in async code panics.
pub fn spawn<F: Future<Output = ()>>(
    name: String,
    make: impl FnOnce() -> F + Send + 'static,
) -> io::Result<()> {
    let (started, start) = mpsc::sync_channel(1);
    thread::Builder::new().name(name).spawn(move || {
        match Builder::new_current_thread().enable_all().build() {
            Err(error) => drop(started.send(Err(error))),
            Ok(runtime) => {
                drop(started.send(Ok(())));
                runtime.spawn(crate::wakeup::ThreadWakeups::attach().run());
                runtime.block_on(async { make().await });
            }
        }
    })?;
    start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended before it started its runtime")))
}
