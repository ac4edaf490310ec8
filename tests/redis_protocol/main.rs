//! The port of Redis' protocol: each sentence of what smyte/ratelimit, redis-cell and throttlecrab were measured to do,
//! where weir does the same; where it does better, what it does instead; real clients; and clients that mean harm.

#[expect(dead_code, reason = "these tests look at no output")]
#[path = "../support/child.rs"]
mod child;
mod client;
mod clients;
mod connection;
mod hostile;
mod in_memory;
#[expect(dead_code, reason = "these tests change no rules")]
#[path = "../support/in_process.rs"]
mod in_process;
mod on_disk;
#[expect(dead_code, reason = "these tests stop no server")]
#[path = "../support/server_process.rs"]
mod server_process;
mod shared;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;
