//! The gRPC server, end to end: a whole weir, real sockets, a clock that the tests set.

#[path = "../support/in_process.rs"]
mod in_process;
#[path = "../support/wire.rs"]
mod wire;

mod clock;
mod counting;
mod fair_shares;
mod hostile;
mod lifecycle;
mod limits;
mod modes;
mod reload;
mod responses;
