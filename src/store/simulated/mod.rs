//! A simulated shared store inside this process, with a chosen time, network and failures.
//!
//! It replaces Redis in tests of coordination under delays, losses and failures. Time is tokio's: under a paused clock it is
//! simulated, and two runs with the same seed are the same.

mod capabilities;
mod clock;
mod network;
mod random;
mod remote;
mod server;

pub use capabilities::Capabilities;
pub use clock::SimulatedClock;
pub use network::Network;
pub use random::Random;
pub use remote::{Condition, SimulatedRemote, SimulatedStore};
pub use server::Server;
