//! Simulates a limit over several instances: the real coordination under a simulated clock, store and network.
//!
//! ```text
//! scenario     the parameters: instances, limit, load, network
//! arrivals     when requests arrive, and for which keys
//! run          runs the instances, each with its own clock and connection to one simulated store, and the requests
//! metrics      compares the outcome with the limit's bounds
//! one_counter  what one counter for all instances would have decided
//! waiting      the same as `run`, with callers that wait
//! wait_metrics  what these get, and what their provider sees
//! table        renders the metrics as text
//! shares       the shares of a pool's members in each cycle
//! suggest      which mode to choose, what it costs, and what it can exceed
//! ```

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "reported metrics: no decision depends on them"
)]

mod arrivals;
mod metrics;
mod one_counter;
mod run;
mod scenario;
mod shares;
mod suggest;
mod table;
mod wait_metrics;
mod waiting;

pub use metrics::SimulationMetrics;
pub use run::{Instance, SimulatedDecision, SimulationOutcome, run};
pub use scenario::{Arrivals, Scenario, Skew};
pub use shares::{Demands, DemandsError, SharedCycle, shares_table};
pub use suggest::suggest;
pub use table::{legend, table};
pub use wait_metrics::{WaitMetrics, wait_legend, wait_table};
pub use waiting::{WaitingOutcome, run_waiting};
