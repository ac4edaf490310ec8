//! A simulated shared store inside this process, with a controlled clock, network and failures.
//!
//! It replaces Redis in tests of coordination under delays, losses and failures. It uses tokio's clock: with a paused
//! clock, time is simulated, and two runs with the same seed are identical.

mod board;
mod clock;
mod network;
mod places;
mod pools;
mod random;
mod remote;
mod server;

pub use board::SimulatedBoard;
pub use clock::SimulatedClock;
pub use network::Network;
pub use places::SimulatedPlaces;
pub use pools::SimulatedPools;
pub use random::Random;
pub use remote::{Condition, SimulatedRemote, SimulatedStore};
pub use server::SimulatedServer;
