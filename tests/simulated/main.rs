//! The simulated store: what its operations do, to the letter, and what its network and failures do to calls.

mod grants;
mod network;
mod operations;
mod support;
