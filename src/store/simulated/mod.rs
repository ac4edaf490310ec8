//! A store that many instances share, in this process: where time, the network and every failure are chosen.
//!
//! It stands in for Redis wherever the question is what the coordination makes of delays, losses and failures. Time is
//! tokio's: under a paused clock it is simulated, and a run with the same seed is the same run.

mod clock;
mod link;
mod random;
mod remote;
mod server;

pub use clock::SimulatedClock;
pub use link::Network;
pub use random::Random;
pub use remote::{Capabilities, Condition, SimulatedRemote, SimulatedStore};
pub use server::Server;
