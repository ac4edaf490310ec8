//! OpenTelemetry metrics: what a collector receives, beside what `/metrics` shows.

#[expect(dead_code, reason = "other tests set the clock and start without files")]
#[path = "../support/in_process.rs"]
mod in_process;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

mod away;
mod delta;
mod page;
mod receiver;
mod same;

use weir_testing::child;
