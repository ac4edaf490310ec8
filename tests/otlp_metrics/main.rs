//! OpenTelemetry metrics: what a collector receives, beside what `/metrics` shows.

mod away;
mod delta;
mod page;
mod receiver;
mod same;

use weir_harness::{in_process, wire};
use weir_testing::child;
