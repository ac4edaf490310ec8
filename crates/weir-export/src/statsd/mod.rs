//! Sends the stats to a statsd server every few seconds.

mod client;
mod exporter;
mod line;
mod mogrifier;
mod sent;
mod settings;

pub use exporter::run;
pub use mogrifier::{Mogrifier, MogrifierError};
pub use settings::{Dialect, Protocol, StatsdSettings};
