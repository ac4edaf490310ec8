//! The algorithms: each is a pure function of (state, now, hits) and knows no store, clock or protocol.
//!
//! A store keeps one [`CounterState`] per counter and tier.

mod change;
mod counter;
mod fixed_window;
mod refill;
mod sliding_window;
mod span;
mod state;
mod token_bucket;

pub use change::CountChange;
pub use counter::{CounterState, IdleAt};
pub use fixed_window::FixedWindow;
pub use sliding_window::SlidingWindow;
pub use span::Span;
pub use state::{AlgorithmState, Availability, Outcome, Probe};
pub use token_bucket::TokenBucket;
