//! Resets: the counters of a descriptor become as if they had never counted a hit, at all instances and in the store.
//!
//! An instance that resets tells the others what it is about to clear. Each hears it within a heartbeat, a second: from
//! then on it asks the store for every decision about these counters, and reports what it holds. Then the counters are
//! cleared in the store. Nobody holds hits or leases of before, so that what is admitted afterwards is within the limit.
//! Shortly after that each instance forgets what it knows, and decides as before.

use std::{collections::VecDeque, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{LimitError, Limiter, LoadedRules, find};
use weir_limit::{Entry, LimitCheck, Period, PlaceName, Request, RequestName};
use weir_store::{Store, StoreError, Unreported, clock::Clock};

/// When the counters are cleared after the announcement: a heartbeat, and the time of its reply.
const CLEARED_AFTER: Duration = Duration::from_millis(1_200);

/// When instances forget what they know.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(1_500);

/// When all of them have, whatever their clocks say.
const OVER_AFTER: Duration = Duration::from_millis(1_700);

const TOO_LONG: StoreError = StoreError::Unsupported("instances tell each other of at most 4 KB of entries");

/// What [`Limiter::reset`] has reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetOutcome {
    /// The counters of rules; each may have several tiers.
    pub counters: usize,
    /// The requests in flight that hold no place any more.
    pub places: u64,
    /// Whether all instances have heard of it. Otherwise there is none but this one, or they do not hear each other
    /// through their store.
    pub is_everywhere: bool,
}

/// Why nothing was reset.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResetError {
    /// No rule has a limit for the entries.
    #[error("no rule limits this descriptor")]
    NoLimit,
    /// It cannot be looked up, or the store gives up. In that case counters may have been reset nevertheless.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl<S: Store> Limiter<S> {
    /// Resets the counters of exactly these entries: all tiers, what is in their shadow, shares and requests in flight.
    /// With `older_than`, only requests in flight of that age. Takes almost two seconds if there may be other instances.
    ///
    /// # Errors
    ///
    /// See [`ResetError`].
    pub async fn reset(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        older_than: Option<Period>,
        clock: &dyn Clock,
    ) -> Result<ResetOutcome, ResetError> {
        let request = Request::of(domain, entries);
        let loaded = self.loaded.load_full();
        let (loaded, matched) = find(loaded.as_deref(), &request, LoadedRules::check_values)?;
        let place = loaded.rules.place(domain, entries);
        let checks = if older_than.is_some() { &[] } else { &*matched.checks };
        if checks.is_empty() && place.is_none() {
            return Err(ResetError::NoLimit);
        }
        let mut outcome = ResetOutcome { counters: checks.len(), ..ResetOutcome::default() };
        if !checks.is_empty() {
            outcome.is_everywhere = self.clear(domain, entries, checks, clock).await?;
        }
        if let Some(check) = place {
            let (stats, older_than) = (loaded.places(&check), older_than.unwrap_or_default());
            let freed = self.store.free_places(&check, stats, older_than, clock.now()).await;
            outcome.places = freed.map_err(LimitError::from)?;
            self.asking.places.note_end(check.key, clock.now());
        }
        if !checks.is_empty() {
            self.recorder().append_reset(domain, &request.descriptors[0], clock.now());
        }
        Ok(outcome)
    }

    /// Returns whether all instances have heard of it.
    async fn clear(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        checks: &[LimitCheck<'_>],
        clock: &dyn Clock,
    ) -> Result<bool, LimitError> {
        let note = note_of(domain, entries).ok_or(TOO_LONG)?;
        let begun = Instant::now();
        let is_heard = self.store.announce(&note).await?;
        if is_heard {
            let _held = HeldCounters::new(&self.store, checks, clock);
            sleep_until(begun + CLEARED_AFTER).await;
            self.clear_each(checks, clock).await?;
            sleep_until(begun + OVER_AFTER).await;
        } else {
            self.clear_each(checks, clock).await?;
        }
        // otherwise those that wait learn of it when their hits would have been free anyway
        for check in checks {
            self.asking.ask_now(check.key, clock.now());
        }
        Ok(is_heard)
    }

    async fn clear_each(&self, checks: &[LimitCheck<'_>], clock: &dyn Clock) -> Result<(), LimitError> {
        for check in checks {
            self.store.clear(check, clock.now()).await?;
        }
        Ok(())
    }

    /// Takes part in the resets and recordings that instances announce, one of which this one may be. To be polled while
    /// this instance decides, within a runtime with time.
    pub async fn follow_announcements(&self, clock: &dyn Clock) {
        let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        loop {
            let next = held.front().map(|(until, _)| *until);
            tokio::select! {
                notes = self.store.announcements() => for (age, note) in notes {
                    if self.follow_recording(&note, age, clock.now()) {
                        continue;
                    }
                    let age = Duration::from(age);
                    let unreported = if age < CLEARED_AFTER { Unreported::Sent } else { Unreported::Dropped };
                    self.with_checks_of(&note, |check| self.store.hold_nothing(check, unreported, clock.now()));
                    held.push_back((Instant::now() + FORGOTTEN_AFTER.saturating_sub(age), note));
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let note = held.pop_front().map(|(_, note)| note).unwrap_or_default();
                    self.with_checks_of(&note, |check| {
                        self.store.forget(check, clock.now());
                        self.asking.ask_now(check.key, clock.now());
                    });
                }
            }
        }
    }

    /// By the rules of this instance, which may not be those of the one that wrote `note`.
    fn with_checks_of(&self, note: &[u8], act: impl Fn(&LimitCheck<'_>)) {
        let Some((name, domain)) = std::str::from_utf8(note).ok().and_then(|note| note.split_once('/'))
        else {
            return;
        };
        let Some(name) = RequestName::read(name) else { return };
        let Some(entries) = name.descriptors().next() else { return };
        let request = Request::of(domain, &entries);
        if let Ok((_, matched)) =
            find(self.loaded.load_full().as_deref(), &request, LoadedRules::check_values)
        {
            for check in &matched.checks {
                act(check);
            }
        }
    }
}

/// The counters that a reset is about to clear. They are forgotten when it is dropped.
struct HeldCounters<'a, S: Store> {
    store: &'a S,
    checks: &'a [LimitCheck<'a>],
    clock: &'a dyn Clock,
}

// === impl HeldCounters ===

impl<'a, S: Store> HeldCounters<'a, S> {
    fn new(store: &'a S, checks: &'a [LimitCheck<'a>], clock: &'a dyn Clock) -> Self {
        for check in checks {
            store.hold_nothing(check, Unreported::Sent, clock.now());
        }
        Self { store, checks, clock }
    }
}

impl<S: Store> Drop for HeldCounters<'_, S> {
    fn drop(&mut self) {
        for check in self.checks {
            self.store.forget(check, self.clock.now());
        }
    }
}

/// The entries as in the name of a request in flight, and the domain. None if a name has no room for them.
fn note_of(domain: &str, entries: &[Entry<'_>]) -> Option<Vec<u8>> {
    let name = RequestName::write(PlaceName::NONE, std::iter::once(entries));
    RequestName::read(&name)?.descriptors().next()?;
    Some([&name, "/", domain].concat().into_bytes())
}
