//! The file of a recording, as it is downloaded.

use std::sync::Arc;

use weir_limit::Timestamp;

use crate::{
    block::{DEFINITION, HEAD, RecordedBlock},
    definition::put_hashed,
    fields::{RecordingFields, put_text},
    reader::records,
    value_key::ValueKey,
};

pub(crate) const MAGIC: &[u8] = b"weir-recording";

/// The number of the format.
pub(crate) const FORMAT: u16 = 1;

const HASHED: u8 = 1;
const MISSING: u8 = 2;
const SHARED: u8 = 4;

/// The length of what a block begins with.
pub(crate) const BLOCK_HEAD: usize = 16;

/// What a recording begins with. Its texts have two bytes for their length, its numbers eight bytes, and its flag one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingHeader {
    /// That of weir.
    pub version: String,
    /// The instance that recorded it.
    pub instance: String,
    /// What has to be added to its times to have those of the store's clock, in nanoseconds.
    pub clock_offset: i64,
    /// Whether values are hashed.
    pub is_hashed: bool,
    /// Whether other instances count on the same counters.
    pub is_shared: bool,
    /// Whether the instance did not answer, so that nothing of it is there.
    pub is_missing: bool,
    /// The time of the first record, and that of the last one.
    pub from: Timestamp,
    pub until: Timestamp,
    /// The requests that made room for later ones.
    pub dropped: u64,
    /// Those that were not recorded.
    pub lost: u64,
    /// Hits that were given back and that nothing names.
    pub unnamed: u64,
}

/// The blocks of a ring at one time.
#[derive(Clone, Debug)]
pub struct RecordingSnapshot {
    blocks: Vec<Arc<RecordedBlock>>,
    dropped: u64,
    lost: u64,
    unnamed: u64,
}

// === impl RecordingHeader ===

impl RecordingHeader {
    /// The beginning of a file, and all of one that has no requests.
    pub fn bytes(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        // what is too long is left out
        for text in [&self.version, &self.instance] {
            if put_text(&mut fields, text).is_none() {
                fields.extend([0, 0]);
            }
        }
        fields.extend(self.clock_offset.to_le_bytes());
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        fields.push(
            flag(HASHED, self.is_hashed) | flag(MISSING, self.is_missing) | flag(SHARED, self.is_shared),
        );
        let numbers = [self.from.as_nanos(), self.until.as_nanos(), self.dropped, self.lost, self.unnamed];
        fields.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(u32::try_from(fields.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(fields);
        bytes
    }

    pub(crate) fn read(fields: &[u8]) -> Option<Self> {
        let mut fields = RecordingFields(fields);
        let (version, instance) = (fields.text()?.to_owned(), fields.text()?.to_owned());
        let (clock_offset, flags) = (fields.i64()?, fields.u8()?);
        let [is_hashed, is_missing, is_shared] = [HASHED, MISSING, SHARED].map(|flag| flags & flag != 0);
        let (from, until) = (Timestamp::from_nanos(fields.u64()?), Timestamp::from_nanos(fields.u64()?));
        let (dropped, lost, unnamed) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Some(Self {
            version,
            instance,
            clock_offset,
            is_hashed,
            is_shared,
            is_missing,
            from,
            until,
            dropped,
            lost,
            unnamed,
        })
    }
}

// === impl RecordingSnapshot ===

impl RecordingSnapshot {
    pub(crate) fn of(blocks: Vec<Arc<RecordedBlock>>, [dropped, lost, unnamed]: [u64; 3]) -> Self {
        Self { blocks, dropped, lost, unnamed }
    }

    pub fn requests(&self) -> u64 {
        self.blocks.iter().map(|block| block.requests).sum()
    }

    /// Returns the parts of the file, one after the other. Values are hashed under `key`, if there is one.
    pub fn into_parts(self, header: RecordingHeader, key: Option<ValueKey>) -> impl Iterator<Item = Vec<u8>> {
        let header = RecordingHeader {
            is_hashed: key.is_some(),
            from: self.blocks.iter().map(|block| block.begun).min().unwrap_or_default(),
            until: self.blocks.iter().map(|block| block.last).max().unwrap_or_default(),
            dropped: self.dropped,
            lost: self.lost,
            unnamed: self.unnamed,
            ..header
        };
        let blocks = self.blocks.into_iter().map(move |block| block_bytes(&block, key.as_ref()));
        std::iter::once(header.bytes()).chain(blocks)
    }
}

pub(crate) fn block_bytes(block: &RecordedBlock, key: Option<&ValueKey>) -> Vec<u8> {
    let hashed = key.map(|key| hashed(&block.bytes, key));
    let records = hashed.as_ref().unwrap_or(&block.bytes);
    let mut bytes = Vec::with_capacity(BLOCK_HEAD + records.len());
    bytes.extend(u32::try_from(records.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(block.lane.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(block.begun.as_nanos().to_le_bytes());
    bytes.extend_from_slice(records);
    bytes
}

fn hashed(bytes: &[u8], key: &ValueKey) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 2);
    for (record, all) in records(bytes) {
        let begin = out.len();
        if record.kind != DEFINITION {
            out.extend_from_slice(all);
            continue;
        }
        out.extend_from_slice(&all[..HEAD]);
        // a value that becomes too long, and no value that stays as it is: the record is left out, and its number with it,
        // so an empty one takes its place
        if put_hashed(&mut out, &all[HEAD..], record.count, key).is_none() {
            out.truncate(begin + HEAD);
        }
        let length = u32::try_from(out.len() - begin).unwrap_or(u32::MAX).to_le_bytes();
        out[begin..begin + length.len()].copy_from_slice(&length);
    }
    out
}
