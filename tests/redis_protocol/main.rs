//! The port of Redis' protocol: each sentence of what smyte/ratelimit, redis-cell and throttlecrab were measured to do,
//! where weir does the same; where it does better, what it does instead; real clients; and clients that mean harm.

mod client;
mod clients;
mod connection;
mod hostile;
mod in_memory;
#[expect(dead_code, reason = "these tests change no rules")]
#[path = "../support/in_process.rs"]
mod in_process;
mod on_disk;
mod shared;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

use weir_testing::{child, server_process};
