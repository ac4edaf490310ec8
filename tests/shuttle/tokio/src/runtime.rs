//! Shuttle's runtime, whose tasks have timers wherever they run.

use std::future::Future;

pub use shuttle_tokio::runtime::{Builder, Runtime};
use shuttle_tokio::task::JoinHandle;

#[derive(Clone, Debug)]
pub struct Handle(shuttle_tokio::runtime::Handle);

impl Handle {
    pub fn current() -> Self {
        Self(shuttle_tokio::runtime::Handle::current())
    }

    /// Timers are everywhere.
    pub fn enter(&self) -> impl Sized {}

    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.spawn(future)
    }

    pub fn spawn_blocking<F, R>(&self, run: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.0.spawn_blocking(run)
    }
}
