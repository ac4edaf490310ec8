//! Writes recordings of requests that come from elsewhere, such as the access log of a proxy.

use weir_limit::Timestamp;

use crate::{
    block::{OpenBlock, RecordedBlock, RecordedRequest, RecordedStatus},
    definition::FirstSight,
    file::{RecordingHeader, block_bytes},
};

/// A recording in the making, in the order of its requests.
#[derive(Debug)]
pub struct RecordingWriter {
    open: OpenBlock,
    bytes: Vec<u8>,
    header: RecordingHeader,
    span: Option<(Timestamp, Timestamp)>,
}

// === impl RecordingWriter ===

impl RecordingWriter {
    pub fn new(header: RecordingHeader) -> Self {
        Self { open: OpenBlock::new(0), bytes: Vec::new(), header, span: None }
    }

    pub fn append(
        &mut self,
        recorded: &RecordedRequest<'_, '_>,
        status_of: impl Fn(usize) -> RecordedStatus,
        first_sight: impl Fn(usize) -> FirstSight,
    ) {
        let (from, until) = self.span.unwrap_or((recorded.at, recorded.at));
        self.span = Some((from.min(recorded.at), until.max(recorded.at)));
        let bytes = &mut self.bytes;
        let seal = |block: RecordedBlock| {
            bytes.extend(block_bytes(&block, None));
            block.bytes
        };
        if !self.open.append(recorded, status_of, first_sight, seal) {
            self.header.lost += 1;
        }
    }

    /// Returns the file.
    pub fn finish(mut self) -> Vec<u8> {
        (self.header.from, self.header.until) = self.span.unwrap_or_default();
        let mut file = self.header.bytes();
        file.append(&mut self.bytes);
        if !self.open.is_empty() {
            file.extend(block_bytes(&self.open.seal(), None));
        }
        file
    }
}
