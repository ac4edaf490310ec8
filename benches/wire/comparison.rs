//! The servers that weir is compared with, for both this benchmark and the program that runs them.

use clap::ValueEnum;

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A server on the crate h2, which all others use: reads the message and sends a constant response. Handles the
    /// requests of a connection on the task that reads them, in batches.
    H2,
    /// Like `H2`, with a task per request.
    H2Spawn,
    /// tonic with a service that does nothing, on tokio's default runtime with one worker.
    Tonic,
    /// Like `Tonic`, on a current-thread runtime.
    TonicCurrentThread,
}

/// Returns the message with gRPC's prefix.
pub(crate) fn grpc(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}
