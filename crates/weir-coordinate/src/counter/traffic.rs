//! The traffic of a counter with the store: the tries of decisions that wait, and what is on its way.
//!
//! The outcome of a try is set while the counter is locked, so that whoever gives a try up under the lock knows whether
//! it was decided. The caller is woken once the lock is free: on another processor it would otherwise run at once, and
//! wait for the lock.

use std::{
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::ledger::PendingDelta;
use crate::client::Delivery;
use weir_limit::{Decision, Hits, OverLimitPolicy, ReservationRequest, Timestamp};
use weir_store::{
    remote::Target,
    wakeup::{Wakeup, Wakeups},
};

const MAX_TRIES: usize = 4_096;

/// What a try does with its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TryKind {
    /// Takes them. Rejected hits count under [`OverLimitPolicy::Count`].
    Take(OverLimitPolicy),
    /// As `Take`. Leased hits may cover them, and more are leased with them.
    Lease(OverLimitPolicy),
    /// Looks whether they fit, without counting them, after everything that was counted here.
    Look,
    /// Gives them back, for a decision at this instant, whether or not its caller still waits.
    GiveBack(Timestamp),
    Reserve(ReservationRequest),
}

/// What one decision asks the store.
#[derive(Debug)]
pub(crate) struct Try {
    pub(super) id: u32,
    pub(super) target: Arc<Target>,
    pub(super) hits: Hits,
    pub(super) kind: TryKind,
    /// None if it may leave alone.
    pub(super) group: Option<Group>,
    pub(super) outcome: Setter,
}

/// The tries of one request, with no other between them: at most [`Exchange::MAX_RUNS`](weir_store::remote::Exchange).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Adjacent groups have others.
    pub(crate) number: u16,
    pub(crate) all_or_none: bool,
}

/// In order of arrival.
pub(crate) type Tries = SmallVec<[Try; 1]>;

/// Takes eight bytes while there is none.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Option<Box<OpenTraffic>>);

/// The tries of a counter that wait, and its exchanges that are on their way.
#[derive(Debug, Default)]
pub(crate) struct OpenTraffic {
    pub(crate) tries: Tries,
    /// Without a reply yet, oldest first. One of reports alone is not here: it is on its way while these are in flight.
    pub(super) on_way: SmallVec<[OnWay; 1]>,
    /// Most counters have none.
    given_up: Option<Box<SmallVec<[GivenUp; 1]>>>,
    /// Whether the sender has the counter in its queue.
    pub(crate) is_queued: bool,
    /// Whether to request a lease, although no decision waits for them.
    pub(crate) wants_lease: bool,
}

/// Commands of one number that were sent together.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnWay {
    pub(super) number: u32,
    /// Those that have no reply yet.
    pub(super) left: u16,
    pub(super) is_ledger: bool,
    /// Whether a later reply was adopted, which may count the hits to lease: the estimate may have them.
    pub(super) is_overtaken: bool,
    /// Hits that it asks the store to lease.
    pub(super) want: u64,
}

/// A try on its way whose caller has been answered without the store.
#[derive(Debug)]
pub(super) struct GivenUp {
    id: u32,
    hits: Hits,
    /// Hits that were admitted without the store, and are in the estimate.
    admitted: Option<PendingDelta>,
}

/// A decision, and how its hits are given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TryVerdict {
    pub(crate) decision: Decision,
    /// On the clock of its counter.
    pub(crate) at: Timestamp,
    /// Whether its hits are counted, if they are admitted.
    pub(crate) is_counted: bool,
    /// By the store, for a reservation.
    pub(crate) reserved: Hits,
    /// What became of the command, if the hits were counted in the fallback. None if they count where the mode counts.
    pub(crate) fallback: Option<Delivery>,
}

/// The error says whether the store may have counted the hits nevertheless.
pub(crate) type TryOutcome = Result<TryVerdict, Delivery>;

#[derive(Debug)]
enum OutcomeState {
    /// With what wakes the caller, once it was polled.
    Awaited(Option<Wakeup>),
    Set(TryOutcome),
    /// The caller waits no longer, or nobody will set it.
    Over,
}

/// The counter's end, by which the outcome is set. Empty once it was.
#[derive(Debug)]
pub(super) struct Setter(Option<Arc<Mutex<OutcomeState>>>);

/// The caller's end: a future of the outcome, which is none if the counter was evicted. Empty once it was returned.
#[derive(Debug)]
pub(crate) struct PendingOutcome(Option<Arc<Mutex<OutcomeState>>>);

pub(super) fn channel() -> (Setter, PendingOutcome) {
    let state = Arc::new(Mutex::new(OutcomeState::Awaited(None)));
    (Setter(Some(Arc::clone(&state))), PendingOutcome(Some(state)))
}

// === impl Traffic ===

impl Deref for Traffic {
    type Target = OpenTraffic;

    fn deref(&self) -> &OpenTraffic {
        static NONE: LazyLock<OpenTraffic> = LazyLock::new(OpenTraffic::default);
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl Traffic {
    pub(crate) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn open(&mut self) -> &mut OpenTraffic {
        self.0.get_or_insert_default()
    }

    /// Frees it if nothing of it is needed.
    pub(super) fn end(&mut self) {
        let waits = self.is_queued || self.has_wishes();
        self.0.take_if(|traffic| !waits && traffic.on_way.is_empty());
    }

    /// Returns false if too many wait.
    pub(super) fn add(&mut self, next: Try) -> bool {
        let tries = &mut self.open().tries;
        let is_of_group = next.group.is_some() && tries.last().is_some_and(|last| last.group == next.group);
        if tries.len() >= MAX_TRIES && !is_of_group {
            return false;
        }
        tries.push(next);
        true
    }

    pub(crate) fn take_tries(&mut self) -> Tries {
        let Some(traffic) = &mut self.0 else { return Tries::new() };
        traffic.wants_lease = false;
        let tries = std::mem::take(&mut traffic.tries);
        self.end();
        tries
    }

    /// Keeps the tries that `keeps` returns.
    pub(super) fn filter_tries(&mut self, keeps: impl FnMut(Try) -> Option<Try>) {
        let Some(traffic) = &mut self.0 else { return };
        traffic.tries = std::mem::take(&mut traffic.tries).into_iter().filter_map(keeps).collect();
        self.end();
    }

    /// For a reply to exchange `number` that is adopted. Returns whether another one requests a lease.
    pub(super) fn overtake_leases(&mut self, number: u32) -> bool {
        let on_way = self.0.iter_mut().flat_map(|traffic| &mut traffic.on_way);
        on_way.filter(|sent| sent.number != number && sent.want > 0).fold(false, |_, sent| {
            sent.is_overtaken = true;
            true
        })
    }

    /// For a command of exchange `number`.
    pub(super) fn end_command(&mut self, number: u32) {
        let Some(traffic) = &mut self.0 else { return };
        if let Some(i) = traffic.on_way.iter().position(|sent| sent.number == number) {
            traffic.on_way[i].left = traffic.on_way[i].left.saturating_sub(1);
            if traffic.on_way[i].left == 0 {
                traffic.on_way.remove(i);
            }
        }
        if traffic.given_up().is_empty() {
            // before leases arrive, beside which it would take more space
            self.end();
        }
    }

    /// Returns whether the try was sent: then its outcome is still expected. `hits` are none if it gives some back.
    pub(crate) fn give_up(&mut self, id: u32, hits: Option<Hits>) -> bool {
        let Some(traffic) = &mut self.0 else { return false };
        let waiting = traffic.tries.len();
        traffic.tries.retain(|asked| asked.id != id);
        let is_sent = traffic.tries.len() == waiting;
        if is_sent && let Some(hits) = hits {
            traffic.given_up.get_or_insert_default().push(GivenUp { id, hits, admitted: None });
        }
        self.end();
        is_sent
    }

    /// Notes the hits that were `admitted` for try `id` meanwhile.
    pub(super) fn note_admitted(&mut self, id: u32, admitted: Option<PendingDelta>) {
        let given_up = self.0.as_mut().and_then(|traffic| traffic.given_up.as_mut());
        if let Some(given) = given_up.and_then(|all| all.iter_mut().find(|given| given.id == id)) {
            given.admitted = admitted;
        }
    }

    /// Returns the hits that were admitted for try `id` meanwhile.
    pub(super) fn take_given_up(&mut self, id: u32) -> Option<PendingDelta> {
        let given_up = self.0.as_mut()?.given_up.as_mut()?;
        let place = given_up.iter().position(|given| given.id == id)?;
        given_up.swap_remove(place).admitted
    }
}

impl OpenTraffic {
    pub(crate) fn has_wishes(&self) -> bool {
        self.wants_lease || !self.tries.is_empty()
    }

    pub(crate) fn waits_for_call(&self) -> bool {
        self.is_queued && self.has_wishes()
    }

    pub(crate) fn has_to_send(&self) -> bool {
        !self.is_queued && self.has_wishes()
    }

    pub(super) fn requested_hits(&self) -> u64 {
        self.on_way.iter().map(|sent| sent.want).sum()
    }

    pub(crate) fn is_overtaken(&self) -> bool {
        self.on_way.iter().any(|sent| sent.is_overtaken)
    }

    pub(super) fn given_up(&self) -> &[GivenUp] {
        self.given_up.as_ref().map_or(&[], |given_up| given_up)
    }

    pub(crate) fn given_up_hits(&self) -> u64 {
        self.given_up().iter().fold(0, |sum, given| sum.saturating_add(given.hits.0))
    }

    pub(super) fn is_given_up(&self, id: u32) -> bool {
        self.given_up().iter().any(|given| given.id == id)
    }

    pub(super) fn is_admitted_meanwhile(&self, id: u32) -> bool {
        self.given_up().iter().any(|given| given.id == id && given.admitted.is_some())
    }

    /// Hits that were admitted meanwhile.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &PendingDelta> {
        self.given_up().iter().filter_map(|given| given.admitted.as_ref())
    }
}

// === impl Try ===

impl Try {
    pub(super) fn is_awaited(&self) -> bool {
        self.outcome.is_awaited()
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_awaited() || self.gives_back()
    }

    pub(super) const fn gives_back(&self) -> bool {
        matches!(self.kind, TryKind::GiveBack(_))
    }

    pub(super) const fn leases(&self) -> bool {
        matches!(self.kind, TryKind::Lease(_))
    }

    pub(super) const fn looks(&self) -> bool {
        matches!(self.kind, TryKind::Look)
    }

    pub(super) fn succeed(self, verdict: TryVerdict, woken: &mut Wakeups) {
        self.outcome.set(Ok(verdict), woken);
    }

    pub(crate) fn fail(self, delivery: Delivery, woken: &mut Wakeups) {
        self.outcome.set(Err(delivery), woken);
    }
}

// === impl TryVerdict ===

impl TryVerdict {
    pub(crate) const fn new(decision: Decision, at: Timestamp) -> Self {
        Self { decision, at, is_counted: true, reserved: Hits(0), fallback: None }
    }

    pub(crate) fn taken(&self, kind: TryKind, hits: Hits) -> Hits {
        match kind {
            TryKind::Take(_) | TryKind::Lease(_) if self.is_counted && !self.decision.over => hits,
            TryKind::Reserve(_) => self.reserved,
            _ => Hits(0),
        }
    }
}

// === impl Setter ===

impl Setter {
    pub(super) fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|state| matches!(*state.lock(), OutcomeState::Awaited(_)))
    }

    /// Does nothing if the caller waits no longer. `woken` must be woken when the counter is not locked.
    pub(super) fn set(mut self, outcome: TryOutcome, woken: &mut Wakeups) {
        woken.extend(self.end(OutcomeState::Set(outcome)));
    }

    fn end(&mut self, with: OutcomeState) -> Option<Wakeup> {
        let ended = self.0.take()?;
        let mut state = ended.lock();
        match &mut *state {
            OutcomeState::Awaited(wakeup) => {
                let wakeup = wakeup.take();
                *state = with;
                wakeup
            }
            OutcomeState::Set(_) | OutcomeState::Over => None,
        }
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        if let Some(wakeup) = self.end(OutcomeState::Over) {
            wakeup.wake();
        }
    }
}

// === impl PendingOutcome ===

impl PendingOutcome {
    /// Returns the outcome if it is set; otherwise it is not awaited any more.
    pub(crate) fn take_or_leave(&mut self) -> Option<TryOutcome> {
        let left = self.0.take()?;
        let mut state = left.lock();
        if let OutcomeState::Set(outcome) = *state {
            return Some(outcome);
        }
        *state = OutcomeState::Over;
        None
    }
}

impl Future for PendingOutcome {
    type Output = Option<TryOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(awaited) = &self.0 else { return Poll::Ready(None) };
        let outcome = match &mut *awaited.lock() {
            OutcomeState::Awaited(Some(wakeup)) => {
                wakeup.update(context);
                return Poll::Pending;
            }
            OutcomeState::Awaited(none) => {
                *none = Some(Wakeup::of(context));
                return Poll::Pending;
            }
            OutcomeState::Set(outcome) => Some(*outcome),
            OutcomeState::Over => None,
        };
        self.0 = None;
        Poll::Ready(outcome)
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        self.take_or_leave();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The store's thread frees what the thread of a connection has allocated: glibc takes a lock for more.
    #[test]
    fn it_is_one_of_the_chunks_that_any_thread_frees_at_once() {
        assert!(size_of::<OpenTraffic>() <= 120, "{}", size_of::<OpenTraffic>());
    }

    const UNDECIDED: TryOutcome = Err(Delivery::NotApplied);

    #[test]
    fn a_caller_is_woken_by_whoever_has_set_its_outcome() {
        let (woken, mut wakers) = (Arc::<Woken>::default(), Wakeups::new());
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let (setter, mut outcome) = channel();
        assert!(Pin::new(&mut outcome).poll(&mut context).is_pending() && setter.is_awaited());
        setter.set(UNDECIDED, &mut wakers);
        assert_eq!((wakers.len(), woken.0.load(Ordering::Relaxed)), (1, 0));
        assert!(matches!(Pin::new(&mut outcome).poll(&mut context), Poll::Ready(Some(Err(_)))));
        assert!(outcome.take_or_leave().is_none());
    }

    #[test]
    fn whoever_leaves_has_its_outcome_or_is_not_awaited_any_more() {
        let mut wakers = Wakeups::new();
        let (setter, mut outcome) = channel();
        assert!(outcome.take_or_leave().is_none() && !setter.is_awaited());
        setter.set(UNDECIDED, &mut wakers);
        assert!(outcome.take_or_leave().is_none());
        let (setter, mut outcome) = channel();
        setter.set(UNDECIDED, &mut wakers);
        assert!(outcome.take_or_leave().is_some() && wakers.is_empty());
        let (setter, outcome) = channel();
        drop(outcome);
        assert!(!setter.is_awaited());
    }

    #[test]
    fn an_outcome_that_nobody_sets_is_none() {
        let woken = Arc::<Woken>::default();
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let (setter, mut outcome) = channel();
        assert!(Pin::new(&mut outcome).poll(&mut context).is_pending());
        drop(setter);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(matches!(Pin::new(&mut outcome).poll(&mut context), Poll::Ready(None)));
    }
}
