//! A limiter with a clock that the test sets.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use weir_limit::{Descriptor, Entry, KeyHasher, Period, Request, RuleSet, Timestamp};
use weir_limiter::{AcquireError, Acquired, DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{
    MemoryStore, WaitBounds,
    clock::{Clock as _, ManualClock},
};

/// A limiter, its clock and the secret of its keys.
pub(crate) struct Fixture {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) stats: Arc<Stats>,
    hasher: KeyHasher,
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

/// A call of `acquire` that the test polls.
pub(crate) struct Call {
    future: Pin<Box<dyn Future<Output = Result<Acquired, AcquireError>> + Send>>,
    pub(crate) woken: Arc<Woken>,
    outcome: Option<Result<Acquired, AcquireError>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    pub(crate) fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Call ===

impl Call {
    /// Returns the outcome, if the call has ended.
    pub(crate) fn outcome(&mut self) -> Option<&Result<Acquired, AcquireError>> {
        if self.outcome.is_none() {
            let waker = Waker::from(Arc::clone(&self.woken));
            if let Poll::Ready(outcome) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.outcome = Some(outcome);
            }
        }
        self.outcome.as_ref()
    }

    /// Returns what became of the call, which has ended.
    pub(crate) fn acquired(&mut self) -> Acquired {
        match self.outcome() {
            Some(Ok(acquired)) => acquired.clone(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn waits(&mut self) -> bool {
        self.outcome().is_none()
    }

    pub(crate) fn is_admitted(&mut self) -> bool {
        matches!(self.outcome(), Some(Ok(acquired)) if acquired.rejection.is_none())
    }
}

// === impl Fixture ===

impl Fixture {
    pub(crate) fn new(rules: &str) -> Self {
        Self::with_bounds(rules, WaitBounds::default(), DecisionSettings::default())
    }

    pub(crate) fn with_bounds(rules: &str, bounds: WaitBounds, settings: DecisionSettings) -> Self {
        let store = MemoryStore::new(1_000);
        store.wait_room().set_bounds(bounds);
        let stats = Arc::new(Stats::default());
        let limiter = Arc::new(Limiter::new(store, Arc::clone(&stats), settings));
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000_000)));
        let fixture = Self { limiter, clock, stats, hasher: KeyHasher::random() };
        fixture.load(rules);
        fixture
    }

    pub(crate) fn load(&self, rules: &str) {
        let loaded = weir_config::parse("rules", rules).unwrap_or_else(|errors| panic!("{errors}"));
        self.limiter.load(RuleSet::new(&loaded.domains, self.hasher));
    }

    /// Begins a call for `hits` of `entries`, with a wait in milliseconds.
    pub(crate) fn acquire(&self, entries: &'static [&'static str], hits: u64, max_wait: u64) -> Call {
        let (limiter, clock) = (Arc::clone(&self.limiter), Arc::clone(&self.clock));
        let future = Box::pin(async move {
            let request = request(entries, hits);
            let acquired =
                limiter.acquire(&request, Period::from_millis(max_wait), &*clock, |_, acquired| {
                    acquired.clone()
                });
            acquired.await
        });
        let mut call = Call { future, woken: Arc::default(), outcome: None };
        call.outcome();
        call
    }

    /// Returns whether an ordinary caller is admitted.
    pub(crate) fn ask(&self, entries: &[&'static str], hits: u64) -> bool {
        let decided = self.limiter.decide_now(&request(entries, hits), self.clock.now(), |verdict| {
            verdict.code == weir_limit::Code::Ok
        });
        decided.expect("a decision")
    }

    /// Makes all turns of the next `millis` milliseconds, each at its instant.
    pub(crate) fn pass(&self, millis: u64) {
        let end = self.clock.now().after(Period::from_millis(millis));
        self.limiter.serve_waiters(self.clock.now());
        while let Some(next) = self.limiter.store().next_turn().filter(|next| *next <= end) {
            self.clock.set(next.max(self.clock.now()));
            self.limiter.serve_waiters(self.clock.now());
        }
        self.clock.set(end);
    }
}

/// A request with one descriptor for each of `values`, of the key `api`.
fn request(values: &[&'static str], hits: u64) -> Request<'static> {
    let descriptors = values.iter().map(|value| Descriptor {
        entries: [Entry { key: "api", value }].into_iter().collect(),
        hits: Some(hits),
        ..Descriptor::default()
    });
    Request { domain: "partners", descriptors: descriptors.collect(), hits: 0 }
}

/// Rules with this limit for each value of `api`.
pub(crate) fn rules(limit: &str) -> String {
    format!("domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {limit}\n")
}
