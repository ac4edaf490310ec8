//! The port of Redis' protocol: each sentence of what smyte/ratelimit, redis-cell and throttlecrab were measured to do, where weir does
//! the same; where it does better, what it does instead; real clients; and clients that mean harm.

#[expect(dead_code, reason = "these tests look at no output")]
#[path = "../support/child.rs"]
mod child;
mod client;
mod clients;
mod connection;
mod hostile;
#[expect(dead_code, reason = "these tests change no rules")]
#[path = "../support/in_process.rs"]
mod in_process;
mod redis_cell;
mod rl;
mod rules;
#[expect(dead_code, reason = "these tests stop no server")]
#[path = "../support/server_process.rs"]
mod server_process;
mod shared;
mod throttle;
mod throttlecrab;
