//! TLS with rustls and ring: certificates and keys from files, and their verification.
//!
//! | file | contents |
//! | --- | --- |
//! | `files` | certificates and keys in PEM format, and the errors about them |
//! | `client`, `verify_server` | the configuration of a client, and which servers it accepts |
//! | `server`, `verify_client` | the configuration of a server, and which clients it accepts |

mod client;
mod files;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod verify_client;
mod verify_server;

pub use client::{ClientTls, ClientTlsNames};
pub use files::TlsError;
#[cfg(feature = "server")]
pub use server::{CertificateTime, ServerTls, ServerTlsFiles};
#[cfg(feature = "server")]
pub use verify_client::{ClientName, WrongClientName};

/// The protocol of gRPC in ALPN. grpc-go rejects peers that do not negotiate it.
#[cfg(feature = "server")]
pub(crate) const ALPN_H2: &[u8] = b"h2";
