use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use crate::bounds::{Bound, Bounds, Exceeded};

/// The most bytes of unfinished requests of a connection: a few of the largest size.
const MAX_REQUESTS: usize = 32 << 20;

/// The bytes of unread responses above which a connection's requests wait.
const MAX_UNREAD: usize = 8 << 20;

/// The bytes of a request that a server reads before it handles the request: a header of HTTP/1, or a frame.
pub(crate) const MAX_READ: usize = 16 << 10;

/// The memory of a call besides its message and its response, in bytes: its stream, its headers and its future.
pub(crate) const CALL: usize = 6 << 10;

/// What one connection holds. The thread that serves the connection writes all of it, except for the wish to close it.
#[derive(Debug)]
pub(crate) struct ConnectionAccount {
    requests: AtomicUsize,
    max_requests: usize,
    /// Bytes that were read since the last request began: those of the next one's header.
    read: AtomicUsize,
    /// Bytes of all responses so far, and those of them that were written. Both may wrap around.
    responses: AtomicUsize,
    written: AtomicUsize,
    /// The sum of bytes last reported to all connections; [`CLOSED`](Self::CLOSED) once it is no longer counted.
    reported: AtomicUsize,
    /// Increases when the client has accepted something that waited for it.
    progress: AtomicUsize,
    /// Whether the system accepts no more bytes for the client.
    is_blocked: AtomicBool,
    calls_while_blocked: AtomicUsize,
    is_used: AtomicBool,
    is_used_lately: AtomicBool,
    /// The connection's number among those whose clients have to authenticate first; 0 if it is none of them.
    number: AtomicU64,
    is_closing: AtomicBool,
    close: Notify,
    exceeded: Arc<Exceeded>,
}

/// Bytes that a connection holds until this is dropped.
#[derive(Debug)]
pub(crate) struct AccountHold {
    account: Arc<ConnectionAccount>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the unfinished requests of this connection exceed {0} bytes")]
pub(crate) struct TooManyBytes(usize);

// === impl ConnectionAccount ===

impl ConnectionAccount {
    const CLOSED: usize = usize::MAX;

    pub(super) fn new(bounds: &Bounds, exceeded: Arc<Exceeded>) -> Self {
        Self {
            requests: AtomicUsize::new(0),
            max_requests: MAX_REQUESTS.min(bounds.buffered),
            read: AtomicUsize::new(0),
            responses: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            reported: AtomicUsize::new(0),
            progress: AtomicUsize::new(0),
            is_blocked: AtomicBool::new(false),
            calls_while_blocked: AtomicUsize::new(0),
            is_used: AtomicBool::new(false),
            is_used_lately: AtomicBool::new(false),
            number: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            close: Notify::new(),
            exceeded,
        }
    }

    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Result<AccountHold, TooManyBytes> {
        let mut hold = AccountHold { account: Arc::clone(self), bytes: 0 };
        hold.grow_to(bytes)?;
        Ok(hold)
    }

    pub(crate) fn exceeded(&self) -> &Exceeded {
        &self.exceeded
    }

    pub(crate) fn respond(&self, bytes: usize) {
        self.responses.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that `bytes` of a response were written, or are no longer held.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn unread(&self) -> usize {
        self.responses.load(Ordering::Relaxed).wrapping_sub(self.written.load(Ordering::Relaxed))
    }

    pub(crate) fn must_wait(&self) -> bool {
        self.unread() > MAX_UNREAD
    }

    pub(super) fn add_read(&self, bytes: usize) {
        let read = self.read.load(Ordering::Relaxed);
        self.read.store(read.saturating_add(bytes).min(MAX_READ), Ordering::Relaxed);
    }

    pub(crate) fn record_calls(&self, calls: usize) {
        self.set_used();
        if self.is_blocked.load(Ordering::Relaxed) {
            self.calls_while_blocked.fetch_add(calls, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_used(&self) {
        self.read.store(0, Ordering::Relaxed);
        self.is_used.store(true, Ordering::Relaxed);
        self.is_used_lately.store(true, Ordering::Relaxed);
    }

    /// Returns 0 if the connection had no request, 1 if it had none since the last call of this, and 2 otherwise.
    pub(super) fn take_use(&self) -> u8 {
        let lately = self.is_used_lately.swap(false, Ordering::Relaxed);
        u8::from(self.is_used.load(Ordering::Relaxed)) + u8::from(lately)
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// The caller has the lock of all connections.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.number() != 0
    }

    pub(super) fn set_blocked(&self) {
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_writable(&self) {
        if self.is_blocked.load(Ordering::Relaxed) {
            self.is_blocked.store(false, Ordering::Relaxed);
            self.calls_while_blocked.store(0, Ordering::Relaxed);
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether to read nothing more from a client that accepts nothing.
    pub(super) fn must_pause(&self) -> bool {
        const CALLS: usize = 1_024;
        self.is_blocked.load(Ordering::Relaxed)
            && (self.must_wait() || self.calls_while_blocked.load(Ordering::Relaxed) > CALLS)
    }

    /// Waits until the connection must be closed: for what all hold, or since its client reads nothing for `sending`.
    pub(crate) async fn overrun(&self, sending: Duration) {
        tokio::select! {
            () = self.closed() => tracing::debug!("connection closed: it holds the most, or there are too many"),
            () = self.stalled(sending) => tracing::debug!("connection closed: the client reads no responses"),
        }
    }

    /// Waits until the client has accepted nothing for `period` although there is something to send.
    async fn stalled(&self, period: Duration) {
        const STEPS: u32 = 4;
        let progress =
            || self.progress.load(Ordering::Relaxed).wrapping_add(self.written.load(Ordering::Relaxed));
        let (mut last, mut steps) = (progress(), 0);
        while steps < STEPS {
            sleep(period / STEPS).await;
            let owes = self.is_blocked.load(Ordering::Relaxed) || self.unread() > 0;
            let now = progress();
            steps = if owes && now == last { steps + 1 } else { 0 };
            last = now;
        }
        self.exceeded.add(Bound::SendTimeout);
    }

    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    pub(super) fn close(&self) -> bool {
        let was_open = !self.is_closing.swap(true, Ordering::Relaxed);
        self.close.notify_one();
        was_open
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Returns the previous report and this one, if they differ.
    pub(super) fn report(&self) -> Option<(usize, usize)> {
        let calls = self.calls_while_blocked.load(Ordering::Relaxed);
        // a buffer that grows is as large again as what it holds
        let reading = 2 * self.read.load(Ordering::Relaxed);
        let held = self.requests.load(Ordering::Relaxed) + reading + self.unread() + calls * CALL;
        let before = self.reported.load(Ordering::Relaxed);
        if held == before || before == Self::CLOSED {
            return None;
        }
        // it may have been closed meanwhile
        self.reported.compare_exchange(before, held, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some((before, held))
    }

    pub(super) fn reported(&self) -> usize {
        match self.reported.load(Ordering::Relaxed) {
            Self::CLOSED => 0,
            reported => reported,
        }
    }

    /// Returns the last report, and ignores the next ones.
    pub(super) fn take_reported(&self) -> usize {
        match self.reported.swap(Self::CLOSED, Ordering::Relaxed) {
            Self::CLOSED => 0,
            reported => reported,
        }
    }
}

// === impl AccountHold ===

impl AccountHold {
    pub(crate) fn exceeded(&self) -> &Exceeded {
        &self.account.exceeded
    }

    /// Holds `bytes` in all, if that is more than before.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), TooManyBytes> {
        let more = bytes.saturating_sub(self.bytes);
        let account = &self.account;
        if account.requests.load(Ordering::Relaxed).saturating_add(more) > account.max_requests {
            account.exceeded.add(Bound::ConnectionBytes);
            return Err(TooManyBytes(account.max_requests));
        }
        account.requests.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        Ok(())
    }
}

impl Drop for AccountHold {
    fn drop(&mut self) {
        self.account.requests.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Arc<ConnectionAccount> {
        Arc::new(ConnectionAccount::new(&Bounds::default(), Arc::default()))
    }

    #[test]
    fn a_connection_holds_a_bounded_number_of_bytes() {
        let account = account();
        let mut half = account.hold(MAX_REQUESTS / 2).expect("there is room");
        let rest = account.hold(MAX_REQUESTS / 2).expect("there is room");
        assert!(account.hold(1).is_err() && half.grow_to(MAX_REQUESTS / 2 + 1).is_err());
        drop(rest);
        assert!(half.grow_to(MAX_REQUESTS).is_ok());
        assert_eq!(account.exceeded().get(Bound::ConnectionBytes), 2);
        drop(half);
        assert_eq!(account.report(), None);
    }

    #[test]
    fn the_beginning_of_a_request_is_held_until_the_request_begins() {
        let account = account();
        account.add_read(1_000);
        assert_eq!(account.report(), Some((0, 2_000)));
        // more than that is in no buffer
        account.add_read(10 * MAX_READ);
        assert_eq!(account.report(), Some((2_000, 2 * MAX_READ)));
        account.set_used();
        assert_eq!(account.report(), Some((2 * MAX_READ, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_nothing_is_stalled_and_one_that_accepts_little_is_not() {
        let (account, period) = (account(), Duration::from_secs(20));
        let waits = async |seconds| {
            tokio::time::timeout(Duration::from_secs(seconds), account.stalled(period)).await.is_err()
        };
        assert!(waits(100).await, "nothing to send");
        account.respond(100);
        for _ in 0..10 {
            assert!(waits(15).await);
            account.wrote(1);
        }
        assert!(!waits(25).await);
    }
}
