//! The simulated store: the exact effects of its operations, and of its network and failures on calls.

mod grants;
mod network;
mod operations;
mod support;
