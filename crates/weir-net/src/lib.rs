//! Connections that weir opens, and the certificates of all connections.
//!
//! | to | see |
//! | --- | --- |
//! | read certificates and keys, and verify peers | [`tls`] |
//! | look up names, also SRV records | [`dns`] |
//! | open a connection to an [`Address`] | [`stream`] |
//! | call a gRPC server | [`grpc_client`] |

mod address;
pub mod dns;
pub mod grpc_client;
pub mod stream;
pub mod tls;

pub use address::Address;
