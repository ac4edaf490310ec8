//! TLS with rustls and ring: certificates and keys from files, and their verification.
//!
//! | file | contents |
//! | --- | --- |
//! | `files` | certificates and keys in PEM format, and the errors about them |
//! | `certificate` | what certificates say: dates, names, usages; whether a chain holds together |
//! | `client`, `verify_server` | the configuration of a client, and which servers it accepts |
//! | `server`, `verify_client` | the configuration of a server, and which clients it accepts |

mod certificate;
mod client;
mod files;
mod server;
#[cfg(test)]
mod tests;
mod verify_client;
mod verify_server;

pub use certificate::{BrokenChain, CertificateDates, Validity};
pub use client::{ClientTls, ClientTlsNames};
pub use files::{CertificateFile, TlsError};
pub use server::{ServerTls, ServerTlsFiles};
pub use verify_client::{ClientName, EndedAuthority, WrongClientName};

/// The protocol of gRPC in ALPN. grpc-go rejects peers that do not negotiate it.
pub const ALPN_H2: &[u8] = b"h2";
