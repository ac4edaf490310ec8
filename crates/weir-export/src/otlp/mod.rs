//! The connection to an OpenTelemetry collector, which traces and metrics share: OTLP over gRPC and over HTTP. And the
//! export of metrics.
//!
//! Certificates are read for each connection, so renewed ones take effect. Each attempt has a deadline.
//!
//! | file | contents |
//! | --- | --- |
//! | `settings` | the collector, and how it is reached |
//! | `grpc`, `http` | the connection, as OpenTelemetry's exporters take it |
//! | `failure` | why attempts fail, and the bounded log of that |
//! | `thread` | the thread that exports, and its end |
//! | `metrics/` | sends the metrics of `/metrics` |

mod failure;
mod grpc;
mod http;
mod metrics;
mod settings;
mod thread;

pub(crate) use failure::{Cause, FailureLog};
pub(crate) use grpc::{channel, with_headers};
pub(crate) use http::HttpConnection;
pub use metrics::{MetricSettings, Temporality, start_metrics};
pub use settings::{Endpoint, ExportSettings, OtlpProtocol};
pub use thread::ExportThread;
pub(crate) use thread::{FLUSH, Stopping};
