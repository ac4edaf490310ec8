//! Reads recordings, also damaged ones: what cannot be read is counted.

use std::{cmp::Reverse, collections::BinaryHeap};

use hashbrown::HashMap;
use smallvec::SmallVec;
use weir_limit::{Entry, Hits, PlaceName, Timestamp};

use crate::{
    block::{
        DEFINITION, FALLBACK, HEAD, MANY_HITS, NAMED, NO_LIMIT, OVER, OWN_HITS, REFUND, RecordedKind,
        SHADOWED, STATUS_OVER, TIME, UNDONE,
    },
    definition::Definition,
    fields::RecordingFields,
    file::{BLOCK_HEAD, FORMAT, MAGIC, RecordingHeader},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    #[error("it is no recording: it does not begin with weir-recording")]
    NotOne,
    #[error("its format has the number {0}, and this weir reads {FORMAT} at most: use a newer weir")]
    Newer(u16),
    #[error("its header is damaged")]
    Header,
}

/// A recording in memory.
#[derive(Debug)]
pub struct Recording {
    header: RecordingHeader,
    bytes: Vec<u8>,
    blocks: Vec<BlockPlace>,
    end_of_header: usize,
    /// Whether its end is missing.
    is_truncated: bool,
}

#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    lane: u16,
    base: u64,
    begin: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHead {
    pub(crate) kind: u8,
    flags: u8,
    pub(crate) count: u16,
}

/// What was asked and decided at one time.
#[derive(Debug)]
pub struct RecordedEvent<'m, 'a> {
    /// The recording that has it, by its place among those that are read.
    pub source: usize,
    /// On the clock of the store.
    pub at: Timestamp,
    pub kind: RecordedKind,
    /// Whether the request was rejected.
    pub is_over: bool,
    /// Whether it would have been rejected, but for the shadow mode of the service.
    pub is_shadowed: bool,
    /// Whether it ends a request that was not admitted after all.
    pub is_undone: bool,
    /// The name of the places that it took.
    pub place: Option<PlaceName>,
    pub descriptors: SmallVec<[RecordedDescriptor<'m, 'a>; 2]>,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of the format")]
pub struct RecordedDescriptor<'m, 'a> {
    pub definition: &'m Definition<'a>,
    /// Whether it is the first one with this definition, before which counters were as that says.
    pub is_first: bool,
    pub is_over: bool,
    /// Whether nothing limited it.
    pub is_free: bool,
    /// Whether the store gave no answer in time.
    pub is_fallback: bool,
    pub is_refund: bool,
    pub hits: Hits,
    /// Whether it said its hits itself.
    pub has_own_hits: bool,
    pub remaining: u32,
}

/// The events of several recordings, in the order of their times. Those of one lane stay in their order.
#[derive(Debug)]
pub struct Merged<'a> {
    cursors: Vec<LaneCursor<'a>>,
    /// The time of the next event of each cursor.
    next: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// The cursor of the last event.
    last: Option<usize>,
    names: DescriptorNames<'a>,
    bytes: usize,
    unreadable: u64,
}

#[derive(Debug, Default)]
struct DescriptorNames<'a> {
    numbers: HashMap<&'a [u8], u32, foldhash::fast::RandomState>,
    /// The values of hashes that are known.
    values: HashMap<String, &'a str, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct LaneCursor<'a> {
    source: usize,
    clock_offset: i64,
    /// The last first.
    blocks: Vec<(u64, &'a [u8])>,
    rest: &'a [u8],
    base: u64,
    definitions: Vec<DefinitionInUse<'a>>,
    pending: Option<PendingRecord<'a>>,
    /// What the pending record says of its descriptors.
    statuses: SmallVec<[PendingStatus; 2]>,
    place: Option<PlaceName>,
    read: usize,
}

#[derive(Debug)]
struct DefinitionInUse<'a> {
    /// None if it is damaged.
    definition: Option<Definition<'a>>,
    is_used: bool,
}

#[derive(Clone, Copy, Debug)]
struct PendingRecord<'a> {
    at: Timestamp,
    kind: RecordedKind,
    head: RecordHead,
    /// What follows the time.
    fields: &'a [u8],
}

/// What a record says of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct PendingStatus {
    number: u32,
    flags: u8,
    hits: u64,
    remaining: u32,
    is_first: bool,
}

/// The records of a block, each with all of its bytes. Ends at the first damaged one.
pub(crate) fn records(mut bytes: &[u8]) -> impl Iterator<Item = (RecordHead, &[u8])> {
    std::iter::from_fn(move || {
        let (head, record, rest) = split_record(bytes)?;
        bytes = rest;
        Some((head, record))
    })
}

fn split_record(bytes: &[u8]) -> Option<(RecordHead, &[u8], &[u8])> {
    let mut fields = RecordingFields(bytes);
    let length = usize::try_from(fields.u32()?).ok().filter(|length| *length >= HEAD)?;
    let head = RecordHead { kind: fields.u8()?, flags: fields.u8()?, count: fields.u16()? };
    let (record, rest) = bytes.split_at_checked(length)?;
    Some((head, record, rest))
}

// === impl Recording ===

impl Recording {
    /// Reads the recordings of a file. Of one whose end is missing, that is what is there.
    pub fn read_all(mut bytes: Vec<u8>) -> Result<Vec<Self>, RecordingError> {
        let mut recordings = Vec::new();
        loop {
            let mut recording = Self::read(bytes)?;
            let end = recording.blocks.last().map_or(recording.end_of_header, |block| block.end);
            let has_more = recording.bytes[end..].starts_with(MAGIC);
            bytes = if has_more { recording.bytes.split_off(end) } else { Vec::new() };
            recordings.push(recording);
            if !has_more {
                return Ok(recordings);
            }
        }
    }

    /// Reads the first recording of a file.
    pub fn read(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        let mut fields = RecordingFields(&bytes);
        if fields.bytes(MAGIC.len()) != Some(MAGIC) {
            return Err(RecordingError::NotOne);
        }
        let format = fields.u16().ok_or(RecordingError::Header)?;
        if format > FORMAT {
            return Err(RecordingError::Newer(format));
        }
        let header = fields.u32().and_then(|length| fields.bytes(usize::try_from(length).ok()?));
        let header = header.and_then(RecordingHeader::read).ok_or(RecordingError::Header)?;
        let end_of_header = bytes.len() - fields.0.len();
        let (mut blocks, mut is_truncated) = (Vec::new(), false);
        while !fields.0.is_empty() && !fields.0.starts_with(MAGIC) {
            let begin = bytes.len() - fields.0.len() + BLOCK_HEAD;
            let Some((length, lane, base)) = block_head(&mut fields) else {
                is_truncated = true;
                break;
            };
            is_truncated = length > fields.0.len();
            let length = length.min(fields.0.len());
            blocks.push(BlockPlace { lane, base, begin, end: begin + length });
            fields.bytes(length);
        }
        Ok(Self { header, bytes, blocks, end_of_header, is_truncated })
    }

    pub const fn header(&self) -> &RecordingHeader {
        &self.header
    }

    pub const fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    fn cursors(&self, source: usize) -> impl Iterator<Item = LaneCursor<'_>> {
        let mut lanes: Vec<u16> = self.blocks.iter().map(|block| block.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes.into_iter().map(move |lane| {
            let own = self.blocks.iter().rev().filter(|block| block.lane == lane);
            let blocks = own.map(|block| (block.base, &self.bytes[block.begin..block.end])).collect();
            LaneCursor {
                source,
                clock_offset: self.header.clock_offset,
                blocks,
                rest: &[],
                base: 0,
                definitions: Vec::new(),
                pending: None,
                statuses: SmallVec::new(),
                place: None,
                read: 0,
            }
        })
    }
}

fn block_head(fields: &mut RecordingFields<'_>) -> Option<(usize, u16, u64)> {
    let (length, lane) = (fields.u32()?, fields.u16()?);
    fields.u16()?;
    Some((usize::try_from(length).ok()?, lane, fields.u64()?))
}

// === impl Merged ===

impl<'a> Merged<'a> {
    /// Of `recordings`. `values` are those of hashes that are known.
    pub fn of(recordings: &'a [Recording], values: impl IntoIterator<Item = (String, &'a str)>) -> Self {
        let cursors = recordings.iter().enumerate().flat_map(|(i, recording)| recording.cursors(i)).collect();
        let mut merged = Self {
            cursors,
            next: BinaryHeap::new(),
            last: None,
            names: DescriptorNames { numbers: HashMap::default(), values: values.into_iter().collect() },
            bytes: recordings.iter().map(|recording| recording.bytes.len()).sum(),
            unreadable: 0,
        };
        for cursor in 0..merged.cursors.len() {
            merged.advance(cursor);
        }
        merged
    }

    /// The share that was read, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share to look at")]
    pub fn progress(&self) -> f64 {
        let read: usize = self.cursors.iter().map(|cursor| cursor.read).sum();
        read as f64 / self.bytes.max(1) as f64
    }

    /// The number of records so far that could not be read.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The number of different descriptors so far. Their [numbers](Definition::number) are below it.
    pub fn descriptors(&self) -> usize {
        self.names.numbers.len()
    }

    /// Returns the entries of the descriptors with these numbers, such as `tenant=acme,path=/`, in their order.
    pub fn texts(&self, numbers: &[u32]) -> Vec<String> {
        let mut texts = vec![String::new(); numbers.len()];
        for (names, number) in &self.names.numbers {
            let wanted = numbers.iter().zip(&mut texts).filter(|(wanted, _)| *wanted == number);
            wanted.for_each(|(_, text)| *text = self.names.text(names));
        }
        texts
    }

    /// Not an iterator: an event borrows from what was read.
    #[expect(clippy::should_implement_trait, reason = "its items borrow from it")]
    pub fn next(&mut self) -> Option<RecordedEvent<'_, 'a>> {
        loop {
            if let Some(last) = self.last.take() {
                self.advance(last);
            }
            let Reverse((_, cursor)) = self.next.pop()?;
            self.last = Some(cursor);
            if self.cursors[cursor].read_pending() {
                break;
            }
            self.unreadable += 1;
        }
        self.cursors[self.last?].event()
    }

    fn advance(&mut self, cursor: usize) {
        let lane = &mut self.cursors[cursor];
        self.unreadable += lane.advance(&mut self.names);
        if let Some(pending) = &lane.pending {
            self.next.push(Reverse((pending.at, cursor)));
        }
    }
}

// === impl DescriptorNames ===

impl<'a> DescriptorNames<'a> {
    fn define(&mut self, fields: &'a [u8], entries: u16) -> Option<Definition<'a>> {
        let mut definition = Definition::read(fields, entries, |names| {
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            *self.numbers.entry(names).or_insert(next)
        })?;
        if !self.values.is_empty() {
            for entry in &mut definition.entries {
                entry.value = self.values.get(entry.value).copied().unwrap_or(entry.value);
            }
        }
        Some(definition)
    }
}

impl DescriptorNames<'_> {
    fn text(&self, names: &[u8]) -> String {
        let mut fields = RecordingFields(names);
        fields.text();
        let mut texts = Vec::new();
        while let (Some(key), Some(value)) = (fields.text(), fields.text()) {
            let value = self.values.get(value).copied().unwrap_or(value);
            texts.push(Entry { key, value }.to_string());
        }
        texts.join(",")
    }
}

// === impl LaneCursor ===

impl<'a> LaneCursor<'a> {
    /// Reads up to the next event. Returns the number of damaged records on the way.
    fn advance(&mut self, names: &mut DescriptorNames<'a>) -> u64 {
        self.pending = None;
        let mut damaged = 0;
        while self.pending.is_none() {
            let Some((head, record, rest)) = split_record(self.rest) else {
                damaged += u64::from(!self.rest.is_empty());
                let Some((base, bytes)) = self.blocks.pop() else { return damaged };
                (self.base, self.rest) = (base, bytes);
                self.definitions.clear();
                continue;
            };
            self.read += record.len();
            self.rest = rest;
            damaged += u64::from(self.read_record(head, &record[HEAD..], names).is_none());
        }
        damaged
    }

    /// None if it is damaged.
    fn read_record(
        &mut self,
        head: RecordHead,
        fields: &'a [u8],
        names: &mut DescriptorNames<'a>,
    ) -> Option<()> {
        let mut fields = RecordingFields(fields);
        let kind = match head.kind {
            DEFINITION => {
                let definition = names.define(fields.0, head.count);
                let is_damaged = definition.is_none();
                self.definitions.push(DefinitionInUse { definition, is_used: false });
                return (!is_damaged).then_some(());
            }
            TIME => {
                self.base = fields.u64()?;
                return Some(());
            }
            1 => RecordedKind::Decision,
            2 => RecordedKind::GiveBack,
            3 => RecordedKind::End,
            4 => RecordedKind::Settlement,
            5 => RecordedKind::Reset,
            6 => RecordedKind::Reload,
            // a later kind
            _ => return Some(()),
        };
        let at = self.base.saturating_add(fields.u32()?.into()).saturating_add_signed(self.clock_offset);
        self.pending = Some(PendingRecord { at: Timestamp::from_nanos(at), kind, head, fields: fields.0 });
        Some(())
    }

    /// Reads the pending record. Returns whether all of it is there, and what it needs.
    fn read_pending(&mut self) -> bool {
        self.statuses.clear();
        let Some(pending) = self.pending else { return false };
        self.read_statuses(pending).is_some()
    }

    fn read_statuses(&mut self, PendingRecord { kind, head, fields, .. }: PendingRecord<'a>) -> Option<()> {
        let mut fields = RecordingFields(fields);
        for _ in 0..head.count {
            let status = if kind == RecordedKind::Reset {
                PendingStatus { number: fields.u32()?, ..PendingStatus::default() }
            } else {
                let number = number_of(fields.bytes(3)?)?;
                let (flags, hits, remaining) = (fields.u8()?, fields.u32()?, fields.u32()?);
                PendingStatus { number, flags, hits: hits.into(), remaining, is_first: false }
            };
            self.definitions.get(usize::try_from(status.number).ok()?)?.definition.as_ref()?;
            self.statuses.push(status);
        }
        for status in self.statuses.iter_mut().filter(|status| status.flags & MANY_HITS != 0) {
            status.hits = fields.u64()?;
        }
        self.place = None;
        if head.flags & NAMED != 0 {
            self.place = PlaceName::from_bytes(fields.bytes(PlaceName::LEN)?);
        }
        for status in &mut self.statuses {
            let known = self.definitions.get_mut(usize::try_from(status.number).ok()?)?;
            status.is_first = !std::mem::replace(&mut known.is_used, true);
        }
        Some(())
    }

    fn event(&self) -> Option<RecordedEvent<'_, 'a>> {
        let PendingRecord { at, kind, head, .. } = self.pending?;
        let of = |status: &PendingStatus| {
            let known = self.definitions.get(usize::try_from(status.number).ok()?)?;
            Some(status.of(known.definition.as_ref()?))
        };
        let has = |flag| head.flags & flag != 0;
        Some(RecordedEvent {
            source: self.source,
            at,
            kind,
            is_over: has(OVER),
            is_shadowed: has(SHADOWED),
            is_undone: has(UNDONE),
            place: self.place,
            descriptors: self.statuses.iter().filter_map(of).collect(),
        })
    }
}

/// Of the first three bytes.
fn number_of(bytes: &[u8]) -> Option<u32> {
    let [a, b, c] = *bytes.first_chunk()?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}

// === impl PendingStatus ===

impl PendingStatus {
    const fn of<'m, 'a>(&self, definition: &'m Definition<'a>) -> RecordedDescriptor<'m, 'a> {
        let flags = self.flags;
        RecordedDescriptor {
            definition,
            is_first: self.is_first,
            is_over: flags & STATUS_OVER != 0,
            is_free: flags & NO_LIMIT != 0,
            is_fallback: flags & FALLBACK != 0,
            is_refund: flags & REFUND != 0,
            hits: Hits(self.hits),
            has_own_hits: flags & OWN_HITS != 0,
            remaining: self.remaining,
        }
    }
}
