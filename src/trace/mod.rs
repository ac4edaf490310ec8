//! OpenTelemetry traces: one span for each sampled request, with its waits for the shared store as children.
//!
//! `Tracer::start` reads a request's parent from its headers and decides whether it is sampled; requests that are not
//! cost nothing after that. A [`RequestSpan`] collects what is known of the request; when it ends, its spans are queued
//! as OpenTelemetry's `SpanData`. The exporter hands the queue in batches to the exporter of `opentelemetry-otlp`, on a
//! thread of its own, so that no decision waits for it.
//!
//! | file | contents |
//! | --- | --- |
//! | `context` | the parent in a request's headers: W3C trace context and b3 |
//! | `tracer`, `sampling`, `span` | which requests are traced, and their spans |
//! | `queue`, `exporter` | the bounded queue, and the thread that sends it: batches, the flush at the end |
//! | `sender`, `attempts` | the exporters of `opentelemetry-otlp`, and what they report of their attempts |
//! | `settings` | the settings of all of this |

mod attempts;
mod context;
mod exporter;
mod queue;
mod sampling;
mod sender;
mod settings;
mod span;
mod tracer;

pub use exporter::start;
pub use sampling::random_instance_id;
pub use settings::{BatchSettings, TraceSettings};
pub use span::RequestSpan;
pub use tracer::Tracer;
