//! The servers. Each decodes its protocol into a [`Request`](crate::limit::Request), and encodes the
//! [`Verdict`](crate::limit::Verdict) into a response.

pub mod bounds;
mod connections;
pub mod conversion;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod grpc;
pub mod headers;
pub mod http;
mod listening;
mod log;
mod rejections;
pub mod resp;
mod wait;

pub use connections::Connections;
pub use listening::Certificates;
pub use rejections::RejectionLogger;
