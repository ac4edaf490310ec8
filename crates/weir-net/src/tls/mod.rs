//! TLS with rustls, over ring or, with the feature `fips`, over aws-lc: certificates and keys from files, and their verification.
//!
//! | file | contents |
//! | --- | --- |
//! | `files` | certificates and keys in PEM format, and the errors about them |
//! | `certificate` | what certificates say: dates, names, usages; whether a chain holds together |
//! | `client`, `server_verifier` | the configuration of a client, and which servers it accepts |
//! | `server`, `client_verifier` | the configuration of a server, and which clients it accepts |

mod certificate;
mod client;
mod client_verifier;
mod files;
mod server;
mod server_verifier;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{self, CryptoProvider};

pub use certificate::{BrokenChain, CertificateDates, Validity};
pub use client::{ClientTls, ClientTlsNames};
pub use client_verifier::{ClientName, EndedAuthority, WrongClientName};
pub use files::{CertificateFile, TlsError};
pub use server::{ServerTls, ServerTlsFiles};

/// The protocol of gRPC in ALPN. grpc-go rejects peers that do not negotiate it.
pub const ALPN_H2: &[u8] = b"h2";

/// The protocol of the HTTP ports in ALPN.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The cryptography of all connections. With the feature `fips`, that of aws-lc's module under FIPS 140-3.
fn provider() -> Arc<CryptoProvider> {
    #[cfg(not(feature = "fips"))]
    let provider = crypto::ring::default_provider();
    #[cfg(feature = "fips")]
    let provider = crypto::default_fips_provider();
    Arc::new(provider)
}
