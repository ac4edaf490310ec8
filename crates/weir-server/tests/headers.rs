//! Tests the response headers that report limits to the end user.

use std::sync::Arc;

use weir_limit::{
    Algorithm, Bucket, Calendar, CalendarUnit, CalendarWindows, Descriptor, Domain, Entry, KeyHasher, Limit,
    OverLimitPolicy, Pattern, Period, Refill, Request, Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_server::headers::{HeaderNames, HeaderStyle, ResponseHeaders};
use weir_store::MemoryStore;

fn tier(requests: u32, period: Period, algorithm: Algorithm) -> Tier {
    Tier::new(requests, period, algorithm)
}

fn seconds(requests: u32, seconds: u64) -> Tier {
    tier(requests, Period::from_secs(seconds), Algorithm::FixedWindow)
}

/// A limiter, and the styles of the headers for its verdicts.
struct Service {
    limiter: Limiter<MemoryStore>,
    headers: ResponseHeaders,
}

impl Service {
    /// Creates a service with a rule for each `k=<name>`.
    fn new(rules: Vec<(&str, Vec<Tier>)>, styles: Vec<HeaderStyle>, quota: bool) -> Self {
        let nodes = rules.into_iter().map(|(name, tiers)| {
            let rule = Rule {
                name: (!name.starts_with("nameless")).then(|| name.into()),
                quota_mode: quota,
                ..Rule::new(Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore })
            };
            RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::One(Pattern::new(name))) }
        });
        let limiter =
            Limiter::new(MemoryStore::new(100), Arc::new(Stats::default()), DecisionSettings::default());
        let domain = Domain::new("d", nodes.collect());
        limiter.load(RuleSet::new(&[domain], KeyHasher::random()));
        Self { limiter, headers: ResponseHeaders { styles } }
    }

    /// Takes one hit of each of `names`, 40 s into a minute; returns the headers, one per line.
    async fn take(&self, names: &[&str]) -> String {
        let descriptors = names.iter().map(|value| Descriptor {
            entries: [Entry { key: "k", value }].into_iter().collect(),
            ..Descriptor::default()
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
        let lines = self.limiter.decide(&request, Timestamp::from_secs(6_040), |verdict| {
            let headers = self.headers.render(verdict);
            let lines = headers.iter().map(|header| format!("{}: {}", header.name, header.value));
            lines.chain([String::new()]).collect::<Vec<_>>().join("\n")
        });
        lines.await.expect("the memory store does not fail")
    }
}

#[tokio::test]
async fn ietf_headers_report_a_policy_per_tier_and_the_remaining_requests() {
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
    let service = Service::new(rules, vec![HeaderStyle::Ietf], false);
    assert_eq!(
        service.take(&["burst", "nameless", "bucket"]).await,
        "RateLimit-Policy: \"burst-10s\";q=10;w=10, \"burst-1m\";q=100;w=60, \"d.k_nameless\";q=5, \
         \"bucket\";q=1;w=60;burst=7\n\
         RateLimit: \"burst-10s\";r=9;t=10, \"d.k_nameless\";r=4;t=1, \"bucket\";r=6;t=60\n"
    );
    assert_eq!(service.take(&["unknown"]).await, "", "no headers if nothing was counted");
}

#[tokio::test]
async fn windows_of_a_calendar_have_their_own_length_and_end() {
    let edges = [0, 1_000, 5_000, 95_000, 181_400, 267_800, 354_200, 440_600].map(Timestamp::from_secs);
    let windows = CalendarWindows::in_force(Calendar::new(CalendarUnit::Day), &edges, edges[2]);
    let day = Tier::of_calendar(5, windows.expect("enough edges"));
    let rules = vec![("orders", vec![seconds(10, 10), day])];
    let service = Service::new(rules, vec![HeaderStyle::Ietf, HeaderStyle::RetryAfter], false);
    let policy = "RateLimit-Policy: \"orders-10s\";q=10;w=10, \"orders-day\";q=5;w=90000\n";
    for left in [4, 3, 2, 1, 0] {
        let reported = format!("{policy}RateLimit: \"orders-day\";r={left};t=88960\n");
        assert_eq!(service.take(&["orders"]).await, reported);
    }
    let reported = format!("{policy}RateLimit: \"orders-day\";r=0;t=88960\nRetry-After: 88960\n");
    assert_eq!(service.take(&["orders"]).await, reported);
}

#[tokio::test]
async fn retry_after_is_the_longest_wait_of_the_limits_that_are_over() {
    let rules = vec![("short", vec![seconds(1, 10)]), ("long", vec![seconds(1, 60)])];
    let service = Service::new(rules, vec![HeaderStyle::RetryAfter], false);
    assert_eq!(service.take(&["short", "long"]).await, "");
    assert_eq!(service.take(&["short"]).await, "Retry-After: 10\n");
    assert_eq!(service.take(&["short", "long"]).await, "Retry-After: 20\n");
}

#[tokio::test]
async fn retry_after_is_the_shortest_wait_if_only_quotas_are_over() {
    let rules = vec![("short", vec![seconds(1, 10)]), ("long", vec![seconds(1, 60)])];
    let service = Service::new(rules, vec![HeaderStyle::RetryAfter], true);
    assert_eq!(service.take(&["short"]).await, "");
    assert_eq!(service.take(&["short", "long"]).await, "", "one quota is left");
    assert_eq!(service.take(&["short", "long"]).await, "Retry-After: 10\n");
}

#[tokio::test]
async fn several_styles_are_written_in_order() {
    let styles = vec![HeaderStyle::LimitRemainingReset(HeaderNames::x_ratelimit()), HeaderStyle::RetryAfter];
    let service = Service::new(vec![("one", vec![seconds(1, 60)])], styles, false);
    let three = "x-ratelimit-limit: 1\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 20\n";
    assert_eq!(service.take(&["one"]).await, three);
    assert_eq!(service.take(&["one"]).await, format!("{three}Retry-After: 20\n"));
}

#[tokio::test]
async fn headers_for_the_upstream_have_the_same_values() {
    let styles = vec![
        HeaderStyle::LimitRemainingReset(HeaderNames::default()),
        HeaderStyle::LimitRemainingResetForRequest(HeaderNames::x_ratelimit()),
    ];
    let service = Service::new(vec![("one", vec![seconds(3, 60)])], styles, false);
    let values = service.take(&["one"]).await;
    let of = |prefix: &str| -> Vec<String> {
        let lines = values.lines().filter_map(|line| line.strip_prefix(prefix));
        lines.filter_map(|line| line.split_once(": ")).map(|(_, value)| value.to_owned()).collect()
    };
    assert_eq!(of("RateLimit-"), ["3", "2", "20"]);
    assert_eq!(of("x-ratelimit-"), ["3", "2", "20"]);
}
