//! The gRPC server, end to end: a whole weir, real sockets, a clock that the tests set.

mod clock;
mod counting;
mod fair_shares;
mod hostile;
mod lifecycle;
mod limits;
mod modes;
mod reload;
mod responses;
mod tables;

use weir_harness::{in_process, wire};
