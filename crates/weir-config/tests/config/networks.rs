//! `match: cidr` and `count_by`: what is read, what is an error, and what is warned of.

use weir_config::parse;
use weir_limit::{Coordination, CountBy, Limit};

/// A rule file whose descriptor has these lines.
fn text(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n- {}\n", descriptor.replace('\n', "\n  "))
}

fn errors(text: &str) -> Vec<String> {
    let errors = parse("f.yaml", text).expect_err("errors").errors;
    errors.iter().map(ToString::to_string).collect()
}

fn warnings(text: &str) -> Vec<String> {
    parse("f.yaml", text).expect("valid rules").warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn networks_are_read_in_any_spelling() {
    let written = text(
        "key: ip\nmatch: cidr\nvalues: [10.0.0.0/8, '2001:DB8::/32', 192.0.2.7, '::ffff:198.51.100.0/120']\n\
                        count_by: network\nrate_limit: {requests: 5, per: 1m}",
    );
    let loaded = parse("f.yaml", &written).expect("valid rules");
    assert_eq!(loaded.warnings, []);
    let node = &loaded.domains[0].nodes[0];
    assert_eq!(node.values.to_string(), "10.0.0.0/8|2001:db8::/32|192.0.2.7|198.51.100.0/24");
    assert_eq!(node.count_by, CountBy::Network);
}

#[test]
fn what_is_no_network_is_an_error_at_its_place() {
    let written = text(
        "key: ip\nmatch: cidr\nvalues:\n- 10.1.2.3/8\n- 2001:db8::1/32\n- example.com\n- 10.0.0.0/33\n- 10.*\n\
                        rate_limit: {requests: 5, per: 1m}",
    );
    let right =
        "is no network; write an address, or one with a prefix length, such as 10.0.0.0/8 or 2001:db8::/32";
    assert_eq!(
        errors(&written),
        [
            "f.yaml:6:5: '10.1.2.3/8' has bits after its prefix; write '10.0.0.0/8', or the address alone".to_owned(),
            "f.yaml:7:5: '2001:db8::1/32' has bits after its prefix; write '2001:db8::/32', or the address alone".to_owned(),
            format!("f.yaml:8:5: 'example.com' {right}"),
            format!("f.yaml:9:5: '10.0.0.0/33' {right}"),
            format!("f.yaml:10:5: '10.*' {right}"),
        ]
    );
}

#[test]
fn a_network_is_listed_once_on_a_level() {
    let written = "\
domain: d
descriptors:
- key: ip
  match: cidr
  values: [10.0.0.0/8, 10.1.0.0/16, '::ffff:10.0.0.0/104']
  rate_limit: {requests: 5, per: 1m}
- key: ip
  match: cidr
  values:
  - 10.1.0.0/16
  rate_limit: {requests: 6, per: 1m}
- key: other
  match: cidr
  values: [10.0.0.0/8]
  rate_limit: {requests: 5, per: 1m}
  descriptors:
  - key: ip
    match: cidr
    values: [10.0.0.0/8]
    rate_limit: {requests: 5, per: 1m}
";
    assert_eq!(
        errors(written),
        [
            "f.yaml:5:37: duplicate network 10.0.0.0/8 of 'd.ip'; the first is at f.yaml:5:12",
            "f.yaml:10:5: duplicate network 10.1.0.0/16 of 'd.ip'; the first is at f.yaml:5:24",
        ]
    );
}

#[test]
fn keys_that_do_not_go_together_are_errors() {
    let limit = "rate_limit: {requests: 5, per: 1m}";
    for (descriptor, error) in [
        ("match: cidr", "f.yaml:4:3: 'match: cidr' takes a list: write 'values: [10.0.0.0/8]'"),
        (
            "match: cidr\nvalue: 10.0.0.0/8",
            "f.yaml:5:3: 'match: cidr' takes a list: write 'values: [10.0.0.0/8]'",
        ),
        ("match: network", "f.yaml:4:10: unknown match 'network'; write glob or cidr"),
        (
            "match: cidr\nvalues: []",
            "f.yaml:5:11: 'values' must not be empty; remove it to match every value",
        ),
        ("count_by: network", "f.yaml:4:3: 'count_by: network' requires 'match: cidr' with 'values'"),
        ("count_by: list", "f.yaml:4:3: 'count_by: list' requires 'match: cidr' with 'values'"),
        (
            "value: a*\ncount_by: address",
            "f.yaml:5:3: 'count_by: address' requires 'match: cidr' with 'values', or neither 'value' nor 'values'",
        ),
        ("count_by: prefix/24", ""),
        (
            "count_by: subnet",
            "f.yaml:4:13: unknown count_by 'subnet'; write list, network, address, or a prefix length of IPv6 such as \
             prefix/64, with one of IPv4 before it such as prefix/24/64",
        ),
    ] {
        let written = text(&format!("key: ip\n{descriptor}\n{limit}"));
        if error.is_empty() {
            assert_eq!(warnings(&written), [""; 0], "{descriptor}");
        } else {
            assert_eq!(errors(&written), [error], "{descriptor}");
        }
    }
}

#[test]
fn counting_each_address_of_ipv6_is_warned_of() {
    let at = |descriptor: &str| {
        warnings(&text(&format!("key: ip\n{descriptor}\nrate_limit: {{requests: 5, per: 1m}}")))
    };
    let note = "an end user of IPv6 holds a /64 at least, and so has as many counters as it likes; write 'count_by: prefix/64'";
    assert_eq!(at("count_by: address"), [format!("f.yaml:4:13: {note}")]);
    assert_eq!(at("count_by: prefix/65"), [format!("f.yaml:4:13: {note}")]);
    let cidr = "match: cidr\nvalues: [10.0.0.0/8";
    assert_eq!(at(&format!("{cidr}, '::/0']\ncount_by: address")), [format!("f.yaml:6:13: {note}")]);
    assert_eq!(at(&format!("{cidr}]\ncount_by: address")), [""; 0]);
    assert_eq!(at("count_by: prefix/64"), [""; 0]);
}

#[test]
fn a_list_that_rejects_is_warned_of_unless_the_rest_has_a_rule() {
    let block = "domain: d\ndescriptors:\n- key: ip\n  match: cidr\n  values: [10.0.0.0/8]\n  rate_limit: {requests: 0}\n";
    let rest = "- key: ip\n  rate_limit: {requests: 5, per: 1m}\n";
    assert_eq!(
        warnings(block),
        [
            "f.yaml:6:3: this list rejects addresses, and any other text in 'ip' passes, such as an address with a port; write \
          a descriptor of 'ip' without values, too, with the limit of all others"
        ]
    );
    assert_eq!(warnings(&format!("{block}{rest}")), [""; 0]);
    assert_eq!(warnings(&block.replace("{requests: 0}", "{unlimited: true}")), [""; 0]);
    assert_eq!(warnings(&block.replace("{requests: 0}", "{requests: 1, per: 1s}")), [""; 0]);
}

#[test]
fn zero_requests_need_no_period_and_no_store() {
    let rule = |limit: &str| {
        let loaded = parse("f.yaml", &text(&format!("key: k\nrate_limit: {limit}"))).expect("valid rules");
        loaded.domains[0].nodes[0].rule.clone().expect("a rule")
    };
    let closed = rule("{requests: 0}");
    assert!(
        matches!(&closed.limit, Limit::Tiers { tiers, .. } if tiers.len() == 1 && tiers[0].requests == 0)
    );
    assert_eq!(closed.coordination.mode, Some(Coordination::Local));
    assert_eq!(rule("{requests: 0, coordination: strict}").coordination.mode, Some(Coordination::Strict));
    // as envoyproxy/ratelimit counts it
    assert_eq!(rule("{requests_per_unit: 0, unit: day}").coordination.mode, None);
    assert_eq!(
        errors(&text("key: k\nrate_limit: {requests: 1}")),
        ["f.yaml:4:16: 'requests' requires 'per', such as 'per: 1m'"]
    );
}
