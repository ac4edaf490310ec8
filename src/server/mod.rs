//! The doors: each speaks one protocol, makes a [`Request`](crate::limit::Request) of what comes in and an answer of the
//! [`Verdict`](crate::limit::Verdict). Nothing else.

pub mod conversion;
pub mod grpc;
pub mod headers;
pub mod http;
