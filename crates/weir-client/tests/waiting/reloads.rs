//! Rules that change while callers wait.

use weir_limit::{Period, line::Rejection};

use super::support::{Call, Fixture, rules};

fn window(requests: u32) -> String {
    rules(&format!("{{ requests: {requests}, per: 1s, algorithm: fixed_window }}"))
}

/// Ten thousand wait; the limit is halved: exactly those that cannot be served in time any more are told at once, and
/// the others are served in time.
#[test]
fn a_lowered_limit_tells_at_once_who_cannot_be_served_in_time() {
    let fixture = Fixture::new(&window(1_000));
    let calls = (0_u64..).map(|i| {
        let max_wait = 20_000 - i * 7_919 % 20_000;
        (max_wait, fixture.acquire(&["a"], 1, max_wait))
    });
    // whoever cannot wait for so long is rejected at once
    let mut calls: Vec<(u64, Call)> = calls
        .filter_map(|(max_wait, mut call)| call.waits().then_some((max_wait, call)))
        .take(10_000)
        .collect();
    fixture.load(&window(500));
    fixture.pass(0);
    // a walk over many goes on in steps of a nanosecond
    fixture.pass(1);
    // in their order, 500 in each window from the next one on
    let (mut ahead, mut told) = (0, 0);
    calls.retain_mut(|(max_wait, call)| {
        let wait = (ahead / 500 + 1) * 1_000;
        if wait <= *max_wait {
            ahead += 1;
            assert!(call.waits(), "it would be served after {wait} of {max_wait} ms");
            return true;
        }
        told += 1;
        let rejection = call.acquired().rejection;
        assert!(
            matches!(rejection, Some(Rejection::Timeout { retry_after }) if retry_after > Period::from_millis(*max_wait)),
            "{rejection:?} with {max_wait} ms"
        );
        false
    });
    assert!(told > 1_000 && calls.len() > 1_000, "{told} told, {} kept", calls.len());
    assert_eq!(fixture.limiter.waiters(), calls.len());
    fixture.pass(30_000);
    for (max_wait, call) in &mut calls {
        let acquired = call.acquired();
        assert!(
            acquired.rejection.is_none() && acquired.waited <= Period::from_millis(*max_wait + 1),
            "{acquired:?} with {max_wait} ms"
        );
    }
}

/// Ten thousand wait; the limit is doubled: nobody is told, and all are served in half the time.
#[test]
fn a_doubled_limit_serves_the_line_in_half_the_time() {
    let fixture = Fixture::new(&window(1_000));
    let _taken = fixture.acquire(&["a"], 1_000, 0);
    let mut calls: Vec<Call> = (0..10_000).map(|_| fixture.acquire(&["a"], 1, 10_000)).collect();
    assert!(calls.iter_mut().all(Call::waits), "they wait for up to ten windows");
    fixture.load(&window(2_000));
    fixture.pass(0);
    let mut waiting = |passed: u64| {
        fixture.pass(passed);
        calls.iter_mut().filter_map(|call| call.waits().then_some(())).count()
    };
    // the open window has room for a thousand more
    assert_eq!([waiting(0), waiting(1_000), waiting(3_000), waiting(1_000)], [9_000, 7_000, 1_000, 0]);
    assert!(calls.iter_mut().all(Call::is_admitted));
}

#[test]
fn a_raised_limit_serves_the_line_sooner() {
    let fixture = Fixture::new(&window(1));
    let _taken = fixture.acquire(&["a"], 1, 0);
    let mut calls: Vec<Call> = (0..4).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    fixture.load(&window(3));
    fixture.pass(0);
    let admitted: Vec<bool> = calls.iter_mut().map(Call::is_admitted).collect();
    assert_eq!(admitted, [true, true, false, false]);
    fixture.pass(1_000);
    assert!(calls.iter_mut().all(Call::is_admitted));
}

#[test]
fn requests_that_became_too_heavy_are_told_so() {
    let fixture = Fixture::new(&window(3));
    let _taken = fixture.acquire(&["a"], 3, 0);
    let mut heavy = fixture.acquire(&["a"], 3, 60_000);
    let mut light = fixture.acquire(&["a"], 1, 60_000);
    fixture.load(&window(2));
    fixture.pass(0);
    assert_eq!(heavy.acquired().rejection, Some(Rejection::Never));
    fixture.pass(1_000);
    assert!(light.is_admitted());
}

/// A rule of another kind has counters of its own, in which the line continues.
#[test]
fn a_line_continues_under_another_algorithm() {
    let fixture = Fixture::new(&window(1));
    let _taken = fixture.acquire(&["a"], 1, 0);
    let mut calls: Vec<Call> = (0..3).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    fixture.load(&rules("{ algorithm: token_bucket, requests: 1, per: 10s, burst: 1 }"));
    fixture.pass(0);
    let admitted: Vec<bool> = calls.iter_mut().map(Call::is_admitted).collect();
    // a new bucket is full
    assert_eq!(admitted, [true, false, false]);
    fixture.pass(10_000);
    assert!(calls[1].is_admitted() && calls[2].waits());
}

/// Without a limit nobody waits, and a rule with another key asks again.
#[test]
fn callers_of_a_rule_that_is_gone_are_decided_by_the_new_rules() {
    let fixture = Fixture::new(&window(1));
    let _taken = fixture.acquire(&["a"], 1, 0);
    let mut calls: Vec<Call> = (0..2).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    fixture.load("domain: partners\ndescriptors:\n  - key: other\n");
    fixture.pass(0);
    assert!(calls.iter_mut().all(Call::is_admitted));

    let fixture = Fixture::new(&window(1));
    let _taken = fixture.acquire(&["a"], 1, 0);
    let mut calls: Vec<Call> = (0..3).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    let shared = "domain: partners\ndescriptors:\n  - key: api\n    values: [a, b]\n    rate_limit: { requests: 2, per: 10s, algorithm: fixed_window }\n";
    fixture.load(shared);
    fixture.pass(0);
    let admitted: Vec<bool> = calls.iter_mut().map(Call::is_admitted).collect();
    assert_eq!(admitted, [true, true, false]);
    fixture.pass(10_000);
    assert!(calls[2].is_admitted());
}
