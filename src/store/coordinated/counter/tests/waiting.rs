//! Decisions that wait for a reply.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Wake, Waker},
};

use futures_util::FutureExt as _;

use super::{
    super::{AwaitedReply, Dropped, records::HeldLease},
    *,
};
use crate::store::coordinated::client::QueuedCommand;

#[test]
fn a_fetch_has_finished_with_its_reply_or_when_a_later_one_has_begun() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    let fetch = fixture.counter.fetch_mut();
    for (is_running, finished) in [(true, [true, false, false]), (false, [true, true, false])] {
        (fetch.round, fetch.is_running) = (4, is_running);
        assert_eq!([3, 4, 5].map(|round| fetch.has_finished(round)), finished, "running: {is_running}");
    }
    // a running one requests other hits
    assert_eq!(fetch.wait_for(Hits(1), Hits(1)).round, 5);
}

/// Nobody would use them.
#[test]
fn the_hits_of_a_decision_that_waits_no_longer_are_not_requested() {
    let mut fixture = Fixture::new(&[fixed(100, 3_600)], 4);
    let waits = |fixture: &mut Fixture, hits| fixture.counter.fetch_mut().wait_for(Hits(hits), Hits(hits));
    let (first, second) = (waits(&mut fixture, 5), waits(&mut fixture, 2));
    fixture.counter.fetch_mut().leave(first);
    assert!(fixture.counter.is_awaited(), "the other decision waits");
    let fetched = fixture.fetch();
    assert_eq!(fetched.want, 2);
    // the hits of the second one are requested already, so they are not those of the third one
    let third = waits(&mut fixture, 2);
    fixture.counter.fetch_mut().leave(second);
    assert!(fixture.counter.is_awaited());
    fixture.counter.fetch_mut().leave(third);
    assert!(!fixture.counter.is_awaited());
    fixture.complete(&fetched);
    assert!(fixture.fetch().command.is_none());
}

#[test]
fn whoever_waits_for_the_next_reply_is_notified_of_it() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert!(fixture.counter.next_reply().is_none(), "no reply is expected");
    fixture.count(1);
    let commands = fixture.take();
    let mut reply = Box::pin(fixture.counter.next_reply().expect("a report is in flight"));
    assert!(reply.as_mut().now_or_never().is_none());
    fixture.deliver(&commands);
    fixture.counter.notify();
    assert!(reply.as_mut().now_or_never().is_some());
    let fetched = fixture.request(1);
    let mut reply = Box::pin(fixture.counter.next_reply().expect("a fetch is running"));
    fixture.complete(&fetched);
    assert!(reply.as_mut().now_or_never().is_none());
    fixture.counter.notify();
    assert!(reply.as_mut().now_or_never().is_some());
    assert!(fixture.counter.next_reply().is_none(), "it was there");
}

/// Whether it was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_decision_whose_reply_somebody_else_applies_is_woken() {
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let queued = || QueuedCommand::unqueued().0;
    // one that was not polled yet will be
    AwaitedReply { queued: queued(), waker: None }.wake();
    AwaitedReply { queued: queued(), waker: Some(Waker::from(Arc::clone(&woken))) }.wake();
    assert!(woken.0.load(Ordering::Relaxed));
}

/// Returns the time since the grant of hits without a hold as of which `hits` are decided 3 ms later.
fn decided_after(fixture: &mut Fixture, hits: u64) -> Period {
    let granted = fixture.now;
    fixture.wait(millis(3));
    let time = fixture.time();
    let (dropped, at) = fixture.counter.expire_leases_after_wait(Hits(hits), true, time);
    assert_eq!(dropped, Dropped::default(), "the lease is still valid");
    at.since(granted)
}

/// The store counts hits without a hold as of their grant, so that the estimate has to do so too.
#[test]
fn a_decision_that_has_waited_for_hits_without_a_hold_is_made_as_of_their_grant() {
    let granted = |tier: Tier, instances, hold| {
        let mut fixture = Fixture::new(&[tier], instances);
        fixture.hold(2, hold);
        fixture
    };
    let none = Period::default();
    for instances in [2, 3] {
        let mut fixture = granted(sliding(100, 60), instances, none);
        assert_eq!(decided_after(&mut fixture, 2), none);
        let mut fixture = granted(sliding(100, 60), instances, none);
        assert_eq!(decided_after(&mut fixture, 1), none);
        let mut fixture = granted(sliding(100, 60), instances, none);
        assert_eq!(decided_after(&mut fixture, 3), millis(3), "they do not cover it");
        let mut fixture = granted(sliding(100, 60), instances, millis(300));
        assert_eq!(decided_after(&mut fixture, 2), millis(3), "with a hold");
    }
    let mut alone = granted(sliding(100, 60), 1, none);
    assert_eq!(decided_after(&mut alone, 2), millis(3), "an instance that is alone decides by its estimate");
    let mut full = granted(sliding(100, 60), 3, none);
    full.count(99);
    assert_eq!(decided_after(&mut full, 2), millis(3), "they do not fit any more");
    let mut none_left = Fixture::new(&[sliding(100, 60)], 3);
    assert_eq!(decided_after(&mut none_left, 1), millis(3), "nothing is leased");
}

/// They count in the window of the grant, which the decision may still use for a moment.
#[test]
fn a_decision_that_has_waited_for_hits_of_a_window_that_has_ended_belongs_to_that_window() {
    for (before, expected) in [(2, 0), (4, 3)] {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
        fixture.wait(millis(60_000 - before));
        fixture.hold(2, Period::default());
        assert_eq!(decided_after(&mut fixture, 2), millis(expected), "{before} ms before the end");
    }
    // after that moment they are lost
    let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
    fixture.wait(millis(59_998));
    fixture.hold(2, Period::default());
    fixture.wait(millis(5));
    let time = fixture.time();
    let (dropped, at) = fixture.counter.expire_leases_after_wait(Hits(2), true, time);
    assert_eq!((dropped.stranded, at, fixture.counter.leased_hits()), (2, fixture.now, 0));
}

/// However late the reply is, and if a lease that is held already has some of them. Others wait for the reply to their own request.
#[test]
fn hits_without_a_hold_whose_reply_is_late_are_used_by_decisions_that_have_waited_for_them() {
    for late in [8, 400] {
        let mut fixture = Fixture::new(&[sliding(100, 60)], 3);
        fixture.hold(1, millis(900));
        fixture.wait(millis(1));
        let granted = fixture.now;
        fixture.hold(2, Period::default());
        fixture.wait(millis(late));
        fixture.counter.note_receipt(granted, fixture.now);
        let time = fixture.time();
        for (hits, has_reply, expected) in
            [(3, false, fixture.now), (4, true, fixture.now), (3, true, granted)]
        {
            let (dropped, at) = fixture.counter.expire_leases_after_wait(Hits(hits), has_reply, time);
            assert_eq!((dropped, at), (Dropped::default(), expected), "{hits} hits, {late} ms late");
        }
        assert!(fixture.decide(2).is_none(), "a new request has only what has a hold");
        let decided = fixture.counter.decide_leased(3, OverLimitPolicy::Ignore, Hits(3), granted);
        assert!(decided.is_some_and(|decision| !decision.over));
        assert!(fixture.counter.leases().is_empty());
        // what is left is given back soon
        fixture.hold(2, Period::default());
        fixture.counter.note_receipt(fixture.now, fixture.now);
        fixture.wait(millis(5));
        fixture.counter.expire_leases(fixture.time());
        assert!(fixture.counter.leases().is_empty() && fixture.counter.has_pending());
    }
}

/// The reply was slower than usual.
#[test]
fn a_lease_that_is_over_when_it_is_received_is_used_by_decisions_that_have_waited_for_it() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 3);
    let granted = fixture.now;
    fixture.hold(5, millis(20));
    fixture.wait(millis(30));
    fixture.counter.note_receipt(granted, fixture.now);
    let (_, at) = fixture.counter.expire_leases_after_wait(Hits(2), true, fixture.time());
    assert_eq!((at, fixture.counter.leased_hits()), (granted, 5));
    assert!(fixture.decide(1).is_none(), "a new request");
    let decided = fixture.counter.decide_leased(3, OverLimitPolicy::Ignore, Hits(2), at);
    assert!(decided.is_some_and(|decision| !decision.over));
    fixture.wait(millis(5));
    fixture.counter.expire_leases(fixture.time());
    assert_eq!((fixture.counter.leased_hits(), fixture.counter.owed_hits().stranded), (0, 3));
}

/// Others have left hits of the window before it.
#[test]
fn a_decision_whose_hits_are_granted_in_a_new_window_belongs_to_it() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
    fixture.wait(millis(59_998));
    for waits in [3, 1] {
        let granted = fixture.now;
        fixture.hold(1, Period::default());
        fixture.wait(millis(waits));
        fixture.counter.note_receipt(granted, fixture.now);
    }
    assert_eq!(fixture.counter.leased_hits(), 2);
    let (_, at) = fixture.counter.expire_leases_after_wait(Hits(1), true, fixture.time());
    assert_eq!(at, fixture.now);
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
}

/// Unless hits of this instance would be missing, or others of it are given back meanwhile.
#[test]
fn the_store_decides_what_would_wait_for_a_second_reply() {
    let mut fixture = Fixture::new(&[sliding(10, 60)], 3);
    assert!(!fixture.counter.needs_second_reply(Hits(1), fixture.now), "no request is running");
    let fetched = fixture.request(2);
    let needs = |fixture: &Fixture, hits| fixture.counter.needs_second_reply(Hits(hits), fixture.now);
    assert_eq!([1, 8, 9].map(|hits| needs(&fixture, hits)), [true, true, false]);
    fixture.give_back(1);
    assert!(!needs(&fixture, 1), "a report has to come first");
    fixture.counter.unacknowledged = super::super::Unacknowledged::default();
    fixture.counter.rare.add_lease(HeldLease::new(Hits(1), fixture.now, fixture.now.after(millis(9))));
    assert!(!needs(&fixture, 2), "a lease has one of them");
    fixture.counter.return_leases();
    fixture.counter.unacknowledged = super::super::Unacknowledged::default();
    assert!(needs(&fixture, 2));
    fixture.complete(&fetched);
    fixture.counter.return_leases();
    assert!(!needs(&fixture, 1));
    // several hits of a window are usually left
    let mut windows = Fixture::new(&[fixed(10, 60)], 3);
    let _ = windows.request(2);
    assert!(!needs(&windows, 5));
}
