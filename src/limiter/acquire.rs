//! Callers that wait: the path of a request that may be decided later.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use super::{LimitError, Limiter, Loaded, validate};
use crate::{
    clock::Clock,
    limit::{
        Code, CounterKey, Decision, Descriptor, Direction, Entry, Hits, LimitCheck, Matched, Period, Request,
        RuleRef, RuleSet, Scope, SharedTiers, Timestamp, Verdict, capacity,
        line::{Answer, Rejection, can_wait},
    },
    store::{Arrival, Decisions, MemoryStore, Receipt, Store, StoreError, TakeOptions, Ticket},
};

/// What became of a request that may wait.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// Why it was rejected; none if it was admitted.
    pub rejection: Option<Rejection>,
    /// The time from its arrival to the decision.
    pub waited: Period,
    /// By which the hits can be given back, if they are not used. None if they cannot be: no limit or several ones
    /// apply, or their counters are not in this process.
    pub receipt: Option<Receipt>,
}

/// Why a request that may wait was not decided.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// As for requests that do not wait.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Several of its descriptors have a limit. Each limit has a line of its own, and two requests in two lines could
    /// wait for each other.
    #[error(
        "{0} descriptors of the request have a limit, and a request can wait for one only: send one \
         descriptor, whose rule may have several tiers, or do not wait"
    )]
    SeveralLimits(usize),
}

/// A caller in a line. Gives its place up when it is dropped.
struct Waiting<'a, C: Clock + ?Sized> {
    store: &'a MemoryStore,
    ticket: Option<Ticket>,
    clock: &'a C,
}

/// The counters that a request waits for.
#[derive(Clone, Copy)]
struct Counted<'a> {
    store: &'a MemoryStore,
    key: CounterKey,
}

impl<S: Store> Limiter<S> {
    /// Decides `request` as [`Limiter::decide`] does, and if it would be rejected only for a while, waits for up to
    /// `max_wait`, in the order of arrival. If it would have to wait for longer, it is rejected at once, with the wait
    /// that it would need. Passes the verdict to `encode`. Whoever drops the future gives the place up.
    ///
    /// Requests without a limit, those in shadow mode, and those of rules for which nobody can wait (strict buckets,
    /// shared limits, limits of the request itself) are decided at once. Waits need [`Limiter::serve_waiters`], which a
    /// [`WaiterThread`](super::WaiterThread) calls.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::decide`]; if several descriptors have a limit; if the store keeps no lines.
    pub async fn acquire<T, C: Clock + ?Sized>(
        &self,
        request: &Request<'_>,
        max_wait: Period,
        clock: &C,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> Result<T, AcquireError> {
        let started = clock.now();
        let mut now = started;
        loop {
            let left = started.after(max_wait).since(now);
            let (counted, ticket) = {
                let loaded = self.current(request)?;
                let matched = Matched::new(&loaded.rules, request);
                let Some((check, store)) = self.line_of(&matched, left)? else { break };
                let counted = Counted { store, key: check.key };
                match store.enter(check, left, now) {
                    Arrival::Waits(ticket) => {
                        // a reload may have missed the line
                        if !self.is_current(&loaded) {
                            self.refresh_lines();
                        }
                        (counted, ticket)
                    }
                    Arrival::Admitted => {
                        let acquired = Acquired::admitted(check, started, now);
                        return Ok(self.report(&loaded, request, counted, &acquired, now, encode));
                    }
                    Arrival::Rejected(rejection) => {
                        let acquired = Acquired::rejected(rejection, started, now);
                        return Ok(self.report(&loaded, request, counted, &acquired, now, encode));
                    }
                }
            };
            let answer = Waiting { store: counted.store, ticket: Some(ticket), clock }.await;
            now = clock.now();
            let loaded = self.current(request)?;
            let acquired = match answer {
                Answer::AskAgain => continue,
                Answer::Rejected(rejection) => Acquired::rejected(rejection, started, now),
                Answer::Admitted(at) => {
                    let matched = Matched::new(&loaded.rules, request);
                    let check = matched.checks.iter().find(|check| check.key == counted.key);
                    match check {
                        Some(check) => Acquired::admitted(check, started, at),
                        None => Acquired { rejection: None, waited: at.since(started), receipt: None },
                    }
                }
            };
            return Ok(self.report(&loaded, request, counted, &acquired, now, encode));
        }
        self.acquire_at_once(request, started, now, encode).await
    }

    /// Makes the turns of all lines that are due at `now`, and applies new rules to them before.
    pub fn serve_waiters(&self, now: Timestamp) {
        let Some(store) = self.store.memory() else { return };
        if self.lines_are_stale.swap(false, Ordering::AcqRel)
            && let Some(loaded) = &*self.loaded.load()
        {
            store.reload_lines(now, |domain, entries| waited_for(&loaded.rules, domain, entries));
        }
        store.serve_lines(now);
    }

    /// Rejects all callers that wait, and from now on those that would have to.
    pub fn close_waiters(&self, now: Timestamp) {
        if let Some(store) = self.store.memory() {
            store.close_lines(now);
        }
    }

    /// Gives the hits of `receipt` back, as far as they still count: to a window that is open, and to a bucket less
    /// what has flowed in since.
    pub fn put_back(&self, receipt: Receipt, now: Timestamp) {
        if let Some(store) = self.store.memory() {
            let loaded = self.loaded.load();
            let rule =
                loaded.as_ref().and_then(|loaded| RuleRef::Compiled(loaded.rules.rules().first()?).id());
            let is_old = rule.is_none_or(|rule| receipt.is_older_than(rule));
            store.put_back(receipt, is_old, now);
        }
    }

    /// Has the lines follow the current rules.
    pub(super) fn refresh_lines(&self) {
        self.lines_are_stale.store(true, Ordering::Release);
        if let Some(store) = self.store.memory() {
            store.timers().ring();
        }
    }

    /// Returns the current rules.
    pub(super) fn current(&self, request: &Request<'_>) -> Result<Arc<Loaded>, LimitError> {
        validate(request)?;
        self.loaded.load_full().ok_or(LimitError::NoRules)
    }

    pub(super) fn is_current(&self, loaded: &Arc<Loaded>) -> bool {
        self.loaded.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, loaded))
    }

    /// Returns the limit in whose line a request waits for up to `max_wait`, and the store that keeps the line; none if
    /// it must be decided at once.
    fn line_of<'a, 'b, 'c>(
        &'a self,
        matched: &'b Matched<'c>,
        max_wait: Period,
    ) -> Result<Option<(&'b LimitCheck<'c>, &'a MemoryStore)>, AcquireError> {
        if max_wait == Period::default() || self.settings.modes.shadow {
            return Ok(None);
        }
        let mut counting = matched.enforced().iter().filter(|check| check.hits > Hits(0));
        let Some(check) = counting.next() else { return Ok(None) };
        if counting.next().is_some() {
            return Err(AcquireError::SeveralLimits(matched.enforced().len()));
        }
        if matched.enforced().len() > 1 || !waits(check) {
            return Ok(None);
        }
        let store = self.store.lines_for(check).map_err(LimitError::from)?;
        Ok(Some((check, store)))
    }

    /// Decides a request that does not wait.
    async fn acquire_at_once<T>(
        &self,
        request: &Request<'_>,
        started: Timestamp,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> Result<T, AcquireError> {
        let (receipt, is_never) = {
            let loaded = self.current(request)?;
            let matched = Matched::new(&loaded.rules, request);
            let only = match matched.enforced() {
                [check] if check.pool.is_none() && check.direction == Direction::Take => Some(check),
                _ => None,
            };
            let in_memory = only.filter(|check| self.store.lines_for(check).is_ok());
            let is_never = |check: &LimitCheck<'_>| check.hits.0 > capacity(check.tiers());
            (in_memory.map(|check| Receipt::new(check, now)), only.is_some_and(is_never))
        };
        let decided = self.decide_with(request, now, TakeOptions::default(), |verdict| {
            let waited = now.since(started);
            let acquired = if verdict.code == Code::Ok {
                // what shadow mode admits is not counted
                let is_counted = verdict.statuses.iter().all(|status| status.code == Code::Ok);
                Acquired {
                    rejection: None,
                    waited,
                    receipt: receipt.filter(|_| is_counted && !verdict.shadowed),
                }
            } else {
                let retry_after = verdict.retry_after().unwrap_or_default();
                let rejection = if is_never { Rejection::Never } else { Rejection::Timeout { retry_after } };
                Acquired { rejection: Some(rejection), waited, receipt: None }
            };
            encode(verdict, &acquired)
        });
        Ok(decided.await?)
    }

    /// Records what became of a request that may wait, and encodes it as the verdict of the rules of `loaded`.
    fn report<T>(
        &self,
        loaded: &Loaded,
        request: &Request<'_>,
        counted: Counted<'_>,
        acquired: &Acquired,
        now: Timestamp,
        encode: impl FnOnce(&Verdict<'_>, &Acquired) -> T,
    ) -> T {
        let matched = Matched::new(&loaded.rules, request);
        let mut decisions: Decisions = matched
            .enforced()
            .iter()
            .map(|check| {
                let looked = counted.store.look(check, Hits(0), now);
                match acquired.rejection {
                    // the rules have changed, and another limit applies
                    _ if check.key != counted.key => looked,
                    None => Decision { before: looked.before.minus(check.hits), ..looked },
                    Some(rejection) => Decision {
                        over: true,
                        reset: match rejection {
                            Rejection::Timeout { retry_after } | Rejection::Full { retry_after } => {
                                retry_after
                            }
                            Rejection::Never | Rejection::Closed => looked.reset,
                        },
                        ..looked
                    },
                }
            })
            .collect();
        // of one descriptor, the rule's line decides, so no other rule rejects what is counted in its shadow
        decisions.extend(counted.store.decide(matched.shadows(), Scope::Descriptor, now));
        self.conclude(loaded, request, &matched, &decisions, now, |verdict| encode(verdict, acquired))
    }
}

impl Limiter<MemoryStore> {
    /// Decides like [`Limiter::acquire`] without a wait.
    pub(super) fn acquire_now(
        &self,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Acquired, AcquireError> {
        let acquired = self.acquire_at_once(request, now, now, |_, acquired| acquired.clone());
        match pin!(acquired).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(acquired) => acquired,
            Poll::Pending => unreachable!("a decision in memory does not wait"),
        }
    }
}

/// Returns whether callers wait for the limit of `check`.
fn waits(check: &LimitCheck<'_>) -> bool {
    let RuleRef::Compiled(_) = &check.rule else { return false };
    check.pool.is_none()
        && check.direction == Direction::Take
        && !check.rule.shadow_mode()
        && can_wait(check.tiers())
}

/// Returns the key and the tiers for which callers with these entries wait by `rules`. None if they do not.
fn waited_for(rules: &RuleSet, domain: &str, entries: &[Entry<'_>]) -> Option<(CounterKey, SharedTiers)> {
    let descriptor = Descriptor { entries: entries.iter().copied().collect(), ..Descriptor::default() };
    let request = Request { domain, descriptors: std::iter::once(descriptor).collect(), hits: 1 };
    let matched = Matched::new(rules, &request);
    let check = matched.checks.first().filter(|check| waits(check))?;
    Some((check.key, check.shared_tiers()))
}

// === impl Acquired ===

impl Acquired {
    fn admitted(check: &LimitCheck<'_>, started: Timestamp, at: Timestamp) -> Self {
        Self { rejection: None, waited: at.since(started), receipt: Some(Receipt::new(check, at)) }
    }

    fn rejected(rejection: Rejection, started: Timestamp, now: Timestamp) -> Self {
        Self { rejection: Some(rejection), waited: now.since(started), receipt: None }
    }
}

// === impl AcquireError ===

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Limit(error.into())
    }
}

// === impl Waiting ===

impl<C: Clock + ?Sized> Future for Waiting<'_, C> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(ticket) = &self.ticket else { return Poll::Ready(Answer::AskAgain) };
        let answer = self.store.poll_place(ticket, context.waker());
        if answer.is_ready() {
            self.ticket = None;
        }
        answer
    }
}

impl<C: Clock + ?Sized> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.store.leave(ticket, self.clock.now());
        }
    }
}
