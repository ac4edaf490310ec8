//! What would these limits do with so many instances? An answer from the real coordination under a simulated clock.
//!
//! ```text
//! scenario  what is asked: instances, limit, load, network
//! run       the instances, each with its own clock and way to one simulated store, and the requests that come
//! figures   what came of it, against what the limit promises
//! table     the figures as text
//! chart     what was admitted over time, as an SVG
//! ```

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures for people: nothing is decided by them"
)]

mod chart;
mod metrics;
mod run;
mod scenario;
mod table;

pub use chart::chart;
pub use metrics::{Series, SimulationMetrics};
pub use run::{Instance, Outcome, SimulatedDecision, run};
pub use scenario::{Scenario, ScenarioError, Skew};
pub use table::table;
