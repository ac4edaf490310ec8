//! Tests that keys at levels where they have no effect are ignored with a warning, where envoyproxy/ratelimit ignores
//! them.

use weir_config::{ConfigErrors, Loaded};

/// A file with a line for the tested key at each level, in flow style so that any value fits.
struct Level {
    name: &'static str,
    /// `@` stands for the tested key and its value.
    file: &'static str,
    /// The keys that have an effect there.
    effective: &'static [&'static str],
    /// The column of the tested key in its line.
    column: u32,
    line: u32,
}

const ROOT: Level = Level {
    name: "root",
    file: "domain: d\n@\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    effective: &["domain", "descriptors"],
    line: 2,
    column: 1,
};

const DESCRIPTOR: Level = Level {
    name: "descriptor",
    file: "domain: d\ndescriptors:\n- key: k\n  @\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    effective: &[
        "key",
        "value",
        "descriptors",
        "rate_limit",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ],
    line: 4,
    column: 3,
};

const RATE_LIMIT: Level = Level {
    name: "rate_limit",
    file: "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    @\n",
    effective: &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
    line: 7,
    column: 5,
};

const REPLACES: Level = Level {
    name: "replaces",
    file: "domain: d\ndescriptors:\n- {key: n, rate_limit: {unlimited: true, name: n}}\n- key: k\n  rate_limit:\n    \
           unlimited: true\n    replaces:\n    - name: n\n      @\n",
    effective: &["name"],
    line: 9,
    column: 7,
};

const TIER: Level = Level {
    name: "tiers",
    file: "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    tiers:\n    - requests: 1\n      per: 1m\n      @\n",
    effective: &["unit", "requests_per_unit"],
    line: 8,
    column: 7,
};

const REFERENCE_LEVELS: [Level; 4] = [ROOT, DESCRIPTOR, RATE_LIMIT, REPLACES];

/// Every key of envoyproxy/ratelimit, and the text of a warning that names the levels where it has an effect.
const REFERENCE_KEYS: [(&str, &str); 16] = [
    ("domain", "at the top of a file"),
    ("key", "in a descriptor"),
    ("value", "in a descriptor"),
    ("descriptors", "at the top of a file or in a descriptor"),
    ("rate_limit", "in a descriptor"),
    ("unit", "under 'rate_limit'"),
    ("requests_per_unit", "under 'rate_limit'"),
    ("unlimited", "under 'rate_limit'"),
    ("shadow_mode", "in a descriptor"),
    ("quota_mode", "in a descriptor"),
    ("name", "under 'rate_limit' or in an entry of 'replaces'"),
    ("replaces", "under 'rate_limit'"),
    ("detailed_metric", "in a descriptor"),
    ("value_to_metric", "in a descriptor"),
    ("share_threshold", "in a descriptor"),
    ("metadata", "in a descriptor"),
];

/// The keys that only weir has.
const OWN_KEYS: [&str; 15] = [
    "values",
    "enabled",
    "unit_multiplier",
    "requests",
    "per",
    "tiers",
    "algorithm",
    "burst",
    "refill",
    "strict",
    "coordination",
    "sync_interval",
    "on_store_failure",
    "give_back",
    "colour",
];

/// A value of every type that envoyproxy/ratelimit accepts where it has no effect.
const ACCEPTED: [&str; 12] = [
    "text",
    "''",
    "'12'",
    "12",
    "-3",
    "true",
    "2026-11-21",
    "{}",
    "[]",
    "[{}, {key: a, unit: {name: [{}]}}]",
    "{unit: 1, descriptors: [{key: a, rate_limit: {unit: fortnight}}]}",
    "{metadata: {any: [1, x, [2]], 1.5: ~}}",
];

const NULLS: [&str; 4] = ["null", "~", "NULL", ""];

// === impl Level ===

impl Level {
    fn load(&self, key: &str, value: &str) -> Result<Loaded, ConfigErrors> {
        weir_config::parse("f.yaml", &self.file.replace('@', &format!("{key}: {value}")))
    }

    fn at(&self) -> String {
        format!("f.yaml:{}:{}: ", self.line, self.column)
    }
}

#[test]
fn a_key_without_effect_is_ignored_with_a_warning() {
    let mut tried = 0;
    for level in REFERENCE_LEVELS {
        let plain = level.load("# nothing", "").expect("rules").domains;
        for (key, right) in REFERENCE_KEYS {
            if level.effective.contains(&key) {
                continue;
            }
            for value in ACCEPTED {
                let what = format!("{}: {key}: {value}", level.name);
                let loaded = level.load(key, value).unwrap_or_else(|errors| panic!("{what}\n{errors}"));
                let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
                if (level.name, key) == ("root", "name") {
                    assert!(warnings.is_empty(), "{what}: {warnings:?}");
                } else {
                    let begin = format!("{}'{key}' has no effect ", level.at());
                    let end = format!(" and is ignored; it has one {right}");
                    let is_expected = |warning: &str| warning.starts_with(&begin) && warning.ends_with(&end);
                    assert!(warnings.len() == 1 && is_expected(&warnings[0]), "{what}: {warnings:?}");
                }
                // compares the debug output, since rules do not implement equality; the positions are equal
                assert_eq!(format!("{:?}", loaded.domains), format!("{plain:?}"), "{what}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, (14 + 6 + 11 + 15) * ACCEPTED.len());
}

#[test]
fn null_for_a_key_without_effect_gives_no_warning() {
    for level in REFERENCE_LEVELS {
        for (key, _) in REFERENCE_KEYS.into_iter().filter(|(key, _)| !level.effective.contains(key)) {
            for null in NULLS {
                let what = format!("{}: {key}: {null}", level.name);
                let loaded = level.load(key, null).unwrap_or_else(|errors| panic!("{what}\n{errors}"));
                assert!(loaded.warnings.is_empty(), "{what}: {:?}", loaded.warnings);
            }
        }
    }
}

#[test]
fn keys_that_only_weir_has_are_errors_at_other_levels() {
    let valid: [(&str, &[&str]); 5] = [
        ("root", &["give_back"]),
        ("descriptor", &["values", "enabled"]),
        ("rate_limit", &OWN_KEYS[2..14]),
        ("replaces", &[]),
        ("tiers", &OWN_KEYS[2..10]),
    ];
    for (level, (name, valid)) in [ROOT, DESCRIPTOR, RATE_LIMIT, REPLACES, TIER].into_iter().zip(valid) {
        assert_eq!(level.name, name);
        for key in
            OWN_KEYS.into_iter().filter(|key| !valid.contains(key) && (name, *key) != ("tiers", "tiers"))
        {
            for value in ["text", "null"] {
                let what = format!("{name}: {key}");
                let errors = level.load(key, value).expect_err(&what).errors;
                let begin = format!("{}config error, unknown key '{key}': ", level.at());
                let error = errors[0].to_string();
                assert!(errors.len() == 1 && error.starts_with(&begin), "{what}: {errors:?}");
                assert_eq!(error.contains(": it belongs "), key != "colour", "{what}: {error}");
            }
        }
    }
}

#[test]
fn a_tier_accepts_only_its_own_keys() {
    // envoyproxy/ratelimit has no tiers, so no file written for it has keys there
    for (key, _) in REFERENCE_KEYS.into_iter().filter(|(key, _)| !TIER.effective.contains(key)) {
        let errors = TIER.load(key, "x").expect_err(key).errors;
        let begin = format!("{}config error, unknown key '{key}': it belongs ", TIER.at());
        assert!(errors[0].to_string().starts_with(&begin), "{errors:?}");
    }
}

#[test]
fn files_as_envoy_gateway_prints_them_give_no_warning() {
    let text = "name: default/gateway/http
domain: default/gateway/http
descriptors:
- key: route/rule/0
  value: route/rule/0
  rate_limit: null
  descriptors:
  - key: header
    value: \"\"
    rate_limit:
      requests_per_unit: 3
      unit: HOUR
      unlimited: false
      name: \"\"
      replaces: []
    descriptors: []
    shadow_mode: false
    quota_mode: false
    detailed_metric: false
    value_to_metric: false
    share_threshold: false
    metadata: null
  shadow_mode: false
  detailed_metric: false
";
    let loaded = weir_config::parse("f.yaml", text).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert!(loaded.domains[0].nodes[0].children[0].rule.is_some());
    let empty = weir_config::parse("f.yaml", "name: d\ndomain: d\ndescriptors: null\n").expect("rules");
    assert!(empty.warnings.is_empty(), "{:?}", empty.warnings);
}

#[test]
fn a_rate_limit_without_contents_gives_a_warning_unless_it_is_null() {
    let warnings = |written: &str| {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {written}\n");
        let warnings = weir_config::parse("f.yaml", &text).expect("rules").warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = warnings("");
    assert!(
        found.len() == 1 && found[0].starts_with("f.yaml:4:3: nothing is written under 'rate_limit'"),
        "{found:?}"
    );
    for null in ["null", "~", "Null"] {
        assert!(warnings(null).is_empty(), "{null}");
    }
}
