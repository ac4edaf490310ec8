//! What decisions and the threads of the store have in common.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::watch;

use super::{
    engine::Engine,
    error::DiskError,
    expiry::DiskExpiry,
    filter::KeyFilter,
    merge::merge,
    metrics::DiskMetrics,
    notes::{Changed, DiskNotes},
    record::{self, CounterKind},
    settings::DiskSettings,
};
use weir_limit::{CounterKey, Timestamp, algorithm::CounterState, request_bucket::BucketKind};
use weir_store::{MemoryStore, clock::Clock};

/// The most rounds of the writer for which a read waits: counters of decisions that are being made may fill memory.
const MAX_ROUNDS: usize = 16;

/// How often a counter is read again because a batch was written meanwhile. A batch takes much longer than a read.
const MAX_READS: usize = 100;

pub(super) struct SharedDisk {
    pub(super) settings: DiskSettings,
    pub(super) memory: MemoryStore<DiskNotes>,
    /// None while it is opened again. Locked for writing only then.
    pub(super) engine: RwLock<Option<Engine>>,
    pub(super) expiry: Arc<DiskExpiry>,
    pub(super) filter: KeyFilter,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: DiskMetrics,
    /// Batches that were written, or may have been.
    pub(super) batches: AtomicU64,
    /// What the other threads have found to be wrong, for the writer.
    pub(super) trouble: Mutex<Option<DiskError>>,
    pub(super) is_stopping: AtomicBool,
    rounds: Mutex<Rounds>,
    wake_writer: Condvar,
    round_ended: Condvar,
    /// The last round of the writer that wrote all changes made before it.
    pub(super) finished: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rounds {
    begun: u64,
    wanted: u64,
}

impl SharedDisk {
    pub(super) fn new(
        settings: DiskSettings,
        engine: Engine,
        expiry: Arc<DiskExpiry>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            memory: MemoryStore::with_notes(settings.max_counters),
            engine: RwLock::new(Some(engine)),
            expiry,
            filter: KeyFilter::default(),
            clock,
            metrics: DiskMetrics::default(),
            batches: AtomicU64::new(0),
            trouble: Mutex::new(None),
            is_stopping: AtomicBool::new(false),
            rounds: Mutex::default(),
            wake_writer: Condvar::new(),
            round_ended: Condvar::new(),
            finished: watch::Sender::new(0),
            settings,
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        let rounds = self.rounds.lock();
        self.is_stopping.store(true, Ordering::Release);
        self.wake_writer.notify_all();
        drop(rounds);
    }

    /// Returns the number of the round: once it has [finished](SharedDisk::finished), all changes up to now are written.
    pub(super) fn request_round(&self) -> u64 {
        self.want_round(&mut self.rounds.lock())
    }

    fn want_round(&self, rounds: &mut Rounds) -> u64 {
        rounds.wanted = rounds.begun + 1;
        self.wake_writer.notify_all();
        rounds.wanted
    }

    pub(super) fn end_round(&self, round: u64, has_written: bool) {
        if has_written {
            self.finished.send_replace(round);
        }
        self.round_ended.notify_all();
    }

    /// Whether a new counter of `key` has to wait, since too many counters wait to be written.
    pub(super) fn is_crowded(&self, key: CounterKey) -> bool {
        self.memory.is_crowded(key, 2, self.clock.now()) && self.metrics.available.get() == 1
    }

    /// New counters leave a part of the room, so that counters which the disk has need not wait for them.
    pub(super) fn wait_for_room(&self, key: CounterKey) {
        for _ in 0..MAX_ROUNDS {
            let is_full = self.memory.is_crowded(key, 3, self.clock.now());
            if !is_full || self.metrics.available.get() != 1 || self.is_stopping() {
                return;
            }
            let mut rounds = self.rounds.lock();
            self.want_round(&mut rounds);
            self.round_ended.wait_for(&mut rounds, self.settings.interval.into());
        }
    }

    /// Waits for a request, the end of the store, or `interval`. Returns the number of the round.
    pub(super) fn begin_round(&self, interval: Duration) -> u64 {
        let mut rounds = self.rounds.lock();
        let until = std::time::Instant::now() + interval;
        while rounds.wanted <= rounds.begun && !self.is_stopping() {
            if self.wake_writer.wait_until(&mut rounds, until).timed_out() {
                break;
            }
        }
        rounds.begun += 1;
        rounds.begun
    }

    /// Reads a counter, unless memory has its state. If `pinned`, it stays in memory until its [`Pins`] are dropped.
    pub(super) fn load(&self, counter: &Changed, pinned: bool) -> Result<(), DiskError> {
        for _ in 0..MAX_READS {
            let batches = self.batches.load(Ordering::Acquire);
            let mut read = None;
            if self.filter.may_have(&counter.name) {
                read = self.read(counter).inspect_err(|_| self.metrics.read_failures.add(1))?;
                self.metrics.reads.add(1);
            }
            if self.add_to_memory(counter, read, pinned, batches) {
                return Ok(());
            }
        }
        Err(DiskError::engine(&self.settings.dir, "a counter was changed each time it was read"))
    }

    /// Keeps the counters in memory. None if one cannot be read.
    pub(super) fn load_all(self: &Arc<Self>, counters: &[Changed]) -> Option<Pins> {
        let mut pins = Pins { shared: Arc::clone(self), keys: Vec::with_capacity(counters.len()) };
        for counter in counters {
            self.wait_for_room(counter.key);
            self.load(counter, true)
                .inspect_err(|error| tracing::debug!(%error, "cannot read a counter"))
                .ok()?;
            pins.keys.push(counter.key);
        }
        Some(pins)
    }

    /// [`SharedDisk::load`] without a read, for a counter that the disk has not. Returns false if the disk may have it.
    pub(super) fn load_new(&self, counter: &Changed) -> bool {
        let batches = self.batches.load(Ordering::Acquire);
        !self.filter.may_have(&counter.name) && self.add_to_memory(counter, None, true, batches)
    }

    /// Returns false if a batch was written since there were `batches`: it may have changed the counter.
    fn add_to_memory(
        &self,
        counter: &Changed,
        read: Option<CounterState>,
        pinned: bool,
        batches: u64,
    ) -> bool {
        let now = self.clock.now();
        let expiry = read.as_ref().map_or(0, record::expiry);
        let state = read.filter(|state| state.idle_at() > now);
        let pins = u16::from(pinned);
        let notes = DiskNotes { expiry, is_read: true, pins, ..DiskNotes::default() };
        let is_stale = std::cell::Cell::new(false);
        let is_wanted = || {
            // another reader may have added it before, and after a write it may have been evicted again
            is_stale.set(self.batches.load(Ordering::Acquire) != batches);
            !is_stale.get()
        };
        let unused = || counter.kind.unused(now);
        self.memory.insert_if(
            counter.key,
            is_wanted,
            || (state.clone().unwrap_or_else(unused), notes),
            |slot| {
                if !slot.notes.is_read && is_wanted() {
                    if let Some(state) = state.clone() {
                        slot.counter = merge(state, &slot.counter, &counter.kind, now);
                    }
                    slot.notes.is_read = true;
                    slot.notes.expiry = expiry;
                }
                if !is_stale.get() {
                    slot.notes.pins += pins;
                }
            },
        );
        if is_stale.get() {
            return false;
        }
        self.memory.bound(counter.key, now);
        true
    }

    fn with_engine<T>(&self, act: impl FnOnce(&Engine) -> Result<T, DiskError>) -> Result<T, DiskError> {
        let engine = self.engine.read();
        let Some(engine) = engine.as_ref() else {
            return Err(DiskError::engine(&self.settings.dir, "it is being opened again"));
        };
        act(engine).inspect_err(|error| {
            if error.is_damage() {
                self.report(error.clone());
            }
        })
    }

    fn read(&self, counter: &Changed) -> Result<Option<CounterState>, DiskError> {
        let value = self.with_engine(|engine| engine.get(&counter.name))?;
        let Some(value) = value else { return Ok(None) };
        self.decode(&counter.name, value.as_ref(), &counter.kind).map(Some)
    }

    fn decode(&self, name: &[u8], value: &[u8], kind: &CounterKind) -> Result<CounterState, DiskError> {
        let name = String::from_utf8_lossy(name);
        match record::decode(value) {
            Ok(state) if record::fits(&state, kind) => Ok(state),
            Ok(_) => Err(self.wrong_record(format!("the record of {name} is of another kind"))),
            Err(error) => Err(self.wrong_record(format!("the record of {name} cannot be read: {error}"))),
        }
    }

    /// Up to `most` buckets whose keys begin with `prefix` and come after `after`, in the order of their keys.
    pub(super) fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<StoredBucket>, DiskError> {
        let mut records = Vec::new();
        self.with_engine(|engine| {
            engine.visit(prefix, after, |key, value| {
                records.push((Box::<[u8]>::from(key), value.to_vec()));
                records.len() < most
            })
        })
        .inspect_err(|_| self.metrics.read_failures.add(1))?;
        self.metrics.reads.add(records.len() as u64);
        let stored = records.into_iter().map(|(name, value)| {
            let end = std::str::from_utf8(&name[prefix.len()..]).ok();
            let Some(kind) = end.and_then(record::bucket_kind) else {
                let text = String::from_utf8_lossy(&name);
                return Err(self.wrong_record(format!("the record {text} is of no known bucket")));
            };
            let state = self.decode(&name, &value, &CounterKind::Bucket(kind))?;
            Ok(StoredBucket { kind, expiry: record::expiry(&state), idle_at: state.idle_at(), name })
        });
        stored.collect()
    }

    fn wrong_record(&self, what: String) -> DiskError {
        let error = DiskError::damaged(&self.settings.dir, what);
        self.report(error.clone());
        error
    }

    pub(super) fn seconds(&self) -> u32 {
        u32::try_from(self.clock.now().as_nanos() / 1_000_000_000).unwrap_or(u32::MAX)
    }

    pub(super) fn report(&self, error: DiskError) {
        self.trouble.lock().get_or_insert(error);
    }
}

/// A bucket on disk whose parameters come with requests.
pub(super) struct StoredBucket {
    pub(super) name: Box<[u8]>,
    pub(super) kind: BucketKind,
    pub(super) expiry: u32,
    pub(super) idle_at: Timestamp,
}

/// Counters that stay in memory until this is dropped.
pub(super) struct Pins {
    pub(super) shared: Arc<SharedDisk>,
    pub(super) keys: Vec<CounterKey>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        for key in &self.keys {
            self.shared.memory.with_slot(*key, |slot| {
                if let Some(slot) = slot {
                    slot.notes.pins = slot.notes.pins.saturating_sub(1);
                }
            });
        }
    }
}
