//! Connections that weir opens, and the certificates of all connections.
//!
//! | to | see |
//! | --- | --- |
//! | read certificates and keys, and verify peers | [`tls`] |
//! | look up names, also SRV records | [`dns`] |
//! | call a gRPC server | [`grpc_client`] |

pub mod dns;
pub mod grpc_client;
pub mod tls;
