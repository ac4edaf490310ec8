//! Threads that have a runtime of their own.

use std::{future::Future, io, sync::mpsc, thread};

use tokio::runtime::Builder;

/// Runs what `make` makes on a new thread called `name`, until that has ended, on a runtime that this thread alone drives.
/// The runtime is made there, and ends there: to drop one where async code runs is a panic.
///
/// # Errors
///
/// The system's, if it gives no thread, or nothing to wait for sockets with.
pub(crate) fn spawn<F: Future<Output = ()>>(
    name: String,
    make: impl FnOnce() -> F + Send + 'static,
) -> io::Result<()> {
    let (tell, told) = mpsc::sync_channel(1);
    thread::Builder::new().name(name).spawn(move || {
        // whoever started it waits for this
        match Builder::new_current_thread().enable_all().build() {
            Err(error) => drop(tell.send(Err(error))),
            Ok(runtime) => {
                drop(tell.send(Ok(())));
                runtime.block_on(async { make().await });
            }
        }
    })?;
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))
}
