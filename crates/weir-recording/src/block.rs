//! The block that a lane writes: records, and what names the descriptors in them.

use smallvec::SmallVec;
use weir_limit::{CounterKey, Descriptor, Hits, Period, PlaceName, Request, Timestamp};

use crate::definition::{DescriptorText, FirstSight, put_definition};

/// The bytes of a block.
pub(crate) const CAPACITY: usize = 256 << 10;

/// The slots in which a lane finds the descriptors of its block. More of them are defined more than once.
pub(crate) const SLOTS: usize = 4_096;

pub(crate) const DEFINITION: u8 = 0;
pub(crate) const TIME: u8 = 7;

/// The length of what each record begins with.
pub(crate) const HEAD: usize = 8;

/// The same with the time.
const TIMED_HEAD: usize = HEAD + 4;

/// The length of a record with a time that others are differences to.
const TIME_LENGTH: u8 = 16;

/// The length of a descriptor in a record.
pub(crate) const STATUS: usize = 12;

/// The most bytes of a block before a time, which may be needed.
const LAST_HEAD: usize = CAPACITY - TIME_LENGTH as usize;

/// The flags of a record: the request was rejected; it would have been, but for the shadow mode of the service; the name of
/// a request in flight follows; an end undoes a request.
pub(crate) const OVER: u8 = 1;
pub(crate) const SHADOWED: u8 = 2;
pub(crate) const NAMED: u8 = 4;
pub(crate) const UNDONE: u8 = 8;

/// The flags of a descriptor: it was over its limit; gives hits back; says its hits itself; has more than four bytes hold;
/// nothing limits it; the store gave no answer.
pub(crate) const STATUS_OVER: u8 = 1;
pub(crate) const REFUND: u8 = 2;
pub(crate) const OWN_HITS: u8 = 4;
pub(crate) const MANY_HITS: u8 = 8;
pub(crate) const NO_LIMIT: u8 = 16;
pub(crate) const FALLBACK: u8 = 32;

/// What a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedKind {
    /// Descriptors take hits, or look at what is left.
    Decision = 1,
    /// A descriptor gives hits back.
    GiveBack = 2,
    /// A descriptor names a request in flight, which ends.
    End = 3,
    /// A descriptor has the cost of a request that was admitted before.
    Settlement = 4,
    /// A counter was reset.
    Reset = 5,
    /// New rules came into force.
    Reload = 6,
}

/// A request, and what became of it as a whole.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRequest<'a, 'r> {
    pub kind: RecordedKind,
    pub at: Timestamp,
    pub request: &'a Request<'r>,
    pub is_over: bool,
    /// Whether it would have been rejected, but for the shadow mode of the service.
    pub is_shadowed: bool,
    /// Whether it ends a request that was not admitted after all.
    pub is_undone: bool,
    /// The name of the places that it took.
    pub place: Option<PlaceName>,
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordedStatus {
    /// That of its counter, if that has the descriptor's own values.
    pub key: Option<CounterKey>,
    pub is_over: bool,
    /// Whether nothing limits it.
    pub is_free: bool,
    /// Whether the store gave no answer in time.
    pub is_fallback: bool,
    pub remaining: u32,
}

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unwritten {
    Full,
    TooLong,
}

/// A block that is complete.
#[derive(Debug, Default)]
pub(crate) struct RecordedBlock {
    pub(crate) lane: u16,
    pub(crate) begun: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) requests: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Where a block's number of a descriptor is found.
#[derive(Clone, Copy, Debug, Default)]
struct DictionarySlot {
    key: [u64; 2],
    number: u32,
    /// The block that has defined it.
    block: u32,
}

/// The open block of a lane.
#[derive(Debug, Default)]
pub(crate) struct OpenBlock {
    /// Has its bytes once it is complete.
    block: RecordedBlock,
    /// As long as a block may be, once it has begun: so a record finds its room by one comparison.
    buffer: Vec<u8>,
    /// The end of the records in the buffer.
    end: usize,
    /// The time that those of records are differences to.
    base: u64,
    /// The differences that are short enough, and within the time for which requests are recorded: those below it. 0 if
    /// the block has not begun.
    span: u64,
    descriptors: u32,
    /// Counts blocks, from 1, so that no slot has to be emptied.
    number: u32,
    slots: Box<[DictionarySlot]>,
    /// The longest time of a block, so that old requests can go.
    longest: Period,
    /// When recording ends by itself, in nanoseconds since the epoch.
    until: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
const fn slot_of(key: CounterKey) -> usize {
    key.hash() as usize % SLOTS
}

/// Returns the number that the block has for a descriptor.
#[inline]
fn known_number(slots: &[DictionarySlot], block: u32, key: CounterKey) -> Option<u32> {
    let first = slot_of(key);
    let is_known = |slot: &DictionarySlot| slot.key == [key.hash(), key.shard()] && slot.block == block;
    let slot = slots.get(first)?;
    if is_known(slot) {
        return Some(slot.number);
    }
    slots.get(first ^ 1).filter(|slot| is_known(slot)).map(|slot| slot.number)
}

#[inline]
fn bytes_of(words: [u32; 3]) -> [u8; STATUS] {
    let mut bytes = [0; STATUS];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

// === impl RecordedRequest ===

impl<'a, 'r> RecordedRequest<'a, 'r> {
    pub const fn new(kind: RecordedKind, at: Timestamp, request: &'a Request<'r>) -> Self {
        Self { kind, at, request, is_over: false, is_shadowed: false, is_undone: false, place: None }
    }

    fn flags(&self) -> u8 {
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        flag(OVER, self.is_over)
            | flag(SHADOWED, self.is_shadowed)
            | flag(NAMED, self.place.is_some())
            | flag(UNDONE, self.is_undone)
    }
}

// === impl RecordedStatus ===

impl RecordedStatus {
    fn flags(&self, descriptor: &Descriptor<'_>, hits: Hits) -> u8 {
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        flag(STATUS_OVER, self.is_over)
            | flag(REFUND, descriptor.refund)
            | flag(OWN_HITS, descriptor.hits.is_some())
            | flag(MANY_HITS, hits.0 > u64::from(u32::MAX))
            | flag(NO_LIMIT, self.is_free)
            | flag(FALLBACK, self.is_fallback)
    }

    /// What a record has of it. A block has no room for numbers of more than three bytes.
    #[inline]
    fn bytes(&self, number: u32, descriptor: &Descriptor<'_>, (hits, few): (Hits, u32)) -> [u8; STATUS] {
        bytes_of([number | u32::from(self.flags(descriptor, hits)) << 24, few, self.remaining])
    }
}

// === impl OpenBlock ===

impl OpenBlock {
    pub(crate) fn new(lane: u16) -> Self {
        let block = RecordedBlock { lane, ..RecordedBlock::default() };
        Self { block, longest: Period::MAX, until: u64::MAX, ..Self::default() }
    }

    /// Sets the longest time of a block, and when recording ends by itself.
    pub(crate) fn limit(&mut self, longest: Period, until: u64) {
        (self.longest, self.until) = (longest, until);
        if !self.is_empty() {
            self.set_base(self.base);
        }
    }

    /// The block, if it has begun.
    pub(crate) fn begun(&self) -> Option<&RecordedBlock> {
        (!self.is_empty()).then_some(&self.block)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Ends the block.
    pub(crate) fn seal(&mut self) -> RecordedBlock {
        let next = RecordedBlock { lane: self.block.lane, ..RecordedBlock::default() };
        let mut block = std::mem::replace(&mut self.block, next);
        block.bytes = std::mem::take(&mut self.buffer);
        block.bytes.truncate(self.end);
        (self.end, self.span) = (0, 0);
        block
    }

    /// Appends a request. `status_of` tells what became of each of its descriptors, `first_sight` what is known of one
    /// whose definition is written. A full block goes to `sealed`, which returns a buffer for the next one. Returns whether
    /// it was written: it is not if it is longer than a block.
    #[inline]
    pub(crate) fn append(
        &mut self,
        recorded: &RecordedRequest<'_, '_>,
        status_of: impl Fn(usize) -> RecordedStatus,
        first_sight: impl Fn(usize) -> FirstSight,
        mut sealed: impl FnMut(RecordedBlock) -> Vec<u8>,
    ) -> bool {
        for _ in 0..2 {
            match self.try_append(recorded, &status_of, &first_sight) {
                Ok(()) => return true,
                Err(Unwritten::TooLong) => return false,
                Err(Unwritten::Full) => {
                    let block = self.seal();
                    self.buffer = sealed(block);
                }
            }
        }
        false
    }

    fn try_append(
        &mut self,
        recorded: &RecordedRequest<'_, '_>,
        status_of: &impl Fn(usize) -> RecordedStatus,
        first_sight: &impl Fn(usize) -> FirstSight,
    ) -> Result<(), Unwritten> {
        if self.is_empty() {
            self.begin(recorded.at);
        }
        let request = recorded.request;
        let mut statuses: SmallVec<[[u8; STATUS]; 2]> = SmallVec::new();
        let mut many: SmallVec<[u64; 1]> = SmallVec::new();
        for (i, descriptor) in request.descriptors.iter().enumerate() {
            let (status, hits) = (status_of(i), request.hits_of(descriptor));
            let number = self.number_of((request.domain, descriptor), status.key, || first_sight(i))?;
            let few = u32::try_from(hits.0).unwrap_or_else(|_| {
                many.push(hits.0);
                u32::MAX
            });
            statuses.push(status.bytes(number, descriptor, (hits, few)));
        }
        let place = recorded.place.as_ref().map_or(&[][..], |name| name.bytes());
        let length = TIMED_HEAD + STATUS * statuses.len() + 8 * many.len() + place.len();
        let count = u16::try_from(statuses.len()).map_err(|_| Unwritten::TooLong)?;
        self.put_head((recorded.kind as u8, recorded.flags()), length, count, recorded.at)?;
        statuses.iter().for_each(|status| self.put(status));
        many.iter().for_each(|hits| self.put(&hits.to_le_bytes()));
        self.put(place);
        self.block.requests += 1;
        Ok(())
    }

    fn begin(&mut self, at: Timestamp) {
        if self.slots.is_empty() {
            self.slots = vec![DictionarySlot::default(); SLOTS].into_boxed_slice();
        }
        self.buffer.reserve_exact(CAPACITY.saturating_sub(self.buffer.len()));
        self.buffer.resize(CAPACITY, 0);
        (self.block.begun, self.block.last, self.block.requests) = (at, at, 0);
        self.descriptors = 0;
        self.set_base(at.as_nanos());
        self.number = self.number.wrapping_add(1).max(1);
    }

    fn set_base(&mut self, base: u64) {
        self.base = base;
        self.span = self.until.saturating_sub(base).min(1 << 32);
    }

    /// Appends `bytes`, for which there is room.
    fn put(&mut self, bytes: &[u8]) {
        let end = self.end + bytes.len();
        if let Some(room) = self.buffer.get_mut(self.end..end) {
            room.copy_from_slice(bytes);
            self.end = end;
        }
    }

    /// The head of a record of so many bytes. It fits then.
    fn put_head(
        &mut self,
        (kind, flags): (u8, u8),
        length: usize,
        count: u16,
        at: Timestamp,
    ) -> Result<(), Unwritten> {
        if self.end + length > LAST_HEAD {
            return Err(self.too_full());
        }
        let since = if let Some(Ok(since)) = at.as_nanos().checked_sub(self.base).map(u32::try_from) {
            since
        } else {
            if self.block.requests > 0 && at.since(self.block.begun) > self.longest {
                return Err(Unwritten::Full);
            }
            self.put_time(at);
            0
        };
        self.block.last = at;
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let kind = u32::from(kind) | u32::from(flags) << 8 | u32::from(count) << 16;
        self.put(&bytes_of([length, kind, since]));
        Ok(())
    }

    /// Nothing but the record itself may be what fills the block.
    fn too_full(&self) -> Unwritten {
        if self.block.requests == 0 { Unwritten::TooLong } else { Unwritten::Full }
    }

    #[cold]
    fn put_time(&mut self, at: Timestamp) {
        self.set_base(at.as_nanos());
        self.put(&[TIME_LENGTH, 0, 0, 0, TIME, 0, 0, 0]);
        self.put(&at.as_nanos().to_le_bytes());
    }

    fn number_of(
        &mut self,
        text: (&str, &Descriptor<'_>),
        key: Option<CounterKey>,
        first_sight: impl FnOnce() -> FirstSight,
    ) -> Result<u32, Unwritten> {
        let Some(key) = key else { return self.define(text, &first_sight()) };
        if let Some(number) = known_number(&self.slots, self.number, key) {
            return Ok(number);
        }
        let number = self.define(text, &first_sight())?;
        let first = slot_of(key);
        let place = if self.slots[first].block == self.number { first ^ 1 } else { first };
        self.slots[place] = DictionarySlot { key: [key.hash(), key.shard()], number, block: self.number };
        Ok(number)
    }

    /// Appends a request, if the block has its descriptors and there is nothing else to write. Otherwise changes nothing,
    /// and returns false.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub(crate) fn append_known(
        &mut self,
        recorded: &RecordedRequest<'_, '_>,
        descriptors: &[Descriptor<'_>],
        statuses: impl Iterator<Item = RecordedStatus>,
    ) -> bool {
        // a time before the base wraps, and is too late
        let since = recorded.at.as_nanos().wrapping_sub(self.base);
        let end = self.end + TIMED_HEAD + STATUS * descriptors.len();
        if since >= self.span || recorded.place.is_some() {
            return false;
        }
        let Some(record) = self.buffer.get_mut(self.end..end) else { return false };
        let (head, rest) = record.split_at_mut(TIMED_HEAD);
        for ((status, descriptor), bytes) in statuses.zip(descriptors).zip(rest.chunks_exact_mut(STATUS)) {
            let Some(key) = status.key else { return false };
            let Some(number) = known_number(&self.slots, self.number, key) else { return false };
            let hits = recorded.request.hits_of(descriptor);
            let Ok(few) = u32::try_from(hits.0) else { return false };
            bytes.copy_from_slice(&status.bytes(number, descriptor, (hits, few)));
        }
        #[expect(clippy::cast_possible_truncation, reason = "what fits into a block, and is below the span")]
        let (length, count, since) = ((end - self.end) as u32, descriptors.len() as u32, since as u32);
        let kind = recorded.kind as u32 | u32::from(recorded.flags()) << 8 | count << 16;
        head.copy_from_slice(&bytes_of([length, kind, since]));
        self.end = end;
        self.block.last = recorded.at;
        self.block.requests += 1;
        true
    }

    #[cold]
    fn define(
        &mut self,
        (domain, descriptor): (&str, &Descriptor<'_>),
        first: &FirstSight,
    ) -> Result<u32, Unwritten> {
        let entries = &*descriptor.entries;
        let count = u16::try_from(entries.len()).map_err(|_| Unwritten::TooLong)?;
        let text = DescriptorText { domain, entries, limit: descriptor.limit.as_deref() };
        let mut definition = Vec::new();
        let written = put_definition(&mut definition, &text, first);
        let length = HEAD + definition.len();
        let room = CAPACITY - self.end;
        match (written, u32::try_from(length)) {
            (Some(()), Ok(_)) if length > room => Err(self.too_full()),
            (Some(()), Ok(length)) => {
                self.put(&length.to_le_bytes());
                self.put(&[DEFINITION, 0]);
                self.put(&count.to_le_bytes());
                self.put(&definition);
                self.descriptors += 1;
                Ok(self.descriptors - 1)
            }
            _ => Err(Unwritten::TooLong),
        }
    }

    /// Appends the reset of a counter.
    pub(crate) fn append_reset(
        &mut self,
        (domain, descriptor): (&str, &Descriptor<'_>),
        at: Timestamp,
    ) -> bool {
        if self.is_empty() {
            self.begin(at);
        }
        let Ok(number) = self.define((domain, descriptor), &FirstSight::default()) else { return false };
        let is_written = self.put_head((RecordedKind::Reset as u8, 0), TIMED_HEAD + 4, 1, at).is_ok();
        if is_written {
            self.put(&number.to_le_bytes());
        }
        is_written
    }

    /// Appends that new rules came into force.
    pub(crate) fn append_reload(&mut self, at: Timestamp) -> bool {
        if self.is_empty() {
            self.begin(at);
        }
        self.put_head((RecordedKind::Reload as u8, 0), TIMED_HEAD, 0, at).is_ok()
    }
}
