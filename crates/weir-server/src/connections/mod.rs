//! The open connections of all ports, and the memory that they hold.
//!
//! A connection counts what it holds in its own [`ConnectionAccount`]: bytes of unfinished requests, also of their headers, and
//! of responses that the client has not read. It reports the sum whenever it has worked, so a request costs no shared
//! counter. If all connections together hold too much, the one that holds the most is closed: a client that means harm
//! loses its own connections, and no other client notices. If there are too many connections, one that had no request
//! lately is closed for the next one.
//!
//! Clients that have to authenticate first have a small share of both until they have: what they hold and how many they
//! are closes none but their own connections.

mod account;
mod metered;
mod unread;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicIsize, Ordering},
    },
};

use parking_lot::Mutex;

pub(super) use self::{
    account::{AccountHold, CALL, ConnectionAccount, MAX_READ, TooManyBytes},
    metered::Metered,
    unread::UnreadBytes,
};
use super::bounds::{Bound, Bounds, Exceeded};
use weir_observe::{Metric, Source};

/// The connections among which the one to close is chosen if there are too many. Each choice begins at another one.
const SAMPLE: usize = 64;

/// The most connections above the bound: those that were asked to close. Connections above that are not served.
const CLOSING: usize = 64;

#[derive(Debug, Default)]
pub struct Connections {
    bounds: Bounds,
    open: Mutex<OpenConnections>,
    /// Bytes that all connections have reported. Signed: a report and its end may be counted in either order.
    buffered: AtomicIsize,
    /// Bytes that unauthenticated connections have reported, which `buffered` does not include.
    unauthenticated: AtomicIsize,
    exceeded: Arc<Exceeded>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// The accounts of open connections, at stable indexes.
    slots: Vec<Option<Arc<ConnectionAccount>>>,
    free: Vec<usize>,
    closing: usize,
    next_sample: usize,
    /// Connections whose clients have to authenticate, by age, unless they were asked to close.
    unauthenticated: BTreeMap<u64, Arc<ConnectionAccount>>,
    last_number: u64,
}

/// An open connection. Counts as closed when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    account: Arc<ConnectionAccount>,
    connections: Arc<Connections>,
    slot: usize,
}

// === impl Connections ===

impl Connections {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    pub const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub const fn exceeded(&self) -> &Arc<Exceeded> {
        &self.exceeded
    }

    pub fn count(&self) -> usize {
        self.open.lock().count()
    }

    /// Has another one closed if there are too many. None if too many are closing: the caller must not serve this one.
    pub(super) fn open(self: &Arc<Self>) -> Option<Connection> {
        self.add(false)
    }

    /// For a client that has to authenticate first: it has a share of its own until [`Connection::authenticated`].
    pub(super) fn open_unauthenticated(self: &Arc<Self>) -> Option<Connection> {
        self.add(true)
    }

    fn add(self: &Arc<Self>, is_unauthenticated: bool) -> Option<Connection> {
        let mut open = self.open.lock();
        let count = open.count();
        let is_full = count - open.closing >= self.bounds.connections;
        let is_share_full =
            is_unauthenticated && open.unauthenticated.len() >= self.bounds.unauthenticated_connections();
        if is_full || is_share_full {
            let bound = if is_share_full { Bound::UnauthenticatedConnections } else { Bound::Connections };
            self.exceeded.add(bound);
            if count >= self.bounds.connections + CLOSING {
                return None;
            }
            open.close_one();
        }
        let account = Arc::new(ConnectionAccount::new(&self.bounds, Arc::clone(&self.exceeded)));
        let slot = open.insert(Arc::clone(&account));
        if is_unauthenticated {
            open.last_number += 1;
            account.set_number(open.last_number);
            let number = open.last_number;
            open.unauthenticated.insert(number, Arc::clone(&account));
        }
        Some(Connection { account, connections: Arc::clone(self), slot })
    }

    #[cold]
    fn close_largest(&self, is_unauthenticated: bool) {
        let mut open = self.open.lock();
        // another thread may have made room meanwhile
        if !self.is_exceeded(is_unauthenticated) {
            return;
        }
        let largest = if is_unauthenticated {
            open.unauthenticated.values().max_by_key(|account| account.reported()).cloned()
        } else {
            let all = open.slots.iter().flatten();
            let candidates = all.filter(|account| !account.is_closing() && !account.is_unauthenticated());
            candidates.max_by_key(|account| account.reported()).cloned()
        };
        if let Some(largest) = largest {
            let bound = if is_unauthenticated { Bound::UnauthenticatedBytes } else { Bound::BufferedBytes };
            self.exceeded.add(bound);
            open.close(&largest);
            // its memory is free soon; until then no other connection is to blame
            self.subtract(is_unauthenticated, largest.take_reported());
        }
    }

    fn is_exceeded(&self, is_unauthenticated: bool) -> bool {
        let most =
            if is_unauthenticated { self.bounds.unauthenticated_bytes() } else { self.bounds.buffered };
        self.buffered(is_unauthenticated) > most
    }

    fn buffered(&self, is_unauthenticated: bool) -> usize {
        self.sum(is_unauthenticated).load(Ordering::Relaxed).try_into().unwrap_or_default()
    }

    fn subtract(&self, is_unauthenticated: bool, bytes: usize) {
        self.sum(is_unauthenticated).fetch_sub(bytes.cast_signed(), Ordering::Relaxed);
    }

    const fn sum(&self, is_unauthenticated: bool) -> &AtomicIsize {
        if is_unauthenticated { &self.unauthenticated } else { &self.buffered }
    }
}

impl Source for Connections {
    fn metrics(&self) -> Vec<Metric> {
        let open = self.open.lock().count() as u64;
        let buffered = (self.buffered(false) + self.buffered(true)) as u64;
        let mut metrics = vec![
            Metric::gauge("weir.connections.open", "Open connections of all ports.", open),
            Metric::gauge(
                "weir.connections.buffered_bytes",
                "Bytes that connections hold for unfinished requests and unread responses.",
                buffered,
            ),
        ];
        metrics.extend(self.exceeded.metrics());
        metrics
    }
}

// === impl OpenConnections ===

impl OpenConnections {
    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, account: Arc<ConnectionAccount>) -> usize {
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(account);
            return slot;
        }
        self.slots.push(Some(account));
        self.slots.len() - 1
    }

    fn close(&mut self, account: &ConnectionAccount) {
        if account.close() {
            self.closing += 1;
        }
        self.unauthenticated.remove(&account.number());
    }

    /// Chooses the oldest one that has not authenticated, or else one of a sample that had no request, or none lately.
    fn close_one(&mut self) {
        if let Some(oldest) = self.unauthenticated.values().next().cloned() {
            return self.close(&oldest);
        }
        let mut chosen: Option<(u8, Arc<ConnectionAccount>)> = None;
        let (slots, mut sampled) = (self.slots.len(), 0);
        for step in 0..slots {
            if sampled >= SAMPLE && chosen.is_some() {
                break;
            }
            sampled += 1;
            let slot = &self.slots[(self.next_sample + step) % slots];
            if let Some(account) = slot.as_ref().filter(|account| !account.is_closing()) {
                let use_ = account.take_use();
                if chosen.as_ref().is_none_or(|(least, _)| use_ < *least) {
                    chosen = Some((use_, Arc::clone(account)));
                }
            }
        }
        self.next_sample = (self.next_sample + sampled) % slots.max(1);
        if let Some((_, account)) = chosen {
            self.close(&account);
        }
    }
}

// === impl Connection ===

impl Connection {
    pub(super) const fn account(&self) -> &Arc<ConnectionAccount> {
        &self.account
    }

    pub(super) fn authenticated(&self) {
        if !self.account.is_unauthenticated() {
            return;
        }
        let mut open = self.connections.open.lock();
        open.unauthenticated.remove(&self.account.number());
        let reported = self.account.reported();
        self.account.set_number(0);
        self.connections.subtract(true, reported);
        self.connections.buffered.fetch_add(reported.cast_signed(), Ordering::Relaxed);
    }

    /// To be called whenever what the connection holds may have changed. Has the largest closed if all hold too much.
    pub(super) fn report(&self) {
        let Some((before, now)) = self.account.report() else { return };
        let is_unauthenticated = self.account.is_unauthenticated();
        if now < before {
            return self.connections.subtract(is_unauthenticated, before - now);
        }
        let sum = self.connections.sum(is_unauthenticated);
        sum.fetch_add((now - before).cast_signed(), Ordering::Relaxed);
        if self.connections.is_exceeded(is_unauthenticated) {
            self.connections.close_largest(is_unauthenticated);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.slots[self.slot] = None;
        open.free.push(self.slot);
        open.closing -= usize::from(self.account.is_closing());
        open.unauthenticated.remove(&self.account.number());
        drop(open);
        self.connections.subtract(self.account.is_unauthenticated(), self.account.take_reported());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(connections: usize, buffered: usize) -> Arc<Connections> {
        Arc::new(Connections::new(Bounds { connections, buffered, ..Bounds::default() }))
    }

    fn open(connections: &Arc<Connections>) -> Connection {
        connections.open().expect("there is room")
    }

    impl Connections {
        fn unauthenticated(&self) -> usize {
            self.open.lock().unauthenticated.len()
        }
    }

    #[test]
    fn one_connection_too_many_closes_one_that_had_no_request() {
        let connections = connections(3, 1 << 20);
        let all: Vec<Connection> = (0..3).map(|_| open(&connections)).collect();
        for used in [&all[0], &all[2]] {
            used.account().set_used();
        }
        let fourth = open(&connections);
        let closing: Vec<bool> = all.iter().map(|one| one.account().is_closing()).collect();
        assert_eq!((closing, fourth.account().is_closing()), (vec![false, true, false], false));
        assert_eq!(connections.exceeded().get(Bound::Connections), 1);
        drop(all);
        assert_eq!(connections.open.lock().count(), 1);
        assert_eq!(connections.open.lock().closing, 0);
    }

    #[test]
    fn connections_in_use_survive_a_flood_of_others() {
        let connections = connections(200, 1 << 20);
        let used: Vec<Connection> = (0..20).map(|_| open(&connections)).collect();
        let mut flood: Vec<Connection> = Vec::new();
        for _ in 0..2_000 {
            for one in &used {
                one.account().set_used();
            }
            flood.push(open(&connections));
            flood.retain(|one| !one.account().is_closing());
        }
        assert!(used.iter().all(|one| !one.account().is_closing()));
    }

    #[test]
    fn connections_that_do_not_close_keep_out_more() {
        let connections = connections(1, 1 << 20);
        let held: Vec<Connection> = std::iter::from_fn(|| connections.open()).take(1_000).collect();
        assert_eq!(held.len(), 1 + CLOSING);
    }

    #[test]
    fn the_connection_that_holds_the_most_is_closed() {
        let connections = connections(10, 1_000_000);
        let [small, large, other] = [(); 3].map(|()| open(&connections));
        let mut holds = Vec::new();
        for (one, bytes) in [(&small, 100_000), (&large, 700_000), (&other, 300_000)] {
            holds.push(one.account().hold(bytes).expect("below the bound of a connection"));
            one.report();
        }
        let closing = [&small, &large, &other].map(|one| one.account().is_closing());
        assert_eq!(closing, [false, true, false]);
        assert_eq!(connections.buffered(false), 400_000);
        drop(holds);
        for one in [&small, &large, &other] {
            one.report();
        }
        drop((small, large, other));
        assert_eq!(connections.buffered(false), 0);
    }

    #[test]
    fn clients_that_have_not_authenticated_close_their_own_connections() {
        let connections = connections(16, 3_200_000);
        let honest = open(&connections);
        let _large = honest.account().hold(3_000_000).expect("below the bound of a connection");
        honest.report();
        let begun: Vec<Connection> =
            (0..3).map(|_| connections.open_unauthenticated().expect("there is room")).collect();
        let closing =
            |all: &[Connection]| all.iter().map(|one| one.account().is_closing()).collect::<Vec<_>>();
        // there may be two
        assert_eq!((closing(&begun), connections.unauthenticated()), (vec![true, false, false], 2));
        assert_eq!(connections.exceeded().get(Bound::UnauthenticatedConnections), 1);
        let holds: Vec<AccountHold> =
            [60_000, 70_000].map(|bytes| begun[1].account().hold(bytes).expect("there is room")).into();
        begun[1].report();
        assert_eq!((closing(&begun), connections.unauthenticated()), (vec![true, true, false], 1));
        assert_eq!(connections.exceeded().get(Bound::UnauthenticatedBytes), 1);
        // what an authenticated one holds is among that of all others
        let _hold = begun[2].account().hold(90_000).expect("there is room");
        begun[2].report();
        assert_eq!((connections.buffered(true), connections.buffered(false)), (90_000, 3_000_000));
        begun[2].authenticated();
        assert_eq!((connections.buffered(true), connections.buffered(false)), (0, 3_090_000));
        assert_eq!(connections.unauthenticated(), 0);
        assert!(!honest.account().is_closing());
        drop((holds, begun, honest));
        assert_eq!((connections.buffered(true), connections.buffered(false)), (0, 0));
        assert_eq!(connections.count(), 0);
    }

    #[test]
    fn one_connection_too_many_closes_one_that_has_not_authenticated_first() {
        let connections = connections(3, 1 << 20);
        let _idle = [open(&connections), open(&connections)];
        let begun = connections.open_unauthenticated().expect("there is room");
        let _fourth = open(&connections);
        assert!(begun.account().is_closing());
    }
}
