//! What weir's coordination uses of tokio, for tests under Shuttle: its channels as they are, since they do not depend
//! on a runtime, Shuttle's tasks, and timers whose clock the test moves.

pub use real::{join, sync};
pub use shuttle_tokio::{select, spawn, task};

pub mod runtime;
pub mod time;
