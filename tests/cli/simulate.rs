//! Tests the command `weir simulate`.

use std::fs;

use crate::child::{run, stderr, stdout};

/// The arguments of a short simulation.
const SMALL: [&str; 9] = ["simulate", "--keys", "1", "--limit", "100", "--windows", "3", "--instances", "2"];

/// Returns the fields of the line of `mode`.
fn line(text: &str, mode: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.starts_with(mode)).expect("a line for the mode");
    line.split("  ").map(str::trim).filter(|field| !field.is_empty()).map(str::to_owned).collect()
}

#[test]
fn simulate_prints_a_line_for_each_mode() {
    let output = run(&SMALL, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains('\r'), "no progress bar if standard error is not a terminal");
    let text = stdout(&output);
    assert!(
        text.starts_with(
            "2 instances, 100 requests per 1s, 2 times the limit offered (200 a second), spread evenly\n"
        ),
        "{text}"
    );
    let line = |mode| line(&text, mode);
    assert!(line("local")[1].starts_with('+') && line("local")[4] == "0", "{text}");
    assert_eq!((&*line("lease")[1], &*line("strict")[1]), ("0", "0"), "{text}");
    // some checks share a call
    assert_eq!((&*line("strict")[4], &*line("strict")[5]), ("0.94", "100 %"), "{text}");
    assert_eq!(line("interval")[5], "0 %", "{text}");
    for mode in ["auto", "local", "interval", "lease", "strict"] {
        assert_eq!(line(mode).len(), 8, "{mode}: {text}");
    }
    assert_eq!(stdout(&run(&SMALL, &[])), text, "equal seeds give equal simulations");
    // the output says what its columns are
    for column in
        ["worst overshoot", "used", "rejected early", "store calls a decision", "waited", "fallback"]
    {
        assert_eq!(text.matches(&format!("\n{column}  ")).count(), 1, "{column}: {text}");
    }
}

#[test]
fn a_rate_stands_for_a_multiple_of_the_limit() {
    let of = |more: &[&str]| {
        let output = run(&[&SMALL[..], &["--coordination", "lease", "--skew", "zipf"], more].concat(), &[]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let text = of(&["--rate", "300"]);
    assert!(text.contains("3 times the limit offered (300 a second), spread by Zipf's law\n"), "{text}");
    assert_eq!(text, of(&["--load", "3"]));
    let minutes = of(&["--rate", "5", "--period", "1m"]);
    assert!(minutes.contains("3 times the limit offered (5 a second)"), "{minutes}");
}

#[test]
fn simulate_suggests_a_mode_with_its_cost_and_bound() {
    let arguments =
        "simulate --keys 1 --limit 1000 --windows 2 --instances 5 --rate 5000 --skew zipf --suggest";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let text = stdout(&run(&arguments, &[]));
    let (_, suggestion) = text.rsplit_once("\n\n").expect("a last paragraph");
    let lines: Vec<&str> = suggestion.lines().collect();
    // ten times the limit and more for each instance: what `auto` stands for may exceed it a little
    assert_eq!(lines[0], "suggested: coordination: auto", "{suggestion}");
    assert!(lines[1].starts_with("  costs: ") && lines[1].ends_with(" store calls a second"), "{suggestion}");
    assert!(lines[2].contains("more than the limit in the worst period here"), "{suggestion}");
    assert_eq!(lines[3], "never above the limit: coordination: lease", "{suggestion}");
    assert_eq!(lines[5], "  can exceed: nothing, while the store replies and keeps its data", "{suggestion}");
    assert!(suggestion.contains("\nno request may wait: coordination: interval\n"), "{suggestion}");
}

#[test]
fn simulate_shows_what_callers_that_wait_get() {
    let few = ["simulate", "--limit", "100", "--windows", "3", "--instances", "2", "--arrivals", "steady"];
    let waiting = [&few[..], &["--coordination", "lease,local", "--wait", "1500ms"]].concat();
    let output = run(&waiting, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with(
            "2 instances, 100 requests per 1s, 2 times the limit offered in equal gaps (200 a second), spread evenly, \
             waiting up to 1.5s\n"
        ),
        "{text}"
    );
    // 600 come in three windows; those of five have room for 500
    assert_eq!(line(&text, "one line for all")[1..4], ["0", "100 %", "16.7 %"], "{text}");
    let lease = line(&text, "lease");
    assert_eq!(lease[1], "0", "{text}");
    assert!(lease[5].ends_with(" s") || lease[5].ends_with(" ms"), "{text}");
    // each instance has the whole limit, which is what is offered
    assert_eq!(line(&text, "local")[2..4], ["100 %", "0 %"], "{text}");
    assert_eq!(stdout(&run(&waiting, &[])), text, "equal seeds give equal simulations");
    let longest = stdout(&run(&[&few[..], &["--coordination", "local", "--wait"]].concat(), &[]));
    assert!(longest.contains(", waiting up to 60s\n"), "{longest}");
}

#[test]
fn simulate_measures_each_of_many_keys() {
    let few = "simulate --keys 100 --limit 3 --windows 3 --instances 2 --arrivals at-once";
    let few: Vec<&str> = few.split(' ').collect();
    let output = run(&few, &[]);
    let text = stdout(&output);
    assert!(
        text.starts_with(
            "2 instances, 3 requests per 1s for each of 100 keys, 2 times the limit offered at once \
             (6 a second), spread evenly\n"
        ),
        "{text}"
    );
    // a small limit is exact by default
    assert_eq!((&*line(&text, "auto")[1], &*line(&text, "strict")[1]), ("0", "0"), "{text}");
    assert_eq!((&*line(&text, "local")[1], &*line(&text, "strict")[2]), ("+100 %", "100 %"), "{text}");
    let chosen = stdout(&run(&[&few[..], &["--coordination", "lease,strict"]].concat(), &[]));
    assert_eq!((line(&chosen, "lease"), chosen.lines().count()), (line(&text, "lease"), 14), "{chosen}");
    let again = run(&few, &[]);
    assert_eq!(stdout(&again), text, "equal seeds give equal simulations");
}

#[test]
fn simulate_reports_invalid_arguments() {
    for (arguments, message) in [
        (&["--limit", "0"][..], "0 is not in 1..=4294967295"),
        (&["--period", "1y"], "500ms, 10s, 1m, 1h, 7d or 1w"),
        (&["--sync-interval", "0"], "it must be longer than 0"),
        (&["--algorithm", "leaky"], "fixed_window, sliding_window, token_bucket"),
        (&["--load", "0"], "the load must be above 0, such as 2 for twice the limit"),
        (&["--load", "nan"], "the load must be above 0"),
        (&["--instances", "0"], "cannot simulate this: 1 to 1000 instances can be simulated"),
        (&["--windows", "0"], "at least one window must be simulated"),
        (&["--rate", "0"], "the load must be above 0"),
        (&["--rate", "9", "--load", "2"], "cannot be used with"),
        (&["--coordination", "gossip"], "write auto, local, interval, lease, strict or split"),
        (&["--keys", "0"], "0 is not in 1..=1000000"),
        (&["--wait", "1s", "--suggest"], "cannot be used with"),
        (&["--burst", "5"], "only a token bucket has a burst"),
        (&["--share", "--instances", "5"], "cannot be used with"),
        (&["--share", "--coordination", "lease"], "cannot be used with"),
        (&["tenant=acme"], "--domain <DOMAIN>"),
        (&["--domain", "shop"], "<KEY=VALUE>"),
        (&["--domain", "shop", "--limit", "5", "tenant=acme"], "cannot be used with"),
    ] {
        let output = run(&[&["simulate"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn what_would_take_too_long_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let demands = dir.path().join("demands.csv");
    fs::write(&demands, format!("a\n{}", "1\n".repeat(600))).expect("a file");
    let demands = demands.to_str().expect("a plain path");
    for (arguments, expected) in [
        (
            &["--share", demands, "--period", "365d"][..],
            "600 periods of 365d take too long, at most 500 can be",
        ),
        (&["--wait", "2500000h"], "callers wait for 1h at most"),
    ] {
        let output = run(&[&["simulate"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    let valid = run(&["simulate", "--share", demands, "--period", "300d"], &[]);
    assert_eq!(valid.status.code(), Some(0), "{}", stderr(&valid));
}

const RULES: &str = "\
domain: shop
descriptors:
  - key: tenant
    rate_limit: { requests: 30, per: 500ms, coordination: split }
    descriptors:
      - key: path
        value: /slow
        rate_limit: { tiers: [{ requests: 10, per: 1s }, { requests: 100, per: 1h }] }
  - key: plan
    value: free
    rate_limit: { unit: second, requests_per_unit: 40 }
  - key: plan
    value: gold
    rate_limit: { unlimited: true }
  - key: api
    rate_limit: { requests: 100, per: 10s, share: {} }
";

#[test]
fn simulate_takes_the_limit_from_a_rule() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("shop.yaml");
    fs::write(&file, RULES).expect("a file");
    let file = file.to_str().expect("a plain path");
    let simulate = |domain, arguments: &[&str]| {
        run(&[&["simulate", "--windows", "2", "--config", file, "--domain", domain], arguments].concat(), &[])
    };
    let output = simulate("shop", &["--keys", "3", "tenant=acme"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let (first, rest) = text.split_once('\n').expect("lines");
    assert_eq!(first, format!("rule shop.tenant ({file}:4:5), coordination: split"), "{text}");
    assert!(rest.starts_with("3 instances, 30 requests per 500ms for each of 3 keys,"), "{text}");
    // beside those that are always compared
    assert_eq!(line(&text, "split")[1], "0", "{text}");
    // all descriptors that match it have one counter
    let one = stdout(&simulate("shop", &["--coordination", "local", "plan=free"]));
    assert!(one.contains("\n3 instances, 40 requests per 1s, 2 times the limit"), "{one}");
    for (domain, entries, expected) in [
        ("mesh", &["tenant=acme"][..], "unknown domain \"mesh\""),
        ("shop", &["tennant=acme"], "no rule matches tennant=acme: `weir explain`"),
        ("shop", &["plan=gold"], "is unlimited: there is nothing to simulate"),
        ("shop", &["api=a"], "is a pool: simulate its members with --share --limit 100 --period 10s"),
        (
            "shop",
            &["tenant=acme", "path=/slow"],
            "has several limits: simulate one of them, such as --limit 10 --period 1s",
        ),
    ] {
        let output = simulate(domain, entries);
        assert_eq!(output.status.code(), Some(1), "{entries:?}");
        assert!(stderr(&output).contains(expected), "{entries:?}: {}", stderr(&output));
    }
    fs::write(file, "domain: shop\ndescriptors: 5\n").expect("a file");
    let invalid = simulate("shop", &["tenant=acme"]);
    assert!(stderr(&invalid).contains("shop.yaml:2:"), "{}", stderr(&invalid));
}
