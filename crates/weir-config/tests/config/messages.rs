//! Tests the errors and warnings of rule files, with their positions.

/// Returns the errors of `text`, and its warnings with a `?` in front.
fn findings(text: &str) -> Vec<String> {
    let (errors, warnings) = match weir_config::parse("f.yaml", text) {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(found) => (found.errors, found.warnings),
    };
    let errors = errors.iter().map(ToString::to_string);
    errors.chain(warnings.iter().map(|warning| format!("?{warning}"))).collect()
}

#[track_caller]
pub(crate) fn assert_findings(text: &str, starts: &[&str]) {
    let found = findings(text);
    let matches = found.len() == starts.len()
        && found.iter().zip(starts).all(|(found, start)| found.starts_with(start));
    assert!(matches, "{text}\nfound {found:#?}\nexpected {starts:#?}");
}

/// Returns a file with one descriptor of `lines`, whose first is at 3:5.
fn descriptor(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {}\n", lines.replace('\n', "\n    "))
}

/// Returns a file with one `rate_limit` of `lines`, whose first is at 5:7. Its key is at 4:5.
pub(crate) fn rate_limit(lines: &str) -> String {
    descriptor(&format!("key: k\nrate_limit:\n  {}", lines.replace('\n', "\n  ")))
}

#[test]
fn an_empty_domain_is_an_error() {
    let message = "config file cannot have empty domain";
    assert_findings("", &[&format!("f.yaml: {message}")]);
    assert_findings("# nothing\n", &[&format!("f.yaml: {message}")]);
    assert_findings("descriptors:\n", &[&format!("f.yaml:1:1: {message}")]);
    assert_findings("domain: ''\ndescriptors: []\n", &[&format!("f.yaml:1:1: {message}")]);
}

#[test]
fn an_empty_key_is_an_error() {
    let message = "f.yaml:3:5: descriptor has empty key";
    assert_findings(&descriptor("value: v"), &[message]);
    assert_findings(&descriptor("key: ''"), &[message]);
    assert_findings(&descriptor("key: ~"), &[message]);
    assert_findings(
        &descriptor("key: [a]"),
        &["f.yaml:3:10: error loading config file: 'key' must be text, not a list"],
    );
}

#[test]
fn duplicate_descriptors_are_errors() {
    let twice = "domain: d\ndescriptors:\n- key: a\n  value: b\n  descriptors:\n  - key: c\n  - key: c\n- key: a\n  value: b\n";
    assert_findings(
        twice,
        &[
            "f.yaml:7:5: duplicate descriptor composite key 'd.a_b.c'; the first is at f.yaml:6:5",
            "f.yaml:8:3: duplicate descriptor composite key 'd.a_b'; the first is at f.yaml:3:3",
        ],
    );
    let values = "domain: d\ndescriptors:\n- {key: a, values: [x, y]}\n- {key: a, value: y}\n";
    assert_findings(
        values,
        &["f.yaml:4:3: duplicate descriptor composite key 'd.a_y'; the first is at f.yaml:3:3"],
    );
    assert_findings("domain: d\ndescriptors:\n- {key: a, value: x}\n- {key: a}\n- {key: a_x}\n", &[]);
}

#[test]
fn a_disabled_descriptor_is_checked_and_is_no_duplicate() {
    assert_findings("domain: d\ndescriptors:\n- {key: a}\n- {key: a, enabled: false}\n", &[]);
    let inside = "domain: d\ndescriptors:\n- key: a\n  enabled: false\n  rate_limit: {unit: eon}\n  descriptors:\n  - key: b\n  - key: b\n";
    assert_findings(
        inside,
        &[
            "f.yaml:5:22: invalid rate limit unit 'eon'",
            "f.yaml:8:5: duplicate descriptor composite key 'd.a.b'",
        ],
    );
}

#[test]
fn invalid_units_are_errors() {
    for (text, at, unit) in [
        ("requests_per_unit: 5\nunit: foo", "6:13", "foo"),
        ("requests_per_unit: 5\nunit: unknown", "6:13", "unknown"),
        ("requests_per_unit: 5\nunit: 1", "6:13", "1"),
        ("requests_per_unit: 5\nunit: ", "4:5", ""),
        ("requests_per_unit: 5", "4:5", ""),
    ] {
        let right = "write second, minute, hour, day, week, month or year";
        assert_findings(
            &rate_limit(text),
            &[&format!("f.yaml:{at}: invalid rate limit unit '{unit}'; {right}")],
        );
    }
    assert_findings(&descriptor("key: k\nrate_limit: {}"), &["f.yaml:4:5: invalid rate limit unit ''"]);
    assert_findings(&descriptor("key: k\nrate_limit: null"), &[]);
}

#[test]
fn unlimited_cannot_be_combined_with_a_limit() {
    assert_findings(
        &rate_limit("unlimited: true\nunit: day"),
        &["f.yaml:6:13: should not specify rate limit unit when unlimited"],
    );
    assert_findings(
        &rate_limit("unlimited: true\nper: 1s"),
        &["f.yaml:6:7: should not specify 'per' when unlimited"],
    );
    assert_findings(
        &rate_limit("unlimited: true\nrequests_per_unit: 5"),
        &["?f.yaml:6:7: 'requests_per_unit' has no effect with 'unlimited: true'"],
    );
    assert_findings(&rate_limit("unlimited: true"), &[]);
}

#[test]
fn invalid_replaces_are_errors() {
    let with = |replaces: &str| {
        rate_limit(&format!("unit: day\nrequests_per_unit: 1\nname: self\nreplaces: {replaces}"))
    };
    assert_findings(&with("[{name: }]"), &["f.yaml:8:18: should not have an empty replaces entry"]);
    assert_findings(&with("[{}]"), &["f.yaml:8:18: should not have an empty replaces entry"]);
    assert_findings(
        &with("[{name: self}]"),
        &["f.yaml:8:25: replaces should not contain name of same descriptor"],
    );
    assert_findings(
        &with("[other]"),
        &["f.yaml:8:18: config error, yaml file contains list of type other than map: other"],
    );
    assert_findings(
        &with("[{name: other}]"),
        &["?f.yaml:4:5: replaces 'other', but no rule in domain 'd' has that name"],
    );
}

#[test]
fn share_threshold_without_a_wildcard_is_an_error() {
    let message = "share_threshold can only be used with wildcard values (containing '*'), but found key";
    assert_findings(
        &descriptor("key: k\nvalue: v\nshare_threshold: true"),
        &[&format!("f.yaml:5:5: {message} 'k_v'")],
    );
    assert_findings(&descriptor("key: k\nshare_threshold: true"), &[&format!("f.yaml:4:5: {message} 'k'")]);
    assert_findings(&descriptor("key: k\nvalue: v*\nshare_threshold: true"), &[]);
}

#[test]
fn metadata_that_protobuf_cannot_represent_is_an_error() {
    assert_findings(
        &descriptor("key: k\nmetadata:\n  a: {b: [1, .nan]}"),
        &["f.yaml:5:18: error parsing metadata: a number must be finite"],
    );
    assert_findings(
        &descriptor("key: k\nmetadata:\n  {a: 1}: 2"),
        &["f.yaml:5:7: error parsing metadata: a key must be text"],
    );
    assert_findings(
        &descriptor("key: k\nmetadata: [1]"),
        &["f.yaml:4:15: error loading config file: 'metadata' must be a mapping, not a list"],
    );
}

#[test]
fn keys_that_are_not_text_are_errors() {
    let message = "config error, key is not of type string:";
    assert_findings(&format!("0.25: x\n{}", descriptor("key: k")), &[&format!("f.yaml:1:1: {message} 0.25")]);
    assert_findings(&descriptor("key: k\nyes: v"), &[&format!("f.yaml:4:5: {message} yes")]);
    assert_findings(&descriptor("key: k\n~: v"), &[&format!("f.yaml:4:5: {message} nothing")]);
    assert_findings(&descriptor("key: k\n? [a, {b: 1}]\n: v"), &[&format!("f.yaml:4:7: {message} a list")]);
}

#[test]
fn unknown_keys_are_errors() {
    let unknown = "config error, unknown key";
    assert_findings(
        &descriptor("key: k\nratelimit: {unit: day}"),
        &[&format!(
            "f.yaml:4:5: {unknown} 'ratelimit': did you mean 'rate_limit'? valid keys in a descriptor are key, value,"
        )],
    );
    assert_findings(
        &rate_limit("unit: day\nrequestsperunit: 5"),
        &[
            &format!("f.yaml:6:7: {unknown} 'requestsperunit': did you mean 'requests_per_unit'?"),
            "?f.yaml:4:5: 'requests_per_unit' is missing",
        ],
    );
    assert_findings(
        "domain: d\nxyz: 1\n",
        &[&format!("f.yaml:2:1: {unknown} 'xyz': valid keys at the top of a file are")],
    );
}

#[test]
fn list_elements_that_are_not_mappings_are_errors() {
    let message = "config error, yaml file contains list of type other than map:";
    assert_findings(
        "domain: d\ndescriptors:\n  - a\n  - key: k\n  - [b, 1]\n  -\n",
        &[
            &format!("f.yaml:3:5: {message} a"),
            &format!("f.yaml:5:5: {message} a list"),
            &format!("f.yaml:6:4: {message} nothing"),
        ],
    );
}

#[test]
fn values_of_a_wrong_type_are_errors() {
    let wrong = |text: &str, at: &str, message: &str| {
        assert_findings(&rate_limit(text), &[&format!("f.yaml:{at}: error loading config file: {message}")]);
    };
    for number in ["-1", "4294967296", "1.5", "'5'", "ten", "[5]"] {
        let text = format!("unit: day\nrequests_per_unit: {number}");
        wrong(&text, "6:26", "'requests_per_unit' must be a whole number from 0 to 4294967295, not ");
    }
    wrong(
        "unit: day\nrequests_per_unit: 1\nunit_multiplier: 0",
        "7:24",
        "'unit_multiplier' must be a whole number from 1 to 4294967295, not '0'",
    );
    wrong("unit: [day]\nrequests_per_unit: 1", "5:13", "'unit' must be text, not a list");
    wrong(
        "unlimited: maybe\nunit: day\nrequests_per_unit: 1",
        "5:18",
        "'unlimited' must be true or false, not the text 'maybe'",
    );
    assert_findings(
        &descriptor("key: k\nshadow_mode: 'true'"),
        &["f.yaml:4:18: error loading config file: 'shadow_mode' must be true or false, not the text 'true'"],
    );
    assert_findings(
        &descriptor("key: k\nrate_limit: [a]"),
        &["f.yaml:4:17: error loading config file: 'rate_limit' must be a mapping of unit, "],
    );
    assert_findings(
        "- a\n",
        &[
            "f.yaml:1:1: error loading config file: a rule file must be a mapping of domain, descriptors, all_or_nothing, plans, timezone, give_back, not a list",
        ],
    );
}

#[test]
fn a_limit_with_both_syntaxes_or_an_incomplete_one_is_an_error() {
    assert_findings(
        &rate_limit("unit: day\nrequests: 5"),
        &["f.yaml:6:7: 'requests' cannot be combined with 'unit'; write either 'requests' and 'per', or"],
    );
    assert_findings(
        &rate_limit("requests: 5"),
        &["f.yaml:5:7: 'requests' requires 'per', such as 'per: 1m'"],
    );
    assert_findings(&rate_limit("per: 1m"), &["f.yaml:5:7: 'per' requires 'requests'"]);
}

#[test]
fn invalid_periods_are_errors() {
    for period in ["10", "0s", "1.5h", "366d", "1y", "1h30m", "'10 s'"] {
        let written = period.trim_matches('\'');
        assert_findings(
            &rate_limit(&format!("requests: 1\nper: {period}")),
            &[&format!(
                "f.yaml:6:12: invalid period '{written}'; write a whole number and ms, s, m, h, d or w, from 1ms to 365d"
            )],
        );
    }
    assert_findings(
        &rate_limit("unit: year\nrequests_per_unit: 1\nunit_multiplier: 2"),
        &["f.yaml:7:24: 2 times 365d exceeds the longest period, 365d"],
    );
}

#[test]
fn invalid_lists_of_values_are_errors() {
    assert_findings(&descriptor("key: k\nvalues: []"), &["f.yaml:4:13: 'values' must not be empty"]);
    assert_findings(
        &descriptor("key: k\nvalues: [a, '', b]"),
        &["f.yaml:4:17: a value in 'values' must not be empty"],
    );
    assert_findings(&descriptor("key: k\nvalues: [a, b, a]"), &["f.yaml:4:20: duplicate value 'a'"]);
    assert_findings(
        &descriptor("key: k\nvalues: [a, [b]]"),
        &["f.yaml:4:17: 'values' must be a list of texts, but has a list"],
    );
    assert_findings(
        &descriptor("key: k\nvalues: a"),
        &["f.yaml:4:13: error loading config file: 'values' must be a list, not the text 'a'"],
    );
    assert_findings(
        &descriptor("key: k\nvalue: a\nvalues: [b]"),
        &["f.yaml:5:5: 'value' and 'values' cannot be combined"],
    );
}

#[test]
fn invalid_yaml_is_an_error() {
    assert_findings("'''", &["f.yaml:1:1: error loading config file: "]);
    assert_findings("domain: d\n\tdescriptors: x\n", &["f.yaml:1:9: error loading config file: "]);
    assert_findings("domain: d\ndescriptors: *x\n", &["f.yaml:2:14: error loading config file: "]);
    assert_findings(
        "domain: d\ndescriptors: &x [*x]\n",
        &["f.yaml:2:18: error loading config file: an anchor's value must not contain itself"],
    );
}

#[test]
fn a_duplicate_key_is_a_warning() {
    assert_findings(
        "domain: d\ndescriptors: []\ndomain: e\n",
        &["?f.yaml:3:1: duplicate key 'domain'; the first is at 1:1; the last one counts"],
    );
    assert_findings(
        &descriptor("key: k\nrate_limit: {unit: day}\nrate_limit: {requests_per_unit: 1}"),
        &["?f.yaml:5:5: duplicate key 'rate_limit'; the first is at 4:5; their entries are combined"],
    );
}

#[test]
fn only_the_first_document_is_read() {
    let warning = "only the first document of a file is read; move what follows '---' to a file of its own";
    for rest in ["---\ndomain: e\n", "---\n'\n", "... # end\n[\n", "---\n---\nx\n"] {
        let found = findings(&format!("domain: d\n{rest}"));
        let is_there = found.len() == 1 && found[0].ends_with(warning) && found[0].starts_with("?f.yaml:");
        assert!(is_there, "{rest}: {found:#?}");
    }
    assert_findings("domain: d\n---\ndomain: e\n", &[&format!("?f.yaml:2:1: {warning}")]);
    assert_findings("# first\n---\ndomain: d\n...\n---\n", &[]);
}

#[test]
fn probable_mistakes_are_warnings() {
    assert_findings(
        &rate_limit("unit: day"),
        &["?f.yaml:4:5: 'requests_per_unit' is missing and defaults to 0, which rejects every request"],
    );
    assert_findings(
        &rate_limit("unit: day\nrequests_per_unit: 010"),
        &["?f.yaml:6:26: '010' starts with 0, so YAML reads it as octal: 8"],
    );
    let shadowed = "domain: d\ndescriptors:\n- key: a\n  shadow_mode: true\n  quota_mode: false\n  descriptors:\n  - {key: b, rate_limit: {requests: 1, per: 1s}}\n";
    assert_findings(
        shadowed,
        &[
            "?f.yaml:4:3: 'shadow_mode' has no effect without 'rate_limit' beside it: it is not about nested descriptors",
        ],
    );
    assert_findings(
        &descriptor("key: 'k*'"),
        &[
            "?f.yaml:3:10: '*' in a key is literal here, but to envoyproxy/ratelimit it is a wildcard in the text",
        ],
    );
    assert_findings(
        &descriptor("key: '*'\nvalue: v\nshare_threshold: true"),
        &[
            "?f.yaml:3:10: '*' in a key is literal here",
            "?f.yaml:5:5: share_threshold has no effect without a wildcard in 'value'",
        ],
    );
    let late = "domain: d\ndescriptors:\n- {key: a, value: x*}\n- {key: b, value: xy*}\n- {key: a, value: xy*}\n- {key: a, value: xyz}\n";
    assert_findings(late, &["?f.yaml:5:3: this descriptor never matches: 'x*' at f.yaml:3:3 is tried first"]);
    let key_only = "domain: d\ndescriptors:\n- {key: a}\n- {key: a, value: '*'}\n";
    assert_findings(
        key_only,
        &["?f.yaml:3:3: this descriptor never matches: '*' at f.yaml:4:3 is tried first"],
    );
    assert_findings(
        "domain: d\ndescriptors:\n- {key: a, value: xy*}\n- {key: a, value: x*}\n- key: a\n",
        &[],
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "domain: d\ndescriptors:\n- value: v\n- key: a\n  rate_limit: {unit: x}\n- key: a\n  foo: 1\n";
    assert_findings(
        text,
        &[
            "f.yaml:3:3: descriptor has empty key",
            "f.yaml:5:22: invalid rate limit unit 'x'",
            "f.yaml:6:3: duplicate descriptor composite key 'd.a'",
            "f.yaml:7:3: config error, unknown key 'foo'",
        ],
    );
}

#[test]
fn an_error_that_an_alias_repeats_is_reported_once() {
    let text = "domain: d\ndescriptors:\n- key: a\n  rate_limit: &r {unit: x}\n- key: b\n  rate_limit: *r\n";
    assert_findings(text, &["f.yaml:4:25: invalid rate limit unit 'x'"]);
}

#[test]
fn a_limit_in_the_shadow_is_checked_like_any_other() {
    let beside = |shadow: &str| rate_limit(&format!("requests: 9\nper: 1m\nshadow: {shadow}"));
    assert_findings(&beside("{requests: 5, per: 1m}"), &[]);
    assert_findings(&beside("{requests: 9, per: 1h, algorithm: token_bucket, burst: 3}"), &[]);
    for (shadow, expected) in [
        ("{requests: 5, per: 1y}", "f.yaml:7:34: invalid period '1y'"),
        ("{requests: 5}", "f.yaml:7:16: 'requests' requires 'per'"),
        (
            "5",
            "f.yaml:7:15: error loading config file: 'shadow' must be a mapping of unit, requests_per_unit",
        ),
        ("{requests: 5, per: 1m, burst: 2}", "f.yaml:7:38: 'burst' requires 'algorithm: token_bucket'"),
        (
            "{requests: 5, per: 1m, name: n}",
            "f.yaml:7:38: config error, unknown key 'name': it belongs under 'rate_limit'",
        ),
        ("{tiers: []}", "f.yaml:7:23: 'tiers' must not be empty"),
        ("{requests: 9, per: 1m}", "?f.yaml:7:7: this 'shadow' is the limit itself"),
    ] {
        assert_findings(&beside(shadow), &[expected]);
    }
    assert_findings(
        &rate_limit("unlimited: true\nshadow: {requests: 5, per: 1m}"),
        &["f.yaml:6:7: a limit in the shadow of 'unlimited: true' has none to be compared with"],
    );
    assert_findings(
        &rate_limit("requests: 9\nper: 1m\nshare: {}\nshadow: {requests: 5, per: 1m}"),
        &["f.yaml:8:7: a limit that is shared has no 'shadow'"],
    );
    assert_findings(
        &descriptor("key: k\nrate_limit: {requests: 9, per: 1m}\nshadow: {requests: 5, per: 1m}"),
        &["f.yaml:5:5: config error, unknown key 'shadow': it belongs under 'rate_limit'"],
    );
}

/// Whoever knows another limiter writes networks and regular expressions. They are valid values, of nobody.
#[test]
fn values_that_mean_more_elsewhere_are_warned_of() {
    let found = |key: &str, value: &str| -> Vec<String> {
        let text = format!(
            "domain: d\ndescriptors:\n- key: {key}\n  value: '{value}'\n  rate_limit: {{requests: 1, per: 1s}}\n"
        );
        let loaded = weir_config::parse("f.yaml", &text).expect("a warning at most");
        loaded.warnings.iter().map(ToString::to_string).collect()
    };
    let network = |value: &str, right: &str| {
        let expected = format!(
            "f.yaml:4:10: '{value}' matches only this text: write 'match: cidr' and 'values: [{right}]' to match addresses"
        );
        assert_eq!(found("ip", value), [expected]);
    };
    network("10.0.0.0/8", "10.0.0.0/8");
    network("10.1.0.0/12", "10.0.0.0/12");
    network("2001:DB8::/32", "2001:db8::/32");
    network("10.1.2.3/32", "10.1.2.3");
    // which Envoy sends so
    assert_eq!(found("masked_remote_address", "10.1.2.0/24"), [""; 0]);

    let only = "it matches only this text";
    let star = "in it only '*' is special";
    for (value, means, right) in [
        ("^foo.*$", star, "write 'foo*'"),
        ("foo|bar", only, "write 'values: [foo, bar]'"),
        ("(foo|bar)", only, "write 'values: [foo, bar]'"),
        ("^/v1/(a|b)$", only, "write '*' for any text, or several values in 'values',"),
        ("^foo$", only, "write 'foo'"),
        (r"^www\.example\.com$", only, "write 'www.example.com'"),
        ("/v1/.*", star, "write '/v1/*'"),
        ("/users/[0-9]+", only, "write '*' for any text, or several values in 'values',"),
        (r"/users/\d+/*", star, "write '*' for any text, or several values in 'values',"),
        ("/[^/]+/x", only, "write '*' for any text, or several values in 'values',"),
        (".*", star, "leave 'value' out, which matches any value,"),
        (r".*\.pdf", star, "write '*.pdf'"),
    ] {
        let expected =
            format!("f.yaml:4:10: '{value}' is no regular expression here, and {means}: {right} instead");
        assert_eq!(found("path", value), [expected]);
    }
    for value in [
        "/",
        "/v1/orders",
        "/v1/*",
        "*.pdf",
        "www.example.com",
        "api.*",
        "10.*",
        "10.1.2.3",
        "*.example.com:8080",
        "price$",
        "US$",
        "$id",
        "a.b+c@example.com",
        "Mozilla/5.0 (X11; *)*",
        "GET",
        "1/8",
        "/10.0.0.0/x",
        "10.0.0.0/33",
        "v1.2.*",
        "filter[name]",
        "items[]",
        "what?",
        "a^b",
        "^",
        "|",
        "a|",
        "||",
        "/.well-known/*",
        "/.*",
        "[::1]:80",
        r"DOMAIN\dave",
        r"C:\windows",
        "{id}",
        "2026-11-28",
        "100%",
        "a-z",
        "x=(y)",
        "größe",
        "1..5",
    ] {
        assert_eq!(found("path", value), [""; 0], "{value}");
    }
}

/// Each value of a list has a place of its own.
#[test]
fn values_of_a_list_are_warned_of_at_their_place() {
    assert_findings(
        &descriptor("key: k\nvalues:\n- a\n- '10.0.0.0/8'\n- b|c"),
        &[
            "?f.yaml:6:7: '10.0.0.0/8' matches only this text: write 'match: cidr' and 'values: [10.0.0.0/8]'",
            "?f.yaml:7:7: 'b|c' is no regular expression here, and it matches only this text: write 'values: [b, c]'",
        ],
    );
}
