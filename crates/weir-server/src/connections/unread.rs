//! Bytes of responses that the client has not read.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::ConnectionAccount;

/// The memory of a response besides its message, in bytes: its stream, headers and trailers.
const OVERHEAD: usize = 1 << 10;

/// A part of a response, which its connection's account counts until it is written or dropped.
#[derive(Debug)]
pub(crate) struct UnreadBytes {
    bytes: Bytes,
    account: Arc<ConnectionAccount>,
}

// === impl UnreadBytes ===

impl UnreadBytes {
    pub(crate) fn new(bytes: Bytes, account: Arc<ConnectionAccount>) -> Self {
        account.respond(bytes.len() + OVERHEAD);
        Self { bytes, account }
    }
}

impl Buf for UnreadBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.account.wrote(count);
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.account.wrote(self.bytes.len() + OVERHEAD);
    }
}
