//! The bounds on what clients can make weir hold or wait for, and how often each was reached.

use std::time::Duration;

use weir_observe::{Counter, Metric};

/// The largest message or body in bytes, compressed or not: the default of grpc-go and so of envoyproxy/ratelimit.
pub const MAX_MESSAGE: usize = 4 << 20;

/// An estimate from above of an idle connection's memory in bytes, with TLS, beside [`Bounds::buffered`].
pub const CONNECTION: usize = 40 << 10;

/// The most TLS handshakes at a time on a thread. One more aborts the oldest: silent clients must not keep out others.
pub const MAX_HANDSHAKES: usize = 1_024;

/// The memory of a TLS handshake under way, in bytes: the largest message that rustls accepts.
pub const HANDSHAKE: usize = 64 << 10;

/// The most bytes of all pages that clients have not read, and the next one. A single page may be larger.
pub const MAX_PAGES: usize = 16 << 20;

/// Estimates from above of a descriptor's and an entry's memory while the request is decided, in bytes.
const DESCRIPTOR: usize = 512;

const ENTRY: usize = 48;

/// The bounds that settings can change. `docs/security.md` lists all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// `WEIR_MAX_CONNECTIONS`: open connections of all ports together; at least 1.
    pub connections: usize,
    /// `WEIR_MAX_BUFFERED_BYTES`: bytes of unfinished requests and unread responses, of all connections together.
    pub buffered: usize,
    /// `WEIR_REQUEST_TIMEOUT`: the time in which a request has to arrive, and on the HTTP ports also a header.
    pub arrival: Duration,
    /// `WEIR_SEND_TIMEOUT`: the time without a byte sent after which a connection with unread responses is closed.
    pub sending: Duration,
    pub request: RequestBounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// `WEIR_MAX_DESCRIPTORS`: descriptors of a request; at least 1.
    pub descriptors: usize,
    /// `WEIR_MAX_ENTRIES`: entries of all descriptors of a request; at least 1.
    pub entries: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    #[error("the request has more than {0} descriptors (WEIR_MAX_DESCRIPTORS)")]
    Descriptors(usize),
    #[error("the descriptors of the request have more than {0} entries (WEIR_MAX_ENTRIES)")]
    Entries(usize),
}

named! {
    /// A bound that was reached, for metrics.
    pub enum Bound {
        /// A connection closed, because there were too many.
        Connections = "connections",
        /// A connection closed, because all together held too many bytes and it held the most.
        BufferedBytes = "buffered_bytes",
        /// A connection closed, or the call of a stream ended, because its client read no responses.
        SendTimeout = "send_timeout",
        /// A request rejected, because its connection held too many bytes of unfinished requests.
        ConnectionBytes = "connection_bytes",
        /// A request rejected, because its connection had too many unread responses.
        UnreadResponses = "unread_responses",
        /// A request rejected, because it did not arrive in time.
        RequestTimeout = "request_timeout",
        /// A request rejected, because its message was too large.
        MessageBytes = "message_bytes",
        /// A request rejected, because it had too many descriptors.
        Descriptors = "descriptors",
        /// A request rejected, because it had too many entries.
        Entries = "entries",
        /// A request rejected, because it had too many headers.
        Headers = "headers",
        /// A page dropped, because its clients did not read it and another one needed its room.
        Pages = "pages",
        /// A connection closed, because there were too many whose clients had not authenticated.
        UnauthenticatedConnections = "unauthenticated_connections",
        /// A connection closed, because those whose clients had not authenticated held too many bytes and it held the most.
        UnauthenticatedBytes = "unauthenticated_bytes",
        /// A connection closed, because its client gave too many wrong passwords.
        WrongPasswords = "wrong_passwords",
    }
}

#[derive(Debug, Default)]
pub struct Exceeded([Counter; Bound::ALL.len()]);

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 4_096,
            buffered: 96 << 20,
            arrival: Duration::from_secs(30),
            sending: Duration::from_secs(20),
            request: RequestBounds::default(),
        }
    }
}

impl Bounds {
    /// Returns the most open connections of clients that have to authenticate and have not yet: an eighth of all.
    pub fn unauthenticated_connections(&self) -> usize {
        (self.connections / 8).max(1)
    }

    /// Returns the most bytes that those connections hold together, beside [`Bounds::buffered`].
    pub const fn unauthenticated_bytes(&self) -> usize {
        self.buffered / 32
    }
}

// === impl RequestBounds ===

impl Default for RequestBounds {
    fn default() -> Self {
        Self { descriptors: 10_000, entries: 50_000 }
    }
}

impl RequestBounds {
    /// For requests of one descriptor.
    pub(super) const fn check(&self, entries: usize) -> Result<(), TooLarge> {
        if entries > self.entries { Err(TooLarge::Entries(self.entries)) } else { Ok(()) }
    }

    /// Returns the most bytes that the request in an encoded message of `length` bytes takes while it is decided.
    pub fn weight(&self, length: usize) -> usize {
        self.weight_of(length, self.descriptors)
    }

    pub(super) fn weight_of_one(&self, length: usize) -> usize {
        self.weight_of(length, 1)
    }

    fn weight_of(&self, length: usize, descriptors: usize) -> usize {
        // the shortest descriptor or entry has two bytes
        let most = length / 2;
        length + most.min(descriptors) * DESCRIPTOR + most.min(self.entries) * ENTRY
    }
}

// === impl TooLarge ===

impl TooLarge {
    pub const fn bound(self) -> Bound {
        match self {
            Self::Descriptors(_) => Bound::Descriptors,
            Self::Entries(_) => Bound::Entries,
        }
    }
}

// === impl Exceeded ===

impl Exceeded {
    pub fn add(&self, bound: Bound) {
        self.0[bound as usize].add(1);
    }

    pub fn get(&self, bound: Bound) -> u64 {
        self.0[bound as usize].get()
    }

    pub(super) fn metrics(&self) -> impl Iterator<Item = Metric> {
        Bound::ALL.iter().map(|&bound| {
            let help = "Requests rejected, connections closed and pages dropped because a bound was reached, by bound.";
            Metric::counter("weir.bounds.exceeded", help, self.get(bound)).label("bound", bound.name())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_has_its_own_counter() {
        let exceeded = Exceeded::default();
        for &bound in Bound::ALL {
            exceeded.add(bound);
            assert_eq!(exceeded.get(bound), 1, "{bound:?}");
        }
    }

    #[test]
    fn the_weight_of_a_message_is_bounded_by_its_length_and_by_its_parts() {
        let bounds = RequestBounds { descriptors: 10, entries: 20 };
        assert_eq!(bounds.weight(0), 0);
        assert_eq!(bounds.weight(4), 4 + 2 * (DESCRIPTOR + ENTRY));
        assert_eq!(bounds.weight(MAX_MESSAGE), MAX_MESSAGE + 10 * DESCRIPTOR + 20 * ENTRY);
        assert_eq!(bounds.weight_of_one(4), 4 + DESCRIPTOR + 2 * ENTRY);
    }
}
