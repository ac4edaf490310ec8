//! What the servers of long connections have in common: accepting connections, TLS handshakes, and the threads that
//! serve. Knows no protocol.

mod accept;
mod certificates;
mod handshake;
mod refusal;
mod socket;
mod worker;

pub use certificates::Certificates;

pub(super) use self::{
    accept::{ListeningPort, TLS_HANDSHAKE, accept},
    socket::ServedStream,
    worker::ServedProtocol,
};
