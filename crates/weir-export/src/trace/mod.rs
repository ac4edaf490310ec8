//! OpenTelemetry traces: one span for each sampled request, with its waits for the shared store as children.
//!
//! `Tracer::start` reads a request's parent from its headers and decides whether it is sampled; requests that are not
//! cost nothing after that. A [`RequestSpan`] collects what is known of the request; when it ends, its spans go as
//! `SpanData` to OpenTelemetry's batch processor, which queues them up to a bound and exports them on threads of its own,
//! so that no decision waits for it.
//!
//! | file | contents |
//! | --- | --- |
//! | `context` | the parent in a request's headers: W3C trace context and b3 |
//! | `tracer`, `span` | which requests are traced, and their spans |
//! | `sink` | OpenTelemetry's batch processor, and the counts of spans |
//! | `exporter` | its exporter on weir's connections, and the flush at the end |
//! | `settings` | the settings of all of this |

mod context;
mod exporter;
mod settings;
mod sink;
mod span;
mod tracer;

pub use exporter::start;
pub use settings::{BatchSettings, TraceSettings};
pub use span::{RequestSpan, SpanCall};
pub use tracer::{Tracer, random_instance_id};
