//! What weir is compared with, as this benchmark and the program that serves it both know it.

use clap::ValueEnum;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The crate h2, which all others stand on: the message is read, and an answer of always the same bytes is sent. A
    /// connection's requests are answered on the task that reads them, all that have come in one go.
    H2,
    /// The same, but each request is answered on a task of its own.
    H2Spawn,
    /// tonic with a service that does nothing, on tokio's default runtime with one worker.
    Tonic,
    /// The same on a current-thread runtime.
    TonicCurrentThread,
}

/// The message with what gRPC puts before it.
pub(crate) fn grpc(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}
