//! The headers that tell the end user about a limit.

use std::sync::Arc;

use weir::{
    DecisionSettings, Limiter,
    limit::{
        Algorithm, Bucket, Descriptor, Domain, Entry, HeaderNames, HeaderStyle, KeyHasher, Limit, Modes,
        OverLimitPolicy, Pattern, Period, Refill, Request, Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
    },
    observe::Stats,
    store::MemoryStore,
};

fn tier(requests: u32, period: Period, algorithm: Algorithm) -> Tier {
    Tier { requests, period, algorithm }
}

fn seconds(requests: u32, seconds: u64) -> Tier {
    tier(requests, Period::from_secs(seconds), Algorithm::FixedWindow)
}

/// A limiter with a rule for each `k=<name>`, and the given headers.
fn limiter(rules: Vec<(&str, Vec<Tier>)>, styles: Vec<HeaderStyle>, quota: bool) -> Limiter<MemoryStore> {
    let nodes = rules.into_iter().map(|(name, tiers)| {
        let rule = Rule {
            name: (!name.starts_with("nameless")).then(|| name.into()),
            quota_mode: quota,
            ..Rule::new(Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore })
        };
        RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::One(Pattern::new(name))) }
    });
    let settings = DecisionSettings {
        modes: Modes { headers: styles, ..Modes::default() },
        ..DecisionSettings::default()
    };
    let limiter = Limiter::new(MemoryStore::new(100), Arc::new(Stats::default()), settings);
    let domain = Domain { name: "d".into(), nodes: nodes.collect() };
    limiter.load(RuleSet::new(&[domain], KeyHasher::random()));
    limiter
}

/// LimitChecks for one hit of each of `names`, 40 s into a minute; the headers, one a line.
async fn ask(limiter: &Limiter<MemoryStore>, names: &[&str]) -> String {
    let descriptors = names.iter().map(|value| Descriptor {
        entries: [Entry { key: "k", value }].into_iter().collect(),
        ..Descriptor::default()
    });
    let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
    let told = limiter.decide(&request, Timestamp::from_secs(6_040), |verdict| {
        let lines = verdict.headers.iter().map(|header| format!("{}: {}\n", header.name, header.value));
        lines.collect::<String>()
    });
    told.await.expect("the memory store does not fail")
}

#[tokio::test]
async fn the_ietf_headers_name_every_tier_as_a_policy_and_tell_what_is_left() {
    let rules = vec![
        ("burst", vec![seconds(10, 10), seconds(100, 60)]),
        ("nameless", vec![tier(5, Period::from_millis(100), Algorithm::SlidingWindow)]),
        (
            "bucket",
            vec![tier(
                1,
                Period::from_secs(60),
                Algorithm::TokenBucket(Bucket { burst: 7, refill: Refill::Continuous, strict: false }),
            )],
        ),
    ];
    let limiter = limiter(rules, vec![HeaderStyle::Ietf], false);
    assert_eq!(
        ask(&limiter, &["burst", "nameless", "bucket"]).await,
        "RateLimit-Policy: \"burst-10s\";q=10;w=10, \"burst-1m\";q=100;w=60, \"d.k_nameless\";q=5, \
         \"bucket\";q=1;w=60;burst=7\n\
         RateLimit: \"burst-10s\";r=9;t=10, \"d.k_nameless\";r=4;t=1, \"bucket\";r=6;t=60\n"
    );
    assert_eq!(ask(&limiter, &["unknown"]).await, "", "nothing to tell where nothing was counted");
}

#[tokio::test]
async fn retry_after_is_sent_when_over_with_the_longest_wait_of_the_limits() {
    let rules = vec![("short", vec![seconds(1, 10)]), ("long", vec![seconds(1, 60)])];
    let limiter = limiter(rules, vec![HeaderStyle::RetryAfter], false);
    assert_eq!(ask(&limiter, &["short", "long"]).await, "");
    assert_eq!(ask(&limiter, &["short"]).await, "Retry-After: 10\n");
    assert_eq!(ask(&limiter, &["short", "long"]).await, "Retry-After: 20\n");
}

#[tokio::test]
async fn of_quotas_the_first_that_is_free_again_ends_the_wait() {
    let rules = vec![("short", vec![seconds(1, 10)]), ("long", vec![seconds(1, 60)])];
    let limiter = limiter(rules, vec![HeaderStyle::RetryAfter], true);
    assert_eq!(ask(&limiter, &["short"]).await, "");
    assert_eq!(ask(&limiter, &["short", "long"]).await, "", "one quota is left");
    assert_eq!(ask(&limiter, &["short", "long"]).await, "Retry-After: 10\n");
}

#[tokio::test]
async fn several_styles_go_together_in_their_order() {
    let styles = vec![HeaderStyle::Three(HeaderNames::x_ratelimit()), HeaderStyle::RetryAfter];
    let limiter = limiter(vec![("one", vec![seconds(1, 60)])], styles, false);
    let three = "x-ratelimit-limit: 1\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 20\n";
    assert_eq!(ask(&limiter, &["one"]).await, three);
    assert_eq!(ask(&limiter, &["one"]).await, format!("{three}Retry-After: 20\n"));
}
