//! The ways out of what weir counts and does.
//!
//! | to | see |
//! | --- | --- |
//! | write the log | [`log`] |
//! | serve `/metrics` | [`prometheus`], [`snapshot`] |
//! | send metrics | [`statsd`], [`otlp`] |
//! | send traces | [`trace`] |

pub mod log;
pub mod otlp;
pub mod process;
pub mod prometheus;
pub mod snapshot;
pub mod statsd;
pub mod trace;
