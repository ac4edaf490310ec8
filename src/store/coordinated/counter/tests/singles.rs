//! Hits of a key that has hardly any, each requested for its decision alone.

use super::{super::SingleCommand, *};

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

/// Hits of earlier requests are given back while it is in flight. The store must not give back what it leases ahead with them.
#[test]
fn hits_given_back_meanwhile_do_not_take_what_is_leased_ahead_along() {
    for (limit, instances) in FAR {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        let single = fixture.request_single();
        fixture.give_back(5);
        let reply = fixture.execute_single(&single);
        fixture.flush();
        fixture.apply_single(&single, &reply);
        assert_eq!(fixture.counter.leased_hits(), AHEAD);
        assert_eq!(
            u64::from(fixture.left_in_store()),
            u64::from(limit) - AHEAD,
            "the single hit is given back"
        );
    }
}

#[test]
fn a_request_that_has_failed_after_a_later_reply_has_the_count_read_again() {
    for is_overtaken in [false, true] {
        let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
        let single = fixture.request_single();
        if is_overtaken {
            fixture.take_elsewhere(20);
            fixture.read();
            assert_eq!(fixture.remaining(), 2_980 + 10);
        }
        fixture.counter.end_single(single.number);
        assert_eq!(fixture.counter.has_pending(), is_overtaken);
        fixture.flush();
        assert_eq!(fixture.remaining(), if is_overtaken { 2_980 } else { 3_000 });
    }
}

/// Of a limit that small nothing is leased ahead. An instance that stops has to wait for what is granted.
#[test]
fn a_cancelled_decision_without_hits_ahead_is_not_settled() {
    for instances in [1, 3] {
        let mut fixture = Fixture::new(&[fixed(5, 3_600)], instances);
        let single = fixture.request_single();
        assert!(fixture.counter.is_settled());
        fixture.counter.abandon_single(single.number, Hits(1), fixture.now);
        assert!(!fixture.counter.is_settled());
        let reply = fixture.execute_single(&single);
        fixture.read();
        assert_eq!(fixture.remaining(), 5);
        fixture.counter.apply_single(&reply, single.number, reply.granted, fixture.now);
        assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (1, 5));
        fixture.counter.return_leases();
        fixture.flush();
        assert!(fixture.counter.is_settled());
        assert_eq!(fixture.left_in_store(), 5);
    }
}

#[test]
fn a_single_request_is_waited_for_once() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    assert!(fixture.counter.single_reply().is_none());
    let single = fixture.request_single();
    assert!(fixture.counter.single_reply().is_some());
    assert!(fixture.counter.single_reply().is_none(), "its decision may not be polled");
    let reply = fixture.execute_single(&single);
    fixture.apply_single(&single, &reply);
    assert!(fixture.counter.single_reply().is_none());
    assert_eq!(fixture.counter.leased_hits(), AHEAD);
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
fn a_cancelled_decision_leaves_all_of_its_hits_to_others() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let single = fixture.request_single();
    fixture.counter.abandon_single(single.number, Hits(1), fixture.now);
    let reply = fixture.execute_single(&single);
    fixture.read();
    assert_eq!(fixture.remaining(), 3_000);
    fixture.counter.apply_single(&reply, single.number, reply.granted, fixture.now);
    assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (1 + AHEAD, 3_000));
}

#[test]
fn a_request_that_has_failed_is_forgotten() {
    let mut fixture = Fixture::new(&[fixed(3_000, 3_600)], 3);
    let single = fixture.request_single();
    fixture.counter.end_single(single.number.wrapping_add(1));
    assert!(!fixture.counter.is_settled(), "that was another one");
    fixture.counter.end_single(single.number);
    assert!(fixture.counter.is_settled());
    assert_eq!(fixture.request_single().want, 1 + AHEAD);
}

#[test]
fn several_requests_that_lease_nothing_ahead_may_be_in_flight() {
    let mut fixture = Fixture::new(&[fixed(50, 3_600)], 3);
    let singles = [(); 3].map(|()| fixture.request_single());
    let replies = singles.each_ref().map(|single| fixture.execute_single(single));
    for (single, reply) in singles.iter().zip(&replies).rev() {
        fixture.apply_single(single, reply);
    }
    assert_eq!((fixture.counter.leased_hits(), fixture.remaining()), (0, 47));
    assert!(fixture.counter.is_settled());
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
