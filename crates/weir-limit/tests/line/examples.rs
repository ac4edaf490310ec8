//! Chosen cases.

use weir_limit::{
    Algorithm, Bucket, Period, Refill, Tier, Timestamp,
    line::{Answer, Entered, QueuePosition, Rejection},
};

use super::world::{GRACE, Limited, put_back};

fn window(requests: u32) -> Tier {
    Tier::fixed_window(requests, Period::from_secs(1))
}

fn bucket(requests: u32, burst: u32) -> Tier {
    let bucket = Bucket { burst, refill: Refill::Continuous, strict: false };
    Tier::new(requests, Period::from_secs(1), Algorithm::TokenBucket(bucket))
}

fn kinds(requests: u32) -> [Tier; 3] {
    let sliding = Tier { algorithm: Algorithm::SlidingWindow, ..window(requests) };
    [window(requests), sliding, bucket(requests, requests / 10)]
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_000)
}

fn millis(millis: u64) -> Period {
    Period::from_millis(millis)
}

fn waits(entered: Entered) -> QueuePosition {
    match entered {
        Entered::Waits(position) => position,
        entered => panic!("{entered:?}"),
    }
}

/// Returns the wait that a caller would need.
fn needed(limited: &Limited, now: Timestamp) -> Period {
    match limited.clone().enter(now, 1, Period::default()) {
        Entered::Rejected(Rejection::Timeout { retry_after }) => retry_after,
        entered => panic!("{entered:?}"),
    }
}

/// 10,000 callers wait; the limit is halved. Exactly those that a new walk finds late are told at once; the others are
/// all served in time.
#[test]
fn a_lowered_limit_tells_exactly_those_that_are_served_in_time_no_more() {
    for tier in kinds(1_000) {
        let mut limited = Limited::new(std::slice::from_ref(&tier), start());
        let waiters: Vec<(QueuePosition, Timestamp)> = (0..11_000_u64)
            .filter_map(|i| {
                let max_wait = millis(i * 7_919 % 20_000);
                match limited.enter(start(), 1, max_wait) {
                    Entered::Waits(position) => Some((position, start().after(max_wait))),
                    _ => None,
                }
            })
            .collect();
        assert!(waiters.len() > 5_000);
        let now = start().after(millis(500));
        limited.run_until(now, None);
        let waiting: Vec<_> =
            waiters.into_iter().filter(|(position, _)| limited.poll(*position).is_none()).collect();
        // a walk: each is served as soon as those before it that are in time leave it room
        let halved = Tier {
            requests: tier.requests / 2,
            algorithm: match tier.algorithm {
                Algorithm::TokenBucket(bucket) => {
                    Algorithm::TokenBucket(Bucket { burst: bucket.burst / 2, ..bucket })
                }
                other => other,
            },
            ..tier
        };
        let mut walk = limited.counters.clone();
        let mut at = now;
        let late: Vec<QueuePosition> = waiting
            .iter()
            .filter_map(|(position, deadline)| {
                let served = at.after(walk[0].wait(&halved, at, weir_limit::Hits(1)));
                if served > *deadline {
                    return Some(*position);
                }
                walk[0].take(&halved, served, weir_limit::Hits(1));
                at = served;
                None
            })
            .collect();
        assert!(!late.is_empty() && late.len() < waiting.len());
        limited.change([halved].into(), now);
        // strides of a long walk follow each other at once
        limited.run_until(now.after(Period::from_nanos(100)), None);
        let mut told = Vec::new();
        let mut kept = Vec::new();
        for (position, deadline) in waiting {
            match limited.poll(position) {
                Some(Answer::Rejected(Rejection::Timeout { retry_after })) => {
                    assert!(now.after(retry_after) > deadline);
                    told.push(position);
                }
                Some(answer) => assert!(matches!(answer, Answer::Admitted(_)), "{answer:?}"),
                None => kept.push((position, deadline)),
            }
        }
        assert_eq!(told, late);
        limited.run_until(start().after(Period::from_secs(60)), None);
        for (position, deadline) in kept {
            let answer = limited.poll(position);
            assert!(
                matches!(answer, Some(Answer::Admitted(at)) if at <= deadline.after(GRACE)),
                "{answer:?}"
            );
        }
    }
}

/// A doubled limit tells nobody and halves the time.
#[test]
fn a_raised_limit_serves_the_line_sooner() {
    for tier in kinds(1_000) {
        let mut limited = Limited::new(std::slice::from_ref(&tier), start());
        let positions: Vec<QueuePosition> = (0..10_000)
            .filter_map(|_| match limited.enter(start(), 1, Period::from_secs(60)) {
                Entered::Waits(position) => Some(position),
                _ => None,
            })
            .collect();
        let before = needed(&limited, start());
        let doubled = Tier { requests: 2_000, ..tier };
        limited.change([doubled].into(), start());
        limited.run_until(start().after(Period::from_nanos(100)), None);
        let after = needed(&limited, start());
        let half = before.as_nanos() / 2;
        assert!(after.as_nanos().abs_diff(half) <= 1_100_000_000, "{after} instead of {before}");
        limited.run_until(start().after(after).after(GRACE), None);
        for position in positions {
            assert!(matches!(limited.poll(position), Some(Answer::Admitted(_))));
        }
    }
}

/// Callers that hang up do not push back those that come after them.
#[test]
fn a_hundred_thousand_cancelled_calls_leave_the_wait_as_it_was() {
    for tier in kinds(100) {
        let mut limited = Limited::new(&[tier], start());
        for _ in 0..600 {
            limited.enter(start(), 1, Period::from_secs(60));
        }
        let before = needed(&limited, start());
        for _ in 0..100 {
            let positions: Vec<QueuePosition> =
                (0..1_000).map(|_| waits(limited.enter(start(), 1, Period::from_secs(60)))).collect();
            for position in positions {
                limited.leave(position, start());
            }
        }
        let after = needed(&limited, start());
        assert!(after.as_nanos().abs_diff(before.as_nanos()) < 1_000, "{after} instead of {before}");
    }
}

#[test]
fn the_first_the_last_and_the_only_waiter_may_leave() {
    let mut limited = Limited::new(&[window(1)], start());
    assert_eq!(limited.enter(start(), 1, millis(0)), Entered::Admitted);
    let positions: Vec<QueuePosition> =
        (1..=4).map(|i| waits(limited.enter(start(), 1, millis(i * 1_000)))).collect();
    assert_eq!(needed(&limited, start()), Period::from_secs(5));
    limited.leave(positions[3], start());
    assert_eq!(needed(&limited, start()), Period::from_secs(4));
    limited.leave(positions[0], start());
    assert_eq!(needed(&limited, start()), Period::from_secs(3));
    limited.check(start());
    let later = start().after(millis(1_000));
    assert_eq!(limited.line.timer(), Some(later));
    limited.turn(later);
    assert_eq!(limited.poll(positions[1]), Some(Answer::Admitted(later)));
    limited.leave(positions[2], later);
    assert_eq!((limited.line.waiting(), limited.line.timer()), (0, None));
    assert!(limited.line.is_unused());
}

/// If the first waiter is told because the limit fell, whoever it has kept waiting is served at once.
#[test]
fn a_waiter_that_is_told_makes_room_for_those_behind_it() {
    let mut limited = Limited::new(&[bucket(1, 4)], start());
    assert_eq!(limited.enter(start(), 2, millis(0)), Entered::Admitted);
    let heavy = waits(limited.enter(start(), 3, millis(1_000)));
    let light = waits(limited.enter(start(), 1, millis(5_000)));
    let slower = Tier { period: Period::from_secs(1), ..bucket(0, 4) };
    limited.change([slower].into(), start());
    assert!(matches!(limited.poll(heavy), Some(Answer::Rejected(_))));
    assert_eq!(limited.poll(light), Some(Answer::Admitted(start())));
}

/// An admission that its caller never saw is given back, and the next one gets it.
#[test]
fn hits_of_a_caller_that_left_after_its_admission_are_given_back() {
    let mut limited = Limited::new(&[window(1)], start());
    limited.enter(start(), 1, millis(0));
    let first = waits(limited.enter(start(), 1, millis(5_000)));
    let second = waits(limited.enter(start(), 1, millis(5_000)));
    let later = start().after(millis(1_000));
    limited.turn(later);
    assert_eq!(limited.poll(second), None);
    limited.leave(first, later);
    assert_eq!(limited.poll(second), Some(Answer::Admitted(later)));
}

/// A permit that comes back late, or twice, admits nobody above the limit.
#[test]
fn a_returned_permit_counts_only_while_its_hits_do() {
    for tier in kinds(10) {
        let mut limited = Limited::new(std::slice::from_ref(&tier), start());
        let most = u64::from(tier.capacity());
        assert_eq!(limited.enter(start(), most, millis(0)), Entered::Admitted);
        put_back(&mut limited, start(), most, start());
        assert_eq!(limited.enter(start(), most, millis(0)), Entered::Admitted, "{tier}");
        let later = start().after(millis(1_000));
        assert_eq!(limited.enter(later, most, millis(0)), Entered::Admitted);
        put_back(&mut limited, start(), most, later);
        assert!(!limited.ask(later, 1), "{tier}");
    }
}

/// Ordinary callers get up to half of each period if they ask for it, and the line gets the rest.
#[test]
fn ordinary_callers_share_each_period_with_the_line() {
    for (asks, least, most) in [(5_u64, 4, 8), (50, 25, 50), (300, 45, 50)] {
        let mut limited = Limited::new(&[window(100)], start());
        let (mut waiters, mut ordinary) = (0, 0);
        let mut positions = Vec::new();
        for tick in 0..10_000_u64 {
            let now = start().after(millis(tick));
            limited.run_until(now, None);
            positions.push(limited.enter(now, 1, millis(3_000)));
            if tick * asks / 1_000 != (tick + 1) * asks / 1_000 && limited.ask(now, 1) {
                ordinary += u64::from(tick >= 2_000);
            }
        }
        let from = start().after(millis(2_000));
        for position in positions {
            if let Entered::Waits(position) = position
                && let Some(Answer::Admitted(at)) = limited.poll(position)
            {
                waiters += u64::from(at >= from);
            }
        }
        let (waiters, ordinary) = (waiters / 8, ordinary / 8);
        assert!((least..=most).contains(&ordinary), "{ordinary} ordinary ones of {asks}");
        assert!(waiters + ordinary >= 96, "{waiters} waiters beside {ordinary}");
    }
}

/// A limit without room for others, and one that admits nothing.
#[test]
fn limits_of_one_and_of_none_have_lines_too() {
    let mut limited = Limited::new(&[window(0)], start());
    assert_eq!(limited.enter(start(), 1, millis(60_000)), Entered::Rejected(Rejection::Never));
    let mut limited = Limited::new(&[bucket(0, 1)], start());
    assert_eq!(limited.enter(start(), 1, millis(60_000)), Entered::Admitted);
    assert_eq!(limited.enter(start(), 1, millis(60_000)), Entered::Rejected(Rejection::Never));
    let mut limited = Limited::new(&[window(1)], start());
    limited.enter(start(), 1, millis(0));
    let position = waits(limited.enter(start(), 1, millis(1_000)));
    assert!(!limited.ask(start(), 1));
    limited.turn(start().after(millis(1_000)));
    assert!(matches!(limited.poll(position), Some(Answer::Admitted(_))));
}

/// A full line says how long the wait would be.
#[test]
fn a_full_line_rejects_newcomers_at_once() {
    let mut limited = Limited::new(&[window(1)], start());
    limited.enter(start(), 1, millis(0));
    waits(limited.enter(start(), 1, millis(1_000)));
    let Limited { line, counters } = &mut limited;
    let hits = weir_limit::Hits(1);
    let entered = line.enter(counters, start(), hits, millis(9_000), false, &mut Vec::new());
    assert_eq!(entered, Entered::Rejected(Rejection::Full { retry_after: Period::from_secs(2) }));
}

/// The wait is computed, and not found window by window: ten years have 3 * 10^14 of these.
#[test]
fn a_step_back_costs_nothing_that_grows_with_the_number_of_windows() {
    let start = Timestamp::from_secs(1_700_000_000);
    let (years, microsecond) = (Period::from_secs(10 * 365 * 86_400), Period::from_nanos(1_000));
    let back = Timestamp::from_nanos(start.as_nanos() - years.as_nanos());
    let hour = Tier { period: Period::from_secs(3_600), ..window(100) };
    for tier in kinds(20) {
        let tier = Tier { period: microsecond, ..tier };
        for tiers in [vec![tier.clone()], vec![tier, hour.clone()]] {
            let mut limited = Limited::new(&tiers, start);
            while matches!(limited.enter(start, 1, Period::default()), Entered::Admitted) {}
            for _ in 0..3 {
                waits(limited.enter(start, 1, millis(1)));
            }
            limited.turn(back);
            assert!(!limited.ask(back, 1), "{tiers:?}");
            assert!(needed(&limited, back) > years, "{tiers:?}");
            limited.change(tiers.into(), back);
            // their deadlines are as far away as their turns
            assert_eq!(limited.line.waiting(), 3);
        }
    }
}
