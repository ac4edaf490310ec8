//! The ring that keeps the last requests in a bounded memory.
//!
//! Each thread appends to the open block of a lane of its own. A lane that is busy, since a reader takes its block, is no
//! reason to wait: the next one gets the request. A full block goes to the ring, where the oldest one makes room.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use weir_limit::{Descriptor, Period, Timestamp};
use weir_observe::{Metric, Source, sharded::Sharded};

use crate::{
    block::{CAPACITY, OpenBlock, RecordedBlock, RecordedRequest, RecordedStatus, SLOTS},
    definition::FirstSight,
    file::RecordingSnapshot,
};

/// The bytes of a slot.
const SLOT: usize = 24;

/// The full blocks that a lane keeps while the ring is read.
const WAITING: usize = 1;

/// The least number of lanes: so many threads find a free one.
const LANES: usize = 8;

/// A block has such a part of the time for which requests are kept, at most.
const PARTS: u64 = 15;

/// What is recorded from the start, and the memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingSettings {
    /// `WEIR_RECORD`: how long requests are kept. None if they are recorded once somebody asks for it.
    pub keep: Option<Period>,
    /// `WEIR_RECORD_BYTES`: the most bytes of memory.
    pub max_bytes: usize,
}

/// How to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingOrder {
    /// How long requests are kept.
    pub keep: Period,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// Whether downloads may have values.
    pub has_values: bool,
}

/// Whether requests are recorded, and what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingState {
    pub is_on: bool,
    /// When it began; none if it never did.
    pub since: Option<Timestamp>,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// The time of the oldest request.
    pub oldest: Option<Timestamp>,
    /// Whether downloads may have values.
    pub has_values: bool,
    pub max_bytes: u64,
    pub requests: u64,
    /// Those of full blocks.
    pub bytes: u64,
    /// Those that made room for later ones.
    pub dropped: u64,
    /// Those that were not recorded: longer than a block, or while each lane was busy.
    pub lost: u64,
}

/// Records requests while it is on.
#[derive(Debug)]
pub struct Recorder {
    is_on: AtomicBool,
    /// When it ends by itself, in nanoseconds since the epoch.
    until: AtomicU64,
    /// Made when it is first on.
    lanes: OnceLock<Sharded<Mutex<RecordingLane>>>,
    ring: Mutex<BlockRing>,
    max_bytes: usize,
    lost: AtomicU64,
    /// What cannot be recorded since nothing names it.
    unnamed: AtomicU64,
}

#[derive(Debug)]
struct RecordingLane {
    open: OpenBlock,
    waiting: Vec<RecordedBlock>,
}

#[derive(Debug, Default)]
struct BlockRing {
    /// Oldest first.
    blocks: VecDeque<Arc<RecordedBlock>>,
    bytes: usize,
    /// The most of them.
    room: usize,
    requests: u64,
    order: RecordingOrder,
    since: Option<Timestamp>,
    dropped: u64,
}

// === impl RecordingSettings ===

impl RecordingSettings {
    /// [`RecordingSettings::max_bytes`] if nothing sets it, which is the most.
    pub const MAX_BYTES: usize = 64 << 20;

    /// The least [`RecordingSettings::max_bytes`].
    pub const MIN_BYTES: usize = 16 << 20;

    /// How long requests are kept if nothing says it.
    pub const KEEP: Period = Period::from_secs(15 * 60);
}

impl Default for RecordingSettings {
    fn default() -> Self {
        Self { keep: None, max_bytes: Self::MAX_BYTES }
    }
}

// === impl RecordingOrder ===

/// Of what is recorded from the start: without an end, and without values.
impl Default for RecordingOrder {
    fn default() -> Self {
        Self { keep: RecordingSettings::KEEP, until: None, has_values: false }
    }
}

impl RecordingOrder {
    /// What both want.
    fn with(self, other: Self) -> Self {
        Self {
            keep: self.keep.max(other.keep),
            // one that has no end goes on
            until: self.until.zip(other.until).map(|(until, other)| until.max(other)),
            has_values: self.has_values || other.has_values,
        }
    }
}

// === impl Recorder ===

impl Recorder {
    /// It is off.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            until: AtomicU64::new(u64::MAX),
            lanes: OnceLock::new(),
            ring: Mutex::default(),
            max_bytes,
            lost: AtomicU64::new(0),
            unnamed: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records from now on as `order` says, and forgets what was recorded before. If it is on already, it goes on, and follows
    /// the earlier order, too.
    pub fn start(&self, order: RecordingOrder, now: Timestamp) {
        let lanes = self.lanes.get_or_init(|| {
            let next = AtomicU16::new(0);
            Sharded::of_at_least(LANES, || {
                let open = OpenBlock::new(next.fetch_add(1, Ordering::Relaxed));
                Mutex::new(RecordingLane { open, waiting: Vec::new() })
            })
        });
        let was_on = self.is_on();
        if !was_on {
            self.clear(now);
        }
        let of_lanes = lanes.all().count() * (CAPACITY * (1 + WAITING) + SLOTS * SLOT);
        let mut ring = self.ring.lock();
        let order = if was_on { order.with(ring.order) } else { order };
        ring.order = order;
        ring.room = self.max_bytes.saturating_sub(of_lanes).max(CAPACITY);
        drop(ring);
        let until = order.until.map_or(u64::MAX, Timestamp::as_nanos);
        for lane in lanes.all() {
            lane.lock().open.limit(order.keep / PARTS, until);
        }
        self.until.store(until, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Records no more. What was recorded stays.
    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    fn clear(&self, now: Timestamp) {
        for lane in self.lanes.get().into_iter().flat_map(Sharded::all) {
            let mut lane = lane.lock();
            lane.open.seal();
            lane.waiting.clear();
        }
        *self.ring.lock() = BlockRing { since: Some(now), ..BlockRing::default() };
        self.lost.store(0, Ordering::Relaxed);
        self.unnamed.store(0, Ordering::Relaxed);
    }

    pub fn state(&self, now: Timestamp) -> RecordingState {
        if self.is_on() && now.as_nanos() >= self.until.load(Ordering::Relaxed) {
            self.stop();
        }
        let (mut open, mut oldest) = (0, None::<Timestamp>);
        for lane in self.lanes.get().into_iter().flat_map(Sharded::all) {
            let lane = lane.lock();
            for block in lane.waiting.iter().chain(lane.open.begun()) {
                open += block.requests;
                oldest = Some(oldest.map_or(block.begun, |oldest| oldest.min(block.begun)));
            }
        }
        let ring = self.ring.lock();
        RecordingState {
            is_on: self.is_on(),
            since: ring.since,
            until: ring.order.until,
            oldest: ring.blocks.iter().map(|block| block.begun).chain(oldest).min(),
            has_values: ring.order.has_values,
            max_bytes: self.max_bytes as u64,
            requests: ring.requests + open,
            bytes: ring.bytes as u64,
            dropped: ring.dropped,
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Records a request. `status_of` tells what became of each of its descriptors, `first_sight` what is known of one that
    /// the block does not have yet. Waits for nobody.
    #[inline(never)]
    pub fn append(
        &self,
        recorded: &RecordedRequest<'_, '_>,
        status_of: impl Fn(usize) -> RecordedStatus,
        first_sight: impl Fn(usize) -> FirstSight,
    ) {
        let descriptors = &*recorded.request.descriptors;
        if !self.append_known(recorded, descriptors, (0..descriptors.len()).map(&status_of)) {
            self.append_any(recorded, status_of, first_sight);
        }
    }

    /// Records a request, if the open block has its `descriptors`, as it mostly has. Otherwise does nothing, and returns
    /// false.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn append_known(
        &self,
        recorded: &RecordedRequest<'_, '_>,
        descriptors: &[Descriptor<'_>],
        statuses: impl Iterator<Item = RecordedStatus>,
    ) -> bool {
        let Some(lanes) = self.lanes.get() else { return false };
        let Some(mut lane) = lanes.own().try_lock() else { return false };
        lane.open.append_known(recorded, descriptors, statuses)
    }

    #[cold]
    #[inline(never)]
    fn append_any(
        &self,
        recorded: &RecordedRequest<'_, '_>,
        status_of: impl Fn(usize) -> RecordedStatus,
        first_sight: impl Fn(usize) -> FirstSight,
    ) {
        if recorded.at.as_nanos() >= self.until.load(Ordering::Relaxed) {
            return self.stop();
        }
        let Some(mut lane) = self.free_lane() else { return };
        let RecordingLane { open, waiting } = &mut *lane;
        if !open.append(recorded, status_of, first_sight, |block| self.add(block, waiting)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the counters of a descriptor were reset.
    pub fn append_reset(&self, domain: &str, descriptor: &Descriptor<'_>, now: Timestamp) {
        if self.is_on()
            && let Some(mut lane) = self.free_lane()
            && !lane.open.append_reset((domain, descriptor), now)
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that new rules came into force, at the time of the last request. What blocks say of rules is of earlier ones.
    pub fn append_reload(&self) {
        if !self.is_on() {
            return;
        }
        self.seal_all();
        let last = self.ring.lock().blocks.iter().map(|block| block.last).max();
        if let (Some(last), Some(mut lane)) = (last, self.free_lane()) {
            lane.open.append_reload(last);
        }
    }

    /// Counts what cannot be recorded, since nothing names it.
    pub fn note_unnamed(&self) {
        if self.is_on() {
            self.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn free_lane(&self) -> Option<MutexGuard<'_, RecordingLane>> {
        let lanes = self.lanes.get()?;
        if let Some(lane) = lanes.own().try_lock() {
            return Some(lane);
        }
        let other = lanes.all().find_map(Mutex::try_lock);
        if other.is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        other
    }

    /// Gives a block to the ring. Returns a buffer for the next one.
    #[cold]
    fn add(&self, block: RecordedBlock, waiting: &mut Vec<RecordedBlock>) -> Vec<u8> {
        waiting.push(block);
        if let Some(mut ring) = self.ring.try_lock() {
            return waiting.drain(..).fold(Vec::new(), |_, block| ring.add(block));
        }
        if waiting.len() > WAITING {
            let lost = waiting.remove(0);
            self.lost.fetch_add(lost.requests, Ordering::Relaxed);
            return lost.bytes;
        }
        Vec::new()
    }

    /// Ends the blocks of all lanes.
    fn seal_all(&self) {
        for lane in self.lanes.get().into_iter().flat_map(Sharded::all) {
            let mut lane = lane.lock();
            let mut blocks: Vec<RecordedBlock> = lane.waiting.drain(..).collect();
            if !lane.open.is_empty() {
                blocks.push(lane.open.seal());
            }
            drop(lane);
            for mut block in blocks {
                block.bytes.shrink_to_fit();
                self.ring.lock().add(block);
            }
        }
    }

    /// Returns what is there, without a copy.
    pub fn snapshot(&self) -> RecordingSnapshot {
        self.seal_all();
        let ring = self.ring.lock();
        RecordingSnapshot::of(
            ring.blocks.iter().cloned().collect(),
            [ring.dropped, self.lost.load(Ordering::Relaxed), self.unnamed.load(Ordering::Relaxed)],
        )
    }
}

impl Source for Recorder {
    fn metrics(&self) -> Vec<Metric> {
        let (bytes, lost) = (self.ring.lock().bytes as u64, self.lost.load(Ordering::Relaxed));
        vec![
            Metric::gauge("weir.recording.bytes", "Bytes of recorded requests.", bytes),
            Metric::gauge("weir.recording.lost", "Requests that were not recorded.", lost),
        ]
    }
}

// === impl BlockRing ===

impl BlockRing {
    /// Returns a buffer that is free.
    fn add(&mut self, block: RecordedBlock) -> Vec<u8> {
        let oldest_kept = block.last.before(self.order.keep);
        self.bytes += block.bytes.capacity();
        self.requests += block.requests;
        self.blocks.push_back(Arc::new(block));
        let mut free = Vec::new();
        while self.blocks.len() > 1
            && self.blocks.front().is_some_and(|oldest| self.bytes > self.room || oldest.last < oldest_kept)
        {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.bytes -= oldest.bytes.capacity();
            self.requests -= oldest.requests;
            self.dropped += oldest.requests;
            // otherwise somebody reads it
            if let Ok(oldest) = Arc::try_unwrap(oldest)
                && oldest.bytes.capacity() >= CAPACITY
            {
                free = oldest.bytes;
            }
        }
        free
    }
}
