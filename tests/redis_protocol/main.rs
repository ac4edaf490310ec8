//! The port of Redis' protocol: each sentence of what smyte/ratelimit, redis-cell and throttlecrab were measured to do,
//! where weir does the same; where it does better, what it does instead; real clients; and clients that mean harm.

mod client;
mod clients;
mod connection;
mod hostile;
mod in_memory;
mod on_disk;
mod shared;

use weir_harness::{in_process, wire};
use weir_testing::{child, server_process};
