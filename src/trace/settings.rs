//! The settings of traces.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::{
    grpc_client::Target,
    tls::{ClientTls, ClientTlsNames},
};

/// The settings of traces.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The attributes of every span, which describe this instance.
    pub resource: Vec<(String, String)>,
    /// The fraction of requests without a parent that are traced, from 0 to 1.
    pub sampling_rate: f64,
    /// Whether spans have the values of descriptors.
    pub descriptor_values: bool,
    /// The shared store, which names the spans of its calls, such as `redis`.
    pub store: &'static str,
    /// Where spans are sent.
    pub export: ExportSettings,
    /// How they are batched.
    pub batch: BatchSettings,
}

/// The collector, and how it is reached.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// The protocol.
    pub protocol: Protocol,
    /// The collector.
    pub endpoint: Endpoint,
    /// Its TLS, and the variables of that.
    pub tls: Option<(ClientTls, ClientTlsNames)>,
    /// The headers of every export.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether exports are compressed with gzip.
    pub gzip: bool,
    /// How long one attempt may take.
    pub timeout: Duration,
}

/// A protocol of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP/1.1.
    Http,
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host and the port.
    pub target: Target,
    /// The host, and the port if it was given, for HTTP's `Host`.
    pub authority: String,
    /// The path; gRPC has none.
    pub path: String,
}

/// How spans are batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// `OTEL_BSP_MAX_QUEUE_SIZE`: the most spans that wait; at least 1. Further ones are dropped.
    pub queue: usize,
    /// `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`: the most spans of one export; from 1 to [`BatchSettings::queue`].
    pub export: usize,
    /// `OTEL_BSP_SCHEDULE_DELAY`: the longest that a span waits for others.
    pub delay: Duration,
    /// `OTEL_BSP_EXPORT_TIMEOUT`: how long an export and its retries may take.
    pub timeout: Duration,
}
