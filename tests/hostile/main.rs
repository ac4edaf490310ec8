//! Clients that mean harm, against a real process: its memory stays bounded, it goes on serving others, and it says in
//! its metrics which bound was reached. `docs/security.md` has the bounds.
//!
//! The attacks write their own HTTP/2 frames. No test asserts a speed; all wait for conditions.

mod connections;
mod counters;
mod floods;
mod frames;
mod headers;
mod http;
mod pages;
mod redis;
mod requests;
mod responses;
mod target;
mod waiting;

use weir_harness::wire;
use weir_testing::child;
