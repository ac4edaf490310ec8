//! Hits of a key that has hardly any, each requested for its decision alone.

use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot::Sender;

use super::{
    super::{SingleCommand, SingleReply},
    *,
};
use crate::store::coordinated::client::{QueuedCommand, QueuedOutcome};

impl Fixture {
    /// Requests a hit for its decision alone.
    fn request_single(&mut self) -> SingleCommand {
        self.counter.demand.record(1, self.now);
        self.counter.single_command(Hits(1), millis(50), self.now).expect("it is the first hit")
    }

    /// Has the store carry out `single`.
    fn execute_single(&mut self, single: &SingleCommand) -> Reply {
        self.store.execute(&single.command, self.now)
    }

    /// Awaits the reply to the single request. Returns what it is sent with.
    fn await_single(&mut self) -> Sender<QueuedOutcome> {
        let (queued, sender) = QueuedCommand::unqueued();
        self.counter.await_single(queued);
        sender
    }

    /// Applies `reply` to `single`, whose decision uses one of the granted hits.
    fn apply_single(&mut self, single: &SingleCommand, reply: &Reply) {
        self.counter.apply_single(reply, single.number, reply.granted.saturating_sub(1), self.now);
    }

    fn remaining(&self) -> u64 {
        self.counter.remaining(self.now)
    }
}

/// Of several instances, and of one that is alone, which lease ten hits ahead.
const FAR: [(u32, usize); 2] = [(3_000, 3), (80, 1)];
const AHEAD: u64 = 10;

#[test]
fn what_is_leased_ahead_with_a_single_hit_is_held() {
    for (limit, instances) in FAR {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        assert_eq!(single.want, 1 + AHEAD);
        assert!(!fixture.counter.is_settled() && fixture.counter.is_unsettled(START));
        assert!(fixture.counter.single_command(Hits(1), millis(50), START).is_none(), "one at a time");
        let reply = fixture.execute_single(&single);
        fixture.apply_single(&single, &reply);
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (AHEAD, u64::from(limit) - 1));
        assert!(!fixture.counter.has_pending(), "nothing has to be read");
        for _ in 0..AHEAD {
            assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        }
        assert!(fixture.counter.is_settled());
        assert_eq!((fixture.remaining(), u64::from(fixture.left_in_store())), {
            let left = u64::from(limit) - 1 - AHEAD;
            (left, left)
        });
    }
}

/// The reply to a later command arrives first. It counts the hits that are leased ahead, which are nobody else's.
#[test]
fn a_reply_that_overtakes_a_single_one_does_not_count_what_is_leased_ahead() {
    for (limit, instances) in FAR {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        let late = fixture.execute_single(&single);
        // the two hits that are requested next are covered by what is ahead of the first
        let fetched = fixture.request(2);
        assert_eq!((fetched.want, fixture.complete(&fetched)), (2, 2));
        let left = u64::from(limit) - 1;
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (2, left));
        fixture.apply_single(&single, &late);
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (2 + AHEAD, left));
        // the count is read again, in case that the estimate is not right
        assert!(fixture.counter.has_pending());
        fixture.flush();
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (2 + AHEAD, left));
    }
}

/// The request is of the window before.
#[test]
fn a_reply_of_the_next_window_does_not_count_a_single_request() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let single = fixture.request_single();
    let late = fixture.execute_single(&single);
    fixture.wait(Period::from_secs(3_600));
    fixture.take_elsewhere(20);
    fixture.read();
    assert_eq!(fixture.remaining(), 2_980);
    fixture.apply_single(&single, &late);
    assert_eq!(fixture.remaining(), 2_980);
}

/// Hits of earlier requests are given back while it is in flight. The store must not give back what it grants with them.
#[test]
fn hits_given_back_meanwhile_do_not_take_what_is_granted_along() {
    for (limit, instances) in FAR {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        fixture.give_back(5);
        assert!(fixture.counter.has_pending() && !fixture.counter.can_flush(), "its reply first");
        assert!(fixture.flush().is_empty() && fixture.counter.must_wait_for_reply(instances));
        let reply = fixture.execute_single(&single);
        fixture.apply_single(&single, &reply);
        assert!(fixture.counter.can_flush());
        fixture.flush();
        let left = u64::from(limit) - 1;
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (AHEAD, left));
        assert_eq!(u64::from(fixture.left_in_store()), left - AHEAD);
    }
}

/// An instance that is alone reports them after the reply, so that its estimate stays exact.
#[test]
fn hits_counted_meanwhile_are_reported() {
    for (limit, instances) in FAR {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        fixture.count(5);
        assert_eq!(fixture.flush().is_empty(), instances == 1);
        let reply = fixture.execute_single(&single);
        fixture.apply_single(&single, &reply);
        // the flush has overtaken the single request
        assert!(fixture.counter.can_flush());
        fixture.flush();
        let left = u64::from(limit) - 6;
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (AHEAD, left));
        assert_eq!(u64::from(fixture.left_in_store()), left - AHEAD);
    }
}

/// What it would have been granted was never granted, or in the window before.
#[test]
fn hits_given_back_beside_a_request_that_fails_or_is_of_another_window_change_nothing_else() {
    for (limit, instances) in FAR {
        for fails in [true, false] {
            let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
            let single = fixture.request_single();
            let late = fixture.execute_single(&single);
            if fails {
                // as if it had not been carried out
                fixture.store = SimulatedServer::default();
                fixture.give_back(1);
                fixture.counter.end_single(single.number);
            } else {
                fixture.wait(Period::from_secs(3_600));
                fixture.give_back(1);
                fixture.counter.apply_single(&late, single.number, AHEAD, START);
            }
            fixture.flush();
            assert_eq!(fixture.left_in_store(), limit, "{fails}");
        }
    }
}

#[test]
fn a_request_that_has_failed_after_a_later_reply_has_the_count_read_again() {
    for (limit, ahead) in [(3_000, AHEAD), (50, 0)] {
        for is_overtaken in [false, true] {
            let mut fixture = Fixture::new(&[fixed(limit, 3_600)], 3);
            let single = fixture.request_single();
            let mut left = u64::from(limit);
            if is_overtaken {
                fixture.take_elsewhere(20);
                fixture.read();
                left -= 20;
                assert_eq!(fixture.remaining(), left + ahead);
            }
            fixture.counter.end_single(single.number);
            assert_eq!(fixture.counter.has_pending(), is_overtaken && ahead > 0);
            fixture.flush();
            assert_eq!(fixture.remaining(), left);
        }
    }
}

/// A flush may have been carried out before, although it has a later number.
#[test]
fn a_reply_that_is_overtaken_has_the_count_read_again_unless_the_other_one_counts_its_hit() {
    for is_flush in [false, true] {
        let mut fixture = Fixture::new(&[fixed(50, 3_600)], 3);
        let single = fixture.request_single();
        if is_flush {
            fixture.count(5);
            let commands = fixture.take();
            fixture.deliver(&commands);
        }
        let late = fixture.execute_single(&single);
        if !is_flush {
            fixture.read();
        }
        fixture.apply_single(&single, &late);
        assert_eq!(fixture.counter.has_pending(), is_flush);
        fixture.flush();
        assert_eq!(fixture.remaining(), if is_flush { 44 } else { 49 });
    }
}

/// Whatever the limit, an instance that stops has to wait for what is granted.
#[test]
fn a_cancelled_decision_leaves_all_of_its_hits_to_others() {
    for (limit, instances, ahead) in [(5, 1, 0), (5, 3, 0), (80, 1, AHEAD), (3_000, 3, AHEAD)] {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        let _sender = fixture.await_single();
        assert!(fixture.counter.take_single_reply(Some(single.number + 1)).is_none(), "that is another one");
        let taken = fixture.counter.take_single_reply(Some(single.number)).expect("it is awaited");
        assert_eq!((taken.0, taken.1), (single.number, 1 + ahead));
        assert!(fixture.counter.take_single_reply(None).is_none(), "somebody receives it");
        assert!(!fixture.counter.is_settled());
        let reply = fixture.execute_single(&single);
        fixture.read();
        assert_eq!(fixture.remaining(), u64::from(limit));
        fixture.counter.apply_single(&reply, single.number, reply.granted, fixture.now);
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (1 + ahead, u64::from(limit)));
        fixture.counter.return_leases();
        fixture.flush();
        assert!(fixture.counter.is_settled());
        assert_eq!(fixture.left_in_store(), limit);
    }
}

#[test]
fn a_decision_is_woken_by_its_reply_wherever_that_is_received() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let context = &mut Context::from_waker(Waker::noop());
    let single = fixture.request_single();
    let reply = fixture.execute_single(&single);
    assert!(fixture.counter.next_reply().is_some(), "others can wait for it");
    let mut poll = |fixture: &mut Fixture| fixture.counter.poll_single(single.number, context);
    let sender = fixture.await_single();
    assert!(poll(&mut fixture).is_pending());
    let (_, _, awaited) = fixture.counter.take_single_reply(None).expect("it is awaited");
    assert!(awaited.waker.is_some(), "its decision was polled");
    assert!(matches!(poll(&mut fixture), Poll::Ready(SingleReply::Other(_))));
    // or by itself
    fixture.counter.await_single(awaited.queued);
    sender.send(Ok((reply.clone(), fixture.now))).expect("it is awaited");
    let polled = poll(&mut fixture);
    assert!(matches!(polled, Poll::Ready(SingleReply::Own(Some(Ok((own, _))))) if own == reply));
    fixture.apply_single(&single, &reply);
    assert!(matches!(poll(&mut fixture), Poll::Ready(SingleReply::Over)));
    assert!(fixture.counter.next_reply().is_none() && !fixture.counter.is_awaited());
}

/// Otherwise the hits of the late one would be missing until the next reply.
#[test]
fn a_reply_to_an_earlier_command_counts_nothing_of_a_single_one() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let earlier = fixture.counter.next_number();
    let reply = fixture.execute(Op::Take { hits: 5 });
    let single = fixture.request_single();
    fixture.counter.apply_reply_to(&reply, earlier, fixture.now);
    assert_eq!(fixture.remaining(), 2_995);
    let reply = fixture.execute_single(&single);
    fixture.apply_single(&single, &reply);
    assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (AHEAD, 2_994));
}

#[test]
fn an_overtaken_request_that_is_granted_less_has_the_count_read_again() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let single = fixture.request_single();
    assert_eq!(fixture.take_elsewhere(2_995), 2_995);
    let late = fixture.execute_single(&single);
    assert_eq!(late.granted, 5);
    let (later, number) = (fixture.execute(Op::Take { hits: 0 }), fixture.counter.next_number());
    fixture.counter.apply_reply_to(&later, number, fixture.now);
    fixture.apply_single(&single, &late);
    // what was not granted is missing from the estimate
    assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (4, 10));
    assert!(fixture.counter.has_pending());
    fixture.flush();
    assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (4, 4));
}

#[test]
fn a_request_that_has_failed_is_forgotten() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let single = fixture.request_single();
    fixture.counter.end_single(single.number);
    assert!(fixture.counter.is_settled());
    assert_eq!(fixture.request_single().want, 1 + AHEAD);
}

/// The next ones share a fetch.
#[test]
fn a_counter_has_one_single_request_at_a_time() {
    for limit in [50, 3_000] {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], 3);
        for left in [limit - 1, limit - 2, limit - 3] {
            let single = fixture.counter.single_command(Hits(1), millis(50), START).expect("there is none");
            assert!(fixture.counter.single_command(Hits(1), millis(50), START).is_none());
            let reply = fixture.execute_single(&single);
            fixture.counter.apply_single(&reply, single.number, reply.granted - 1, fixture.now);
            fixture.counter.return_leases();
            fixture.flush();
            assert_eq!(fixture.remaining(), u64::from(left));
            assert!(fixture.counter.is_settled());
        }
    }
}

/// A key with more hits has a fetch, and so do windows whose reports replace the store's state.
#[test]
fn only_fixed_windows_of_keys_with_few_hits_have_single_requests() {
    for (tiers, hits, expected) in [
        (vec![fixed(3_000, 60)], 1, true),
        (vec![fixed(3_000, 60), fixed(9_000, 3_600)], 3, true),
        (vec![fixed(3_000, 60)], 4, false),
        (vec![sliding(3_000, 60)], 1, false),
        (vec![fixed(3_000, 60), bucket(100, 60)], 1, false),
    ] {
        let mut fixture = Fixture::new(&tiers, 3);
        fixture.counter.demand.record(hits, START);
        let single = fixture.counter.single_command(Hits(hits), millis(50), START);
        assert_eq!(single.is_some(), expected, "{tiers:?}, {hits}");
    }
}
