//! Compares the picture of the algorithms in the documentation with the requests that they admit.

use std::fmt::Write as _;

use weir_limit::{Direction, Hits, Limit, Period, Timestamp, algorithm::CounterState, decide};

/// The number of tenths of a second in the picture.
const TICKS: u64 = 56;

/// Returns the requests in a tenth of a second: four from 0.7 s to 2.9 s, and again from 4.6 s on.
const fn offered(tick: u64) -> u64 {
    if (tick >= 7 && tick < 29) || tick >= 46 { 4 } else { 0 }
}

fn mark(requests: u64) -> String {
    if requests == 0 { ".".to_owned() } else { requests.to_string() }
}

/// Draws one line: the requests that the limit in `yaml` admits.
fn line(name: &str, yaml: &str) -> String {
    let file = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {yaml}\n");
    let loaded = weir_config::parse("picture.yaml", &file).expect("a valid limit");
    let rule = loaded.domains[0].nodes[0].rule.clone().expect("a limit");
    let Limit::Tiers { tiers, over_limit_policy } = rule.limit else { panic!("it is limited") };

    let start = Timestamp::from_secs(1_700_000_000);
    let mut counters: Vec<CounterState> =
        tiers.iter().map(|tier| CounterState::unused(tier, start)).collect();
    let mut drawn = String::new();
    for tick in 0..TICKS {
        let now = start.after(Period::from_millis(100 * tick));
        let mut admits =
            || !decide(&tiers, &mut counters, over_limit_policy, Direction::Take, Hits(1), now).over;
        drawn += &mark((0..offered(tick)).filter(|_| admits()).count() as u64);
    }
    format!("{name:<16} {drawn}\n")
}

#[test]
fn the_documentation_shows_the_requests_that_each_algorithm_admits() {
    let mut picture = format!("{:<16} ", "seconds");
    for tick in 0..TICKS {
        picture += &if tick % 10 == 0 { (tick / 10).to_string() } else { " ".to_owned() };
    }
    picture = picture.trim_end().to_owned() + "\n";
    let traffic: String = (0..TICKS).map(|tick| mark(offered(tick))).collect();
    writeln!(picture, "{:<16} {traffic}", "offered").expect("writing to a string cannot fail");
    for (name, yaml) in [
        ("fixed_window", "{ requests: 5, per: 1s }"),
        ("sliding_window", "{ requests: 5, per: 1s, algorithm: sliding_window }"),
        ("token_bucket", "{ requests: 5, per: 1s, algorithm: token_bucket }"),
        ("  burst: 15", "{ requests: 5, per: 1s, algorithm: token_bucket, burst: 15 }"),
        ("  refill: step", "{ requests: 5, per: 1s, algorithm: token_bucket, refill: step }"),
        ("  strict: true", "{ requests: 5, per: 1s, algorithm: token_bucket, strict: true }"),
        ("two tiers", "{ tiers: [{ requests: 5, per: 1s }, { requests: 10, per: 5s }] }"),
    ] {
        picture += &line(name, yaml);
    }
    let page = include_str!("../../../docs/rules.md");
    assert!(page.contains(&picture), "docs/rules.md should show\n{picture}");
}
