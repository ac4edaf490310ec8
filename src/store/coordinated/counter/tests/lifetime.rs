//! What a counter keeps, when it may be removed, and whose limit it has.

use super::*;
use crate::limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, LimitCheck, Matched, Request, Rule, RuleNode, RuleSet,
    RuntimeLimit, Values,
};

fn rules(tiers: &[Tier]) -> RuleSet {
    let limit = Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore };
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::with_secret([1, 2]))
}

fn with_check<T>(rules: &RuleSet, own: Option<&[Tier]>, act: impl FnOnce(&LimitCheck<'_>) -> T) -> T {
    let own = own.map(|own| RuntimeLimit::new(own.into(), OverLimitPolicy::Ignore).expect("it is valid"));
    let entries = [Entry { key: "k", value: "v" }].into_iter().collect();
    let descriptor = Descriptor { entries, limit: own.map(Box::new), ..Descriptor::default() };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    act(&Matched::new(rules, &request).checks[0])
}

#[test]
fn a_counter_is_settled_if_nothing_is_pending_leased_or_in_flight() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert!(fixture.counter.is_settled());
    fixture.count(1);
    assert!(!fixture.counter.is_settled());
    let commands = fixture.take();
    assert!(!fixture.counter.is_settled());
    fixture.deliver(commands);
    assert!(fixture.counter.is_settled());
    fixture.ask(1, Asks::Look);
    assert!(!fixture.counter.is_settled(), "a decision waits");
    let composed = fixture.compose();
    fixture.deliver(composed);
    assert!(fixture.counter.is_settled());
    fixture.hold(3, Period::default());
    assert!(!fixture.counter.is_settled(), "it holds a lease");
    let leased = fixture.counter.leased_hits();
    assert!(fixture.decide(leased).is_some_and(|decision| !decision.over));
    assert!(fixture.counter.is_settled());
    // the estimate knows which of the granted hits were used
    assert!(!fixture.counter.is_idle(fixture.now));
    let end = START.after(Period::from_secs(60));
    assert!(!fixture.counter.is_idle(Timestamp::from_nanos(end.as_nanos() - 1)));
    assert!(fixture.counter.is_idle(end));
    fixture.counter.plan.denied_until = end.after(millis(1));
    assert!(!fixture.counter.is_idle(end), "the denial is still of use");
    assert!(fixture.counter.is_idle(end.after(millis(1))));
}

#[test]
fn a_check_reads_the_count_if_it_is_older_than_wanted() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.counter.refresh(millis(100), fixture.now);
    assert!(fixture.counter.has_pending(), "there was no reply yet");
    let commands = fixture.flush();
    assert_eq!(commands.len(), 1);
    assert!(is_read(&commands[0]) && !fixture.counter.has_pending());
    for (wait, is_read) in [(99, false), (1, true), (99, false)] {
        fixture.wait(millis(wait));
        fixture.counter.refresh(millis(100), fixture.now);
        assert_eq!(fixture.counter.has_pending(), is_read);
        fixture.counter.refresh(millis(1_000), fixture.now);
        assert_eq!(fixture.counter.has_pending(), is_read, "a second wish does not take the first one back");
        fixture.flush();
    }
}

/// But it does not forget that the store counts hits for it.
#[test]
fn an_unused_counter_forgets_how_it_leased() {
    let used = || {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        fixture.counter.last_check_at = fixture.now;
        fixture.hold(3, millis(300));
        assert!(fixture.decide(3).is_some_and(|decision| !decision.over));
        fixture.counter.leasing_mut().is_scarce = true;
        fixture
    };
    let second = START.after(Period::from_secs(1));
    let mut fixture = used();
    fixture.counter.shrink(Timestamp::from_nanos(second.as_nanos() - 1));
    assert!(fixture.counter.leasing().is_some());
    fixture.counter.shrink(second);
    assert!(fixture.counter.leasing().is_none() && fixture.counter.rare.is_nothing(), "it is small");
    let end = START.after(Period::from_secs(60));
    let before = Timestamp::from_nanos(end.as_nanos() - 1);
    assert!(fixture.counter.has_grants(before) && !fixture.counter.has_grants(end));
    // once they do not count any more, there is nothing to remember
    let mut late = used();
    late.counter.shrink(end);
    assert!(late.counter.rare.is_nothing() && !late.counter.has_grants(before));
    // each of these has to be remembered
    let facts: [fn(&mut Fixture); 3] = [
        |fixture| fixture.hold(1, Period::default()),
        |fixture| fixture.ask(1, Asks::Look),
        |fixture| fixture.counter.look_for_returned(fixture.now),
    ];
    for (i, fact) in facts.into_iter().enumerate() {
        let mut fixture = used();
        fact(&mut fixture);
        fixture.counter.shrink(second);
        assert!(!fixture.counter.rare.is_nothing(), "fact {i}");
    }
}

/// Once no decision waits and no lease is left, a counter is as small as any other.
#[test]
fn a_decided_hit_leaves_nothing_behind() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert_eq!(fixture.lease(1), 1);
    assert!(fixture.counter.rare.is_nothing());
    // what is left of a lease stays, and the rest goes with its last hit
    fixture.hold(2, Period::default());
    assert!(fixture.counter.leasing().is_none());
    for left in [1, 0] {
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        assert_eq!((fixture.counter.leased_hits(), !fixture.counter.rare.is_nothing()), (left, left > 0));
    }
}

/// A lease of a sliding window that has ended unused counts for longer than the estimate does.
#[test]
fn grants_that_count_longer_than_the_estimate_are_remembered() {
    let mut fixture = Fixture::new(&[sliding(100, 10)], 2);
    fixture.hold(3, millis(90));
    let counted_until = fixture.counter.heard.granted_until.instant();
    fixture.wait(Period::from_secs(2));
    let time = fixture.time();
    fixture.counter.expire_leases(time);
    fixture.counter.last_check_at = START;
    assert!(fixture.counter.estimate[0].idle_at() < counted_until);
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.leasing().is_none() && fixture.counter.rare.is_nothing(), "it is small");
    assert!(fixture.counter.has_grants(fixture.now));
    // the store has received what was not used, but may count reported hits at other times
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 100);
    fixture.now = counted_until;
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.rare.is_nothing() && !fixture.counter.has_grants(fixture.now));
    assert!(fixture.counter.is_idle(fixture.now));
}

/// The states of another limit under the same key stay, and leases of a bucket are returned first.
#[test]
fn a_reload_changes_the_limit_and_not_the_counts() {
    for (tier, kept) in [(fixed(100, 60), 6), (sliding(100, 60), 6), (bucket(100, 60), 0)] {
        let old = rules(std::slice::from_ref(&tier));
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        assert!(
            with_check(&old, None, |check| fixture.counter.update_rule(check, fixture.now)),
            "no rule was known"
        );
        assert!(
            !with_check(&old, None, |check| fixture.counter.update_rule(check, fixture.now)),
            "the same rule"
        );
        assert!(fixture.counter.rule.is_some());
        fixture.count(10);
        fixture.flush();
        fixture.hold(6, millis(300));
        fixture.counter.choice.requested_mode = Some(Coordination::Lease);
        fixture.counter.plan.denied_until = fixture.now.after(millis(500));
        let raised = Tier { requests: 150, ..tier.clone() };
        // a limit of the request's own is no rule
        let own = std::slice::from_ref(&raised);
        assert!(!with_check(&old, Some(own), |check| fixture.counter.update_rule(check, fixture.now)));
        assert!(fixture.counter.rule.is_some());
        assert_eq!(&*fixture.counter.target.tiers, std::slice::from_ref(&tier));
        assert!(with_check(&rules(own), None, |check| fixture.counter.update_rule(check, fixture.now)));
        assert_eq!(&*fixture.counter.target.tiers, std::slice::from_ref(&raised));
        assert_eq!(fixture.counter.leased_hits(), kept, "{tier}");
        assert_eq!(fixture.counter.choice.requested_mode, None, "the mode has to be chosen again");
        assert!(!fixture.counter.is_denied(fixture.now));
        let more = if matches!(tier.algorithm, Algorithm::TokenBucket(_)) { 90 } else { 140 };
        assert_eq!(fixture.counter.remaining(fixture.now), more, "{tier}");
        // reloaded without a change of the limit, everything stays
        fixture.counter.choice.requested_mode = Some(Coordination::Lease);
        assert!(with_check(&rules(own), None, |check| fixture.counter.update_rule(check, fixture.now)));
        assert_eq!(fixture.counter.choice.requested_mode, Some(Coordination::Lease));
    }
}

#[test]
fn a_request_with_a_limit_of_its_own_borrows_the_counter() {
    let tier = fixed(100, 60);
    let rules = rules(std::slice::from_ref(&tier));
    let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
    fixture.count(10);
    let own = [Tier { requests: 30, ..tier.clone() }];
    let replaced = with_check(&rules, Some(&own), |check| fixture.counter.use_limit_of(check));
    assert_eq!(fixture.counter.remaining(fixture.now), 20);
    fixture.counter.restore_limit(replaced.expect("it was another one"));
    assert_eq!(fixture.counter.remaining(fixture.now), 90);
    // a pause is one of the limit
    let denied_until = fixture.now.after(millis(200));
    fixture.counter.plan.denied_until = denied_until;
    let replaced = with_check(&rules, Some(&own), |check| fixture.counter.use_limit_of(check));
    assert!(!fixture.counter.is_denied(fixture.now));
    fixture.counter.restore_limit(replaced.expect("it was another one"));
    assert_eq!(fixture.counter.plan.denied_until, denied_until);
    for own in [None, Some(std::slice::from_ref(&tier))] {
        assert!(with_check(&rules, own, |check| fixture.counter.use_limit_of(check)).is_none());
    }
    // a rule that has changed is adopted, not borrowed
    let changed = self::rules(&own);
    assert!(with_check(&changed, None, |check| fixture.counter.use_limit_of(check)).is_none());
    assert_eq!(fixture.counter.remaining(fixture.now), 90);
}
