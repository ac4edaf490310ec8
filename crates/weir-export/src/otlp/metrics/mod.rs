//! Sends the metrics of `/metrics` to an OpenTelemetry collector.
//!
//! Each export makes messages of the same series as a scrape. So both outputs have the same names, labels and values,
//! and no decision pays for the second one. The messages are those of `opentelemetry-proto`; the SDK's instruments
//! cannot take histograms and summaries that are counted already.
//!
//! | file | contents |
//! | --- | --- |
//! | `message` | the messages of series |
//! | `changes` | what a series has counted since the last export, for delta temporality |
//! | `sender` | sends messages |
//! | `exporter` | the thread that does this in each interval |
//! | `settings` | the settings of all of this |

mod changes;
mod exporter;
mod message;
mod sender;
mod settings;

pub use exporter::start_metrics;
pub use settings::{MetricSettings, Temporality};
