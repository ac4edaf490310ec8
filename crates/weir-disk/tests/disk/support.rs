//! A store on disk in the test's process, with a clock that the test sets.

use std::{
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use weir_disk::{DiskError, DiskSettings, DiskStore, DiskSync, OnDamage};
use weir_limit::{
    Algorithm, Bucket, Calendar, CalendarUnit, CalendarWindows, Decision, Descriptor, Domain, Entry, Hits,
    KeyHasher, Limit, LimitCheck, Matched, OnStoreFailure, OverLimitPolicy, Period, Refill, Request,
    Reservation, ReservationRequest, Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    request_bucket::{BucketName, BucketReply, BucketRequest, Pace, PacedRequest, StepLimit, StepRequest},
};
use weir_observe::Source as _;
use weir_store::{
    Store as _, TakeOptions,
    clock::{Clock as _, ManualClock},
};

/// How long a test waits for an event before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_mins(2);

pub(crate) const DAY: u64 = 86_400;

/// A directory and a clock that survive the stores in them.
pub(crate) struct Disk {
    pub(crate) dir: TempDir,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) settings: DiskSettings,
}

/// A store with rules: each value of the key `k` has the limits `tiers`.
pub(crate) struct Opened {
    pub(crate) store: DiskStore,
    clock: Arc<ManualClock>,
    rules: RuleSet,
    runtime: Runtime,
    hasher: KeyHasher,
}

/// Returns a request for tokens of a bucket of 100, into which one flows each hour.
pub(crate) fn paced(quantity: i64) -> BucketRequest {
    let pace = Pace::new(1, 3_600).expect("a pace");
    BucketRequest::Paced(PacedRequest { capacity: 100, pace, quantity })
}

/// Returns a request for tokens of a bucket of `max`, which is refilled each day.
pub(crate) fn steps(max: u64, take: u64) -> BucketRequest {
    let limit = StepLimit { max, refill: max, period_ms: DAY * 1_000 };
    BucketRequest::Step(StepRequest { limit, take, at: None, strict: false, session: false })
}

/// Returns a tier of each kind, of 100 requests a day.
pub(crate) fn tiers() -> Vec<Tier> {
    let bucket = |refill| Algorithm::TokenBucket(Bucket { burst: 100, refill, strict: false });
    let others = [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket(Refill::Continuous)].map(tier);
    std::iter::once(year("UTC", 0)).chain(others).collect()
}

/// Returns a tier of 100 requests a year, whose windows begin so many hours after 1 January.
pub(crate) fn year(timezone: &str, hours: u64) -> Tier {
    let edges: Vec<_> =
        (0..10).map(|year| Timestamp::from_secs(1_609_459_200 + year * 365 * DAY + hours * 3_600)).collect();
    let calendar = Calendar { timezone: Some(timezone.into()), ..Calendar::new(CalendarUnit::Year) };
    let windows = CalendarWindows::in_force(calendar, &edges, Timestamp::from_secs(1_700_000_000));
    Tier::of_calendar(100, windows.expect("enough edges"))
}

pub(crate) fn tier(algorithm: Algorithm) -> Tier {
    Tier::new(100, Period::from_secs(DAY), algorithm)
}

impl Disk {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = DiskSettings {
            dir: dir.path().join("data"),
            sync: DiskSync::Os,
            interval: Period::from_millis(5),
            on_damage: OnDamage::Refuse,
            max_bytes: None,
            budget: Period::from_secs(60),
            on_store_failure: OnStoreFailure::Local,
            max_counters: 100_000,
        };
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        Self { dir, clock, settings }
    }

    pub(crate) fn try_open(&self) -> Result<DiskStore, DiskError> {
        DiskStore::open(self.settings.clone(), Arc::clone(&self.clock) as _)
    }

    /// Opens it with one limit of the algorithm of fixed windows.
    pub(crate) fn open(&self) -> Opened {
        self.open_with(vec![tier(Algorithm::FixedWindow)])
    }

    pub(crate) fn open_with(&self, tiers: Vec<Tier>) -> Opened {
        let limit =
            Limit::Tiers { tiers: tiers.into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
        let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
        // another secret each time, as in another process
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        let store = self.try_open().unwrap_or_else(|error| panic!("{error}"));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Opened { store, clock: Arc::clone(&self.clock), rules, runtime, hasher: KeyHasher::random() }
    }

    /// Copies the files as they are, which is what a kill leaves, and returns the copy.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self { dir: tempfile::tempdir().expect("a directory"), ..Self::new() };
        let to = copy.dir.path().join("data");
        copy_dir(&self.settings.dir, &to);
        Self {
            settings: DiskSettings { dir: to, ..self.settings.clone() },
            clock: Arc::clone(&self.clock),
            ..copy
        }
    }
}

/// Copies `from`, its files before its directories: a store that writes meanwhile promises only what the engine has.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    let entries = fs::read_dir(from).expect("a directory").map(|entry| entry.expect("an entry").path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let to_of = |path: &Path| to.join(path.file_name().expect("a name"));
    for file in files {
        fs::copy(&file, to_of(&file)).expect("a copy");
    }
    for dir in dirs {
        copy_dir(&dir, &to_of(&dir));
    }
}

impl Opened {
    /// Takes `hits` of a value.
    pub(crate) fn take(&self, value: &str, hits: u32) -> Decision {
        self.take_with(value, hits, TakeOptions::default())
    }

    /// Takes `hits` of a value as `options` say.
    pub(crate) fn take_with(&self, value: &str, hits: u32, options: TakeOptions<'_>) -> Decision {
        self.with_checks(value, hits, |checks| {
            let taken = self.store.take_with(checks, Scope::Descriptor, self.clock.now(), options);
            self.runtime.block_on(taken).expect("a decision")[0]
        })
    }

    /// Takes `hits` of each of `values`, all at once.
    pub(crate) fn take_all(&self, values: &[String], hits: u64) -> Vec<Decision> {
        let request = |value| {
            let entries = [Entry { key: "k", value }].into_iter().collect();
            let descriptor = Descriptor { entries, hits: Some(hits), ..Descriptor::default() };
            Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 0 }
        };
        let requests: Vec<Request<'_>> = values.iter().map(|value| request(value.as_str())).collect();
        let matched: Vec<Matched<'_>> =
            requests.iter().map(|request| Matched::new(&self.rules, request)).collect();
        let now = self.clock.now();
        let taken = matched.iter().map(|matched| self.store.take(&matched.checks, Scope::Descriptor, now));
        let taken = self.runtime.block_on(futures_util::future::join_all(taken));
        taken.into_iter().map(|decisions| decisions.expect("a decision")[0]).collect()
    }

    /// Reserves `hits` of a value.
    pub(crate) fn reserve(&self, value: &str, hits: u32) -> Reservation {
        self.with_checks(value, hits, |checks| {
            let hits = Hits(hits.into());
            let request = ReservationRequest { least: hits, want: hits, hold: Period::from_secs(DAY) };
            let reserved = self.store.reserve(&checks[0], request, self.clock.now());
            self.runtime.block_on(reserved).expect("a reservation")
        })
    }

    fn with_checks<T>(&self, value: &str, hits: u32, act: impl FnOnce(&[LimitCheck<'_>]) -> T) -> T {
        let descriptor = Descriptor {
            entries: [Entry { key: "k", value }].into_iter().collect(),
            hits: Some(u64::from(hits)),
            ..Descriptor::default()
        };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits };
        act(&Matched::new(&self.rules, &request).checks)
    }

    /// Returns the hits that a value has.
    pub(crate) fn hits(&self, value: &str) -> u64 {
        self.take(value, 0).before.0
    }

    /// Decides about the bucket of a key.
    pub(crate) fn ask(&self, key: &[u8], request: &BucketRequest) -> BucketReply {
        let name = BucketName::new(self.hasher, key);
        let decided = self.store.decide_bucket(&name, request, self.clock.now());
        self.runtime.block_on(decided).expect("a reply")
    }

    /// As [`Opened::ask`], on any thread.
    pub(crate) fn ask_blocking(&self, key: &str, request: &BucketRequest) -> BucketReply {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let name = BucketName::new(self.hasher, key.as_bytes());
        let decided = self.store.decide_bucket(&name, request, self.clock.now());
        runtime.block_on(decided).expect("a reply")
    }

    /// Takes tokens of the bucket of a key, and returns those that were there before.
    pub(crate) fn tokens(&self, key: &str, request: &BucketRequest) -> u64 {
        match self.ask(key.as_bytes(), request) {
            BucketReply::Step(reply) => reply.tokens,
            BucketReply::Paced(reply) if reply.limited => reply.remaining,
            BucketReply::Paced(reply) => match request {
                BucketRequest::Paced(paced) => reply.remaining.wrapping_add_signed(paced.quantity),
                BucketRequest::Step(_) => panic!("a reply of another kind"),
            },
        }
    }

    /// Returns the time until all buckets of a key are full, and deletes them if it `deletes`.
    pub(crate) fn find(&self, key: &str, deletes: bool) -> Option<Period> {
        self.find_bytes(key.as_bytes(), deletes)
    }

    pub(crate) fn find_bytes(&self, key: &[u8], deletes: bool) -> Option<Period> {
        let name = BucketName::new(self.hasher, key);
        let found = self.store.find_buckets(&name, deletes, self.clock.now());
        self.runtime.block_on(found).expect("a reply")
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let metrics = self.store.metrics();
        metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name}")).value
    }

    /// Waits until all changes are written.
    pub(crate) fn written(&self) {
        // a batch may have begun before the last change; the one after it has begun later
        for _ in 0..2 {
            let written = self.metric("weir.disk.written");
            self.take("written", 1);
            until("a batch", || self.metric("weir.disk.written") > written);
        }
    }

    /// Closes it as a clean stop does.
    pub(crate) fn close(self) {
        self.runtime.block_on(self.store.close());
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "waited too long for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
