//! Several limits of the same entries: a tier has one count under all of them.

use super::*;
use crate::{limit::algorithm::CounterState, store::coordinated::counter::heard::Version};

/// Returns the limit of `tiers` for the entries of `fixture`.
fn limit(fixture: &Fixture, tiers: &[Tier]) -> Arc<Target> {
    Arc::new(Target { tiers: tiers.to_vec().into(), ..(*fixture.counter.target).clone() })
}

/// Counts `hits` under the limit of `tiers`.
fn count_under(fixture: &mut Fixture, tiers: &[Tier], hits: u64) -> Decision {
    let (limit, instances, now) = (limit(fixture, tiers), fixture.instances, fixture.now);
    let policy = OverLimitPolicy::Ignore;
    fixture.counter.under(&limit, now, |counter| {
        counter.among(instances).count(Direction::Take, policy, Hits(hits), now)
    })
}

/// Returns the hits that each of `tiers` counts here.
fn used(fixture: &Fixture, tiers: &[Tier]) -> Vec<u64> {
    let limit = limit(fixture, tiers);
    let of_tier = |i| {
        let known = fixture.counter.known(&limit, i);
        known.map_or(0, |(state, _)| state.probe(&limit.tiers[i], fixture.now, Hits(0)).used.0)
    };
    (0..tiers.len()).map(of_tier).collect()
}

/// Returns the hits that each of `tiers` counts in the store.
fn stored(fixture: &mut Fixture, tiers: &[Tier]) -> Vec<u64> {
    let (target, now) = (limit(fixture, tiers), fixture.now);
    let reply = fixture.store.execute(&Command { target, at: now, exchange: Exchange::read() }, now);
    let states = reply.counters.iter().zip(tiers);
    states.map(|(state, tier)| state.probe(tier, now, Hits(0)).used.0).collect()
}

#[test]
fn what_is_taken_under_one_limit_is_missing_under_all_that_have_the_tier() {
    let (minute, hour, ten) = (fixed(100, 60), fixed(1_000, 3_600), sliding(50, 10));
    let all = [minute.clone(), hour.clone(), ten.clone()];
    let mut fixture = Fixture::new(std::slice::from_ref(&minute), 2);
    fixture.counter.choice.mode = Coordination::Interval;
    fixture.count(7);
    assert_eq!(count_under(&mut fixture, &[minute.clone(), hour.clone()], 2).remaining, 91);
    assert_eq!(count_under(&mut fixture, &[hour.clone(), ten.clone()], 3).remaining, 47);
    assert_eq!(count_under(&mut fixture, std::slice::from_ref(&ten), 1).remaining, 46);
    fixture.count(1);
    assert_eq!(used(&fixture, &all), [10, 5, 4]);
    // one command reports them, each in its own tiers
    let commands = fixture.flush();
    assert_eq!(commands.len(), 1);
    assert_eq!(commands[0].target.tiers.len(), 3);
    assert!(fixture.counter.is_settled());
    assert_eq!((used(&fixture, &all), stored(&mut fixture, &all)), (vec![10, 5, 4], vec![10, 5, 4]));
    // the limit itself is reported as ever
    fixture.count(1);
    assert_eq!(fixture.flush()[0].target.tiers.len(), 1);
}

/// Hits under two limits in turn wait as two records, not as one for each turn.
#[test]
fn hits_under_limits_in_turn_are_one_record_each() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.counter.choice.mode = Coordination::Interval;
    for _ in 0..20 {
        fixture.count(1);
        count_under(&mut fixture, &[fixed(1_000, 3_600)], 1);
    }
    let reports = fixture.reports();
    assert_eq!(reports.iter().map(|report| report.change.hits).collect::<Vec<_>>(), [20, 20]);
}

/// The states that the store has of another limit change nothing of those that it does not have.
#[test]
fn a_reply_about_another_limit_changes_its_tiers_alone() {
    let (minute, hour) = (sliding(100, 60), sliding(1_000, 3_600));
    let mut fixture = Fixture::new(std::slice::from_ref(&minute), 2);
    fixture.counter.choice.mode = Coordination::Interval;
    fixture.count(5);
    let other = limit(&fixture, std::slice::from_ref(&hour));
    let now = fixture.now;
    let mut state = CounterState::unused(&hour, now);
    state.take(&hour, now, Hits(40));
    let reply = Reply { counters: [state].into(), versions: [3].into(), ..Reply::default() };
    fixture.counter.under(&other, now, |counter| counter.apply_reply_to(&reply, 1, now));
    assert_eq!(used(&fixture, &[minute.clone(), hour.clone()]), [5, 40]);
    assert_eq!(fixture.counter.heard.last_reply_at.get(), None, "of the limit itself nothing was heard");
    assert_eq!(fixture.counter.known(&other, 0).map(|(_, version)| version), Some(Version::of(3)));
}

/// Each tier has a version of its own, so a change of one does not make the exact state of another useless.
#[test]
fn exact_states_are_adopted_tier_by_tier() {
    let (minute, hour) = (sliding(100, 60), sliding(1_000, 3_600));
    let mut fixture = Fixture::new(&[minute.clone(), hour.clone()], 1);
    fixture.counter.choice.mode = Coordination::Interval;
    fixture.count(5);
    fixture.flush();
    // somebody counts in one of them
    let (other, now) = (limit(&fixture, std::slice::from_ref(&hour)), fixture.now);
    let exchange = Exchange::of_try(9, OverLimitPolicy::Ignore);
    fixture.store.execute(&Command { target: other, at: now, exchange }, now);
    fixture.wait(millis(100));
    fixture.count(2);
    let composed = fixture.take();
    let reply = fixture.store.execute(&composed[0].0, fixture.now);
    assert!(reply.adopted.contains(0) && !reply.adopted.contains(1));
    let (_, mut sent) = composed.into_iter().next().expect("one");
    fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &fixture.link());
    assert_eq!(stored(&mut fixture, &[minute.clone(), hour.clone()]), [7, 16]);
    assert_eq!(used(&fixture, &[minute, hour]), [7, 16]);
}

/// What is held covers no other limit, and stays while one is in use, unless hits are given back, whose floor it would
/// need.
#[test]
fn leases_are_of_one_limit() {
    let other = [fixed(100, 60), fixed(1_000, 3_600)];
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.hold(4, Period::default());
    let (limit, now) = (limit(&fixture, &other), fixture.now);
    fixture.counter.under(&limit, now, |counter| {
        assert_eq!(counter.leased_hits(), 0);
        assert!(decide_leased(counter, 2, 1, now).is_none());
    });
    assert_eq!(fixture.counter.leased_hits(), 4);
    // the store counts them, and the estimate does not, whichever limit a reply is about
    let reply = fixture
        .store
        .execute(&Command { target: Arc::clone(&limit), at: now, exchange: Exchange::read() }, now);
    fixture.counter.under(&limit, now, |counter| counter.apply_reply_to(&reply, 9, now));
    assert_eq!(used(&fixture, &other), [0, 0]);
    // a tier that is new has none of them
    fixture.counter.change_limit((*limit).clone(), now);
    assert_eq!((fixture.counter.leased_hits(), fixture.counter.is_away()), (0, false));
    fixture.flush();
    assert_eq!(stored(&mut fixture, &other), [0, 0]);
}

/// A hold that arrives after a reload has replaced its limit goes back, from its own tiers.
#[test]
fn a_hold_of_a_limit_that_was_replaced_goes_back() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
    fixture.demand(millis(5), 40);
    let composed = fixture.request(1);
    assert!(held(&composed).is_some());
    let new = limit(&fixture, &[sliding(100, 60), fixed(1_000, 3_600)]);
    let now = fixture.now;
    fixture.counter.change_limit((*new).clone(), now);
    assert!(fixture.deliver(composed) > 1);
    assert_eq!(fixture.counter.leased_hits(), 0);
    fixture.flush();
    assert_eq!(stored(&mut fixture, &new.tiers), [1, 0], "the try was decided by its own limit");
}

/// Callers choose the periods of their limits.
#[test]
fn a_counter_keeps_few_other_tiers() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.counter.choice.mode = Coordination::Interval;
    for seconds in 100..200 {
        count_under(&mut fixture, &[fixed(5, seconds)], 1);
    }
    assert!(fixture.counter.other_tiers().is_some_and(|others| others.tiers.len() <= 16));
    // and no command has more, but all are counted
    for _ in 0..100 {
        for command in fixture.flush() {
            assert!(command.target.tiers.len() <= 17, "{}", command.target.tiers.len());
        }
    }
    assert!(fixture.counter.is_settled());
    for seconds in [100, 150, 199] {
        assert_eq!(stored(&mut fixture, &[fixed(5, seconds)]), [1], "{seconds}");
    }
}

/// Hits under a limit that is nearly used up do not wait for the plan of the rule.
#[test]
fn hits_near_another_limit_are_reported_at_once() {
    use crate::store::coordinated::counter::Urgency;

    let mut fixture = Fixture::new(&[fixed(1_000_000, 60)], 2);
    fixture.counter.choice.mode = Coordination::Interval;
    fixture.read();
    for (limit, expected) in [(1_000, Urgency::Interval), (10, Urgency::Now)] {
        let hour = fixed(limit, if limit > 10 { 3_600 } else { 7_200 });
        count_under(&mut fixture, &[hour], 4);
        assert_eq!(fixture.counter.among(2).urgency(millis(2), millis(10), fixture.now), expected, "{limit}");
    }
}
