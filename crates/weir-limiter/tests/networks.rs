//! Limits of networks in the decision path: what is counted, named, reset and reported.

use std::sync::Arc;

use weir_limit::{
    Code, CountBy, Domain, Entry, Hits, IpNetwork, KeyHasher, Limit, ListedNetwork, NetworkList, Period,
    Request, Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter, key_text};
use weir_observe::Stats;
use weir_store::{MemoryStore, clock::ManualClock};

const NOW: Timestamp = Timestamp::from_secs(1_000);

fn networks(texts: &[&str]) -> Values {
    let listed = |text: &&str| ListedNetwork {
        network: IpNetwork::of_rule(text).expect("a network"),
        line: 1,
        column: 1,
    };
    Values::Networks(NetworkList::new("".into(), texts.iter().map(listed).collect()).into())
}

fn node(values: Values, count_by: &str, requests: u32) -> RuleNode {
    let rule = Rule::new(Limit::fixed_window(requests, Period::from_secs(60)));
    let count_by = CountBy::parse(count_by).expect("a way to count");
    RuleNode { rule: Some(rule), count_by, ..RuleNode::new("ip", values) }
}

fn limiter(nodes: Vec<RuleNode>) -> (Limiter<MemoryStore>, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let limiter = Limiter::new(MemoryStore::new(100), Arc::clone(&stats), DecisionSettings::default());
    limiter.load(RuleSet::new(&[Domain::new("d", nodes)], KeyHasher::random()));
    (limiter, stats)
}

/// Returns the code, and what is left.
fn decide(limiter: &Limiter<MemoryStore>, value: &str) -> (Code, u32) {
    let request = Request::of("d", &[Entry { key: "ip", value }]);
    let decided = limiter.decide_now(&request, NOW, |verdict| (verdict.code, verdict.statuses[0].remaining));
    decided.expect("the memory store does not fail")
}

#[test]
fn values_that_are_no_addresses_pass_lists_and_are_counted() {
    let block = node(networks(&["10.0.0.0/8"]), "list", 0);
    let (limiter, stats) = limiter(vec![block, node(Values::Any, "address", 5)]);
    let invalid = || {
        let parts = ["d", "ip_10.0.0.0/8"].map(Box::from);
        stats.rule(&parts).rare().addresses_invalid
    };
    assert_eq!(decide(&limiter, "10.1.2.3").0, Code::OverLimit);
    assert_eq!(decide(&limiter, "11.1.2.3"), (Code::Ok, 4));
    assert_eq!(invalid(), 0);
    for (n, value) in ["10.1.2.3:80", "10.1.2.3, 10.1.2.4", "fe80::1%eth0", ""].into_iter().enumerate() {
        assert_eq!(decide(&limiter, value), (Code::Ok, 4), "{value}");
        assert_eq!(invalid(), n as u64 + 1, "{value}");
    }
    let request = Request::of("d", &[Entry { key: "ip", value: "no address" }]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(limiter.inspect(&request, NOW, |_| ())).expect("it can be looked at");
    assert_eq!(invalid(), 4, "who only looks is not counted");
}

#[test]
fn a_reset_of_an_address_resets_the_counter_of_its_network() {
    let (limiter, _) = limiter(vec![node(Values::Any, "prefix/24/64", 5)]);
    assert_eq!(decide(&limiter, "10.1.2.3"), (Code::Ok, 4));
    assert_eq!(decide(&limiter, "::ffff:10.1.2.4"), (Code::Ok, 3));
    assert_eq!(decide(&limiter, "10.1.3.4"), (Code::Ok, 4));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let entries = [Entry { key: "ip", value: "10.1.2.99" }];
    let outcome = runtime.block_on(limiter.reset("d", &entries, None, &ManualClock::at(NOW)));
    assert_eq!(outcome.expect("there is a counter").counters, 1);
    assert_eq!(decide(&limiter, "10.1.2.0/24"), (Code::Ok, 4));
    assert_eq!(decide(&limiter, "10.1.3.4"), (Code::Ok, 3));
}

#[test]
fn counters_are_named_by_canonical_texts() {
    for (values, count_by, value, shown, masked) in [
        (
            networks(&["10.0.0.0/8", "2001:db8::/32"]),
            "list",
            "10.1.2.3",
            "ip=10.0.0.0/8|2001:db8::/32",
            false,
        ),
        (networks(&["10.0.0.0/8", "2001:db8::/32"]), "network", "::ffff:10.1.2.3", "ip=10.0.0.0/8", false),
        (networks(&["2001:db8::/32"]), "prefix/64", "2001:DB8:0:0:1::1", "ip=2001:db8::/64", true),
        (Values::Any, "address", "2001:DB8:0:0:1::1", "ip=2001:db8::1:0:0:1", true),
        (Values::Any, "address", "no address", "ip=no address", true),
    ] {
        let (limiter, _) = limiter(vec![node(values, count_by, 5)]);
        let request = Request::of("d", &[Entry { key: "ip", value }]);
        let texts = limiter.rules(|rules| {
            let matched = weir_limit::Matched::new(rules, &request);
            [true, false].map(|values| key_text(&matched.checks[0], values))
        });
        let [with_values, without] = texts.expect("rules are loaded");
        assert_eq!(with_values, shown);
        assert_eq!(without.starts_with("ip=*** #"), masked, "{without}");
        assert_eq!(without.starts_with(shown), !masked, "{without}");
    }
}

#[test]
fn a_closed_list_has_no_time_to_retry_at() {
    let closed = |limit: Limit| {
        let rule = Some(Rule::new(limit));
        let (limiter, _) = limiter(vec![RuleNode { rule, ..RuleNode::new("ip", networks(&["::/0"])) }]);
        let request = Request::of("d", &[Entry { key: "ip", value: "2001:db8::1" }]);
        let decided = limiter.decide_now(&request, NOW, |verdict| {
            assert_eq!(verdict.code, Code::OverLimit);
            (verdict.retry_after(), verdict.statuses[0].is_closed())
        });
        decided.expect("the memory store does not fail")
    };
    let tiers = [Tier::fixed_window(0, Period::from_secs(1))].into_iter().collect();
    let ours = Limit::Tiers { tiers, over_limit_policy: weir_limit::OverLimitPolicy::Ignore };
    assert_eq!(closed(ours), (None, true));
    let reference = closed(Limit::fixed_window(0, Period::from_secs(60)));
    assert!(reference.0.is_some() && !reference.1, "as envoyproxy/ratelimit answers");
}

#[test]
fn networks_are_the_members_of_a_pool() {
    let mut node = node(networks(&["10.0.0.0/8", "11.0.0.0/8"]), "network", 100);
    if let Some(rule) = &mut node.rule {
        rule.sharing = Some(Arc::default());
        rule.limit = match &rule.limit {
            Limit::Tiers { tiers, .. } => {
                Limit::Tiers { tiers: tiers.clone(), over_limit_policy: weir_limit::OverLimitPolicy::Ignore }
            }
            Limit::Unlimited => Limit::Unlimited,
        };
    }
    let (limiter, _) = limiter(vec![node]);
    let request = |value| Request { hits: 1, ..Request::of("d", &[Entry { key: "ip", value }]) };
    let members = ["10.1.2.3", "::ffff:10.9.9.9", "11.0.0.1"].map(|value| {
        let request = request(value);
        let member = limiter.rules(|rules| {
            let matched = weir_limit::Matched::new(rules, &request);
            let check = &matched.checks[0];
            assert_eq!(check.hits, Hits(1));
            (check.member().to_string(), check.pool.as_deref().copied())
        });
        member.expect("rules are loaded")
    });
    assert_eq!(members[0], members[1]);
    assert_eq!((&*members[0].0, &*members[2].0), ("10.0.0.0/8", "11.0.0.0/8"));
    assert_eq!(members[0].1, members[2].1, "one pool");
}
