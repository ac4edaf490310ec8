//! Tests tables: values and limits that are listed in files.

use std::{
    fmt::Write as _,
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tempfile::TempDir;
use weir_config::{Document, DocumentContent, Loaded, Options, TableOptions};
use weir_limit::{CompiledRule, Entry, KeyHasher, Lookup, RuleSet, TableMemory};

/// Plans of a key, and a list of values that are rejected.
const RULES: &str = "\
domain: shop
plans:
  free: {requests: 100, per: 1m}
  pro: {tiers: [{requests: 1000, per: 1m}, {requests: 100000, per: 1d}]}
descriptors:
  - key: tenant
    limits_from: plans.csv
    default: free
  - key: address
    values_from: blocked.txt
    rate_limit: {requests: 0, per: 1m}
";

const PLANS: &str = "value,plan,limit\nacme,pro,\nbolt,,5 per 1s\ncorp,free,\n";

fn dir(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    dir
}

fn load(dir: &Path) -> Loaded {
    weir_config::load(dir, &Options::default()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn rules(dir: &Path) -> RuleSet {
    RuleSet::new(&load(dir).domains, KeyHasher::random())
}

/// Returns the errors without the directory's name, one a line.
fn errors_with(dir: &Path, options: &Options) -> String {
    let errors = weir_config::load(dir, options).expect_err("errors");
    let root = fs::canonicalize(dir).expect("a path");
    errors
        .to_string()
        .replace(&format!("{}/", dir.display()), "")
        .replace(&format!("{}/", root.display()), "")
}

fn errors(dir: &Path) -> String {
    errors_with(dir, &Options::default())
}

/// Returns the errors of these rules and of `plans.csv`.
fn errors_of(rules: &str, plans: &str) -> String {
    errors(dir(&[("rules.yaml", rules), ("plans.csv", plans), ("blocked.txt", "a\n")]).path())
}

fn entries<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<Entry<'a>> {
    pairs.iter().map(|(key, value)| Entry { key, value }).collect()
}

fn found<'r>(rules: &'r RuleSet, pairs: &[(&str, &str)]) -> Option<&'r CompiledRule> {
    match rules.find("shop", &entries(pairs)) {
        Lookup::Rule(rule) => Some(rule),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    }
}

/// The limits that a value of `tenant` has, and the path of its stats.
fn limits(rules: &RuleSet, pairs: &[(&str, &str)]) -> Option<(String, String)> {
    let rule = found(rules, pairs)?;
    let tiers: Vec<String> = rule.rule.tiers().iter().map(ToString::to_string).collect();
    let path = rule.stat_path(&entries(pairs));
    assert_eq!(path, None, "no value is part of the stats");
    Some((tiers.join(" and "), rule.path.to_string()))
}

fn counter(rules: &RuleSet, pairs: &[(&str, &str)]) -> weir_limit::CounterKey {
    rules.counter_key(found(rules, pairs).expect("a rule"), "shop", &entries(pairs))
}

#[test]
fn each_value_has_the_limit_of_its_line_and_a_counter_of_its_own() {
    let dir = dir(&[
        ("rules.yaml", RULES),
        ("plans.csv", PLANS),
        ("blocked.txt", "192.0.2.1\n# of a scan\n192.0.2.9\n"),
    ]);
    let loaded = load(dir.path());
    assert_eq!((loaded.files, loaded.warnings.len()), (1, 0), "{:?}", loaded.warnings);
    let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
    for (value, limit, path) in [
        ("acme", "1000 requests per 1m and 100000 requests per 1d", "shop.tenant.plan_pro"),
        ("bolt", "5 requests per 1s", "shop.tenant.limit_5_per_1s"),
        ("corp", "100 requests per 1m", "shop.tenant.plan_free"),
        // those that the table lacks, also the header's
        ("value", "100 requests per 1m", "shop.tenant.plan_free"),
        ("", "100 requests per 1m", "shop.tenant.plan_free"),
    ] {
        let found = limits(&rules, &[("tenant", value)]);
        assert_eq!(found, Some((limit.to_owned(), path.to_owned())), "{value}");
    }
    let keys = ["acme", "bolt", "corp", "value", "other"].map(|value| counter(&rules, &[("tenant", value)]));
    for (i, key) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|other| other != key), "{i}");
    }
    // as with `values`, those of a list share one
    let of_list = ["192.0.2.1", "192.0.2.9"].map(|value| counter(&rules, &[("address", value)]));
    assert_eq!(of_list[0], of_list[1]);
    assert_eq!(limits(&rules, &[("address", "192.0.2.1")]).expect("a rule").1, "shop.address_blocked.txt");
    assert!(
        found(&rules, &[("address", "192.0.2.2")]).is_none()
            && found(&rules, &[("address", "# of a scan")]).is_none()
    );
}

#[test]
fn a_list_may_count_by_value() {
    let text = RULES.replace("values_from: blocked.txt", "values_from: blocked.txt\n    count_by: value");
    let dir = dir(&[("rules.yaml", &text), ("plans.csv", PLANS), ("blocked.txt", "a\nb\n")]);
    let rules = rules(dir.path());
    assert_ne!(counter(&rules, &[("address", "a")]), counter(&rules, &[("address", "b")]));
    assert_eq!(limits(&rules, &[("address", "b")]).expect("a rule").1, "shop.address_blocked.txt");
}

#[test]
fn exact_values_come_before_tables_and_tables_before_globs() {
    let text = |default: &str| {
        format!(
            "domain: shop\nplans: {{free: {{requests: 1, per: 1m}}}}\ndescriptors:\n\
             - {{key: tenant, rate_limit: {{requests: 9, per: 1m, name: any}}}}\n\
             - {{key: tenant, value: 'a*', rate_limit: {{requests: 8, per: 1m}}}}\n\
             - {{key: tenant, value: acme, rate_limit: {{requests: 7, per: 1m}}}}\n\
             - {{key: tenant, limits_from: plans.csv{default}}}\n\
             - {{key: tenant, values_from: more.txt, rate_limit: {{requests: 6, per: 1m}}}}\n"
        )
    };
    let plans = "value,limit\nacme,1 per 1s\nabba,2 per 1s\n";
    let limit_of = |default: &str, value: &str| {
        let dir = dir(&[("rules.yaml", &text(default)), ("plans.csv", plans), ("more.txt", "arte\n")]);
        let rules = rules(dir.path());
        limits(&rules, &[("tenant", value)]).expect("a rule").0
    };
    for (value, limit) in [("acme", "7"), ("abba", "2"), ("arte", "6"), ("anna", "8"), ("bolt", "9")] {
        assert!(limit_of("", value).starts_with(&format!("{limit} request")), "{value}");
    }
    // with a default, the table has a limit for each value that no other has exactly
    for (value, limit) in [("acme", "7"), ("abba", "2"), ("arte", "6"), ("anna", "1"), ("bolt", "1")] {
        assert!(limit_of(", default: free", value).starts_with(&format!("{limit} request")), "{value}");
    }
}

#[test]
fn limits_below_a_key_are_those_of_its_line() {
    let text = "\
domain: shop
plans: {free: {requests: 1, per: 1m}}
descriptors:
  - key: tenant
    rate_limit: {requests: 50, per: 1s}
    descriptors:
      - key: path
        value: /search
        limits_from: {file: plans.csv, by: tenant, column: search}
        default: free
        descriptors:
          - {key: method, rate_limit: {requests: 3, per: 1s}}
      - key: path
        value: /upload
        limits_from: {file: plans.csv, by: tenant, column: upload}
";
    let plans = "value,search,upload,plan\nacme,10 per 1m,20 per 1m,\nbolt,10 per 1m,20 per 1m,\ncorp,,,free\nduff,10 per 1m,unlimited,\n";
    let dir = dir(&[("rules.yaml", text), ("plans.csv", plans)]);
    let rules = rules(dir.path());
    // three different lines, and the rest
    assert_eq!(rules.rules().len(), 4 + 3 * 3 + 2);
    let of = |tenant: &str, path: &str| limits(&rules, &[("tenant", tenant), ("path", path)]);
    let limit = |limit: &str, path: &str| Some((limit.to_owned(), path.to_owned()));
    let two = "shop.tenant.limit_10_per_1m_20_per_1m";
    assert_eq!(of("acme", "/search"), limit("10 requests per 1m", &format!("{two}.path_/search")));
    assert_eq!(of("bolt", "/upload"), limit("20 requests per 1m", &format!("{two}.path_/upload")));
    assert_eq!(of("corp", "/upload"), limit("1 request per 1m", "shop.tenant.plan_free.path_/upload"));
    assert_eq!(of("duff", "/upload").map(|(limit, _)| limit).as_deref(), Some(""));
    assert_eq!(of("other", "/search"), limit("1 request per 1m", "shop.tenant.path_/search"));
    assert_eq!(of("other", "/upload"), None);
    assert_ne!(
        counter(&rules, &[("tenant", "acme"), ("path", "/search")]),
        counter(&rules, &[("tenant", "bolt"), ("path", "/search")])
    );
    // what the table does not have stays
    for tenant in ["acme", "corp", "other"] {
        assert_eq!(
            limits(&rules, &[("tenant", tenant)]).map(|(limit, _)| limit).as_deref(),
            Some("50 requests per 1s")
        );
        let method = [("tenant", tenant), ("path", "/search"), ("method", "GET")];
        assert_eq!(limits(&rules, &method).map(|(limit, _)| limit).as_deref(), Some("3 requests per 1s"));
    }
}

#[test]
fn what_is_beside_a_table_is_of_each_of_its_rules() {
    let text = RULES.replace(
        "    default: free\n",
        "    default: free\n    shadow_mode: true\n    detailed_metric: true\n    value_to_metric: true\n    \
         rate_limit: {name: tenants, replaces: [{name: x}], coordination: local}\n",
    );
    let dir = dir(&[("rules.yaml", &text), ("plans.csv", PLANS), ("blocked.txt", "a\n")]);
    let rules = rules(dir.path());
    for tenant in ["acme", "bolt", "other"] {
        let rule = &found(&rules, &[("tenant", tenant)]).expect("a rule").rule;
        assert!(rule.shadow_mode && rule.replaces == [Box::from("x")] && rule.coordination.mode.is_some());
        assert_eq!(rule.name.as_deref(), Some("tenants"));
        limits(&rules, &[("tenant", tenant)]);
    }
    let errors = errors_of(&text.replace("coordination: local", "requests: 5, per: 1m"), PLANS);
    assert!(
        errors.contains("rules.yaml:12:56: 'requests' cannot be combined with 'limits_from'"),
        "{errors}"
    );
}

#[test]
fn plans_belong_to_a_domain_in_whatever_file() {
    let (plans, others) = RULES.split_at(RULES.find("descriptors").expect("descriptors"));
    let other = format!("domain: shop\n{others}");
    let files = [("b.yaml", plans), ("a.yaml", &other), ("plans.csv", PLANS), ("blocked.txt", "a")];
    let dir = dir(&files);
    let merge = Options { merge_domains: true, ..Options::default() };
    let loaded = weir_config::load(dir.path(), &merge).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.files, 2);
    fs::write(dir.path().join("c.yaml"), "domain: shop\nplans:\n  pro: {unlimited: true}\n").expect("a file");
    let errors = errors_with(dir.path(), &merge);
    assert_eq!(errors, "c.yaml:3:3: the plan 'pro' of the domain is at b.yaml:4:3, too; keep one of both");
}

#[test]
fn files_of_windows_and_quoted_fields_are_read() {
    let text = format!("\u{feff}{}", PLANS.replace("acme", "\"acme, \"\"inc\"\"\"").replace('\n', "\r\n"));
    let dir =
        dir(&[("rules.yaml", RULES), ("plans.csv", &text), ("blocked.txt", "\u{feff}a\r\n b \r\n\r\n")]);
    let rules = rules(dir.path());
    let path = |pairs| limits(&rules, pairs).map(|(_, path)| path);
    assert_eq!(path(&[("tenant", "acme, \"inc\"")]).as_deref(), Some("shop.tenant.plan_pro"));
    assert_eq!(path(&[("tenant", "bolt")]).as_deref(), Some("shop.tenant.limit_5_per_1s"));
    assert!(found(&rules, &[("address", "a")]).is_some() && found(&rules, &[("address", "b")]).is_some());
}

#[test]
fn errors_in_tables_have_their_place() {
    for (plans, expected) in [
        (
            "",
            "plans.csv:1:1: a table of limits begins with a line that names its columns, such as 'value,limit'",
        ),
        (
            "valeu,limit\n",
            "plans.csv:1:1: unknown column 'valeu'; the columns are value, limit, plan, timezone, starts, those of limits as rules name them\n\
             plans.csv:1:1: the column 'value' is missing",
        ),
        ("value,value,plan\n", "plans.csv:1:7: the column 'value' is there twice"),
        ("value\n", "plans.csv:1:1: the column 'limit' is missing, which a rule names"),
        (
            "value,limit\na,1 per 1m\nb,2 per 1m\na,1 per 1m\n",
            "plans.csv:4:1: the value 'a' is there twice; the first is in line 2",
        ),
        ("value,limit\na\n", "plans.csv:2:1: this line has 1 fields, and the first one names 2"),
        ("value,limit\n,1 per 1m\n", "plans.csv:2:1: a value must not be empty"),
        (
            "value,limit,plan\na,,\n",
            "plans.csv:2:1: this line has no plan, and not each limit; fill 'plan', or limit",
        ),
        (
            "value,plan,limit\na,free,1 per 1m\n",
            "plans.csv:2:8: this line has a limit and a plan; leave one of both out",
        ),
        ("value,plan\na,frree\n", "plans.csv:2:3: unknown plan 'frree'; did you mean 'free'?"),
        (
            "value,limit\ná,100 pr 1m\n",
            "plans.csv:2:3: invalid limit '100 pr 1m'; write a limit such as '100 per 1m', \
             several with ';' between them, or 'unlimited'",
        ),
        (
            "value,limit\na,1 per 1y\n",
            "plans.csv:2:3: invalid period '1y'; write a whole number and ms, s, m, h, d or w, from 1ms to 365d, \
             such as 500ms, 10s, 1m, 1h, 7d or 1w, or calendar month",
        ),
        (
            "value,limit,timezone\na,1 per 1m,UTC\n",
            "plans.csv:2:12: the limit has no calendar window, such as '1000 per calendar month', so it has no 'timezone'",
        ),
        (
            "value,plan,starts\na,free,15\n",
            "plans.csv:2:8: the plan has no calendar window, such as '1000 per calendar month', so it has no 'starts'",
        ),
        (
            "value,limit\n\"a,1 per 1m\n",
            "plans.csv:2:1: this quote has no end; write another one at the end of the field",
        ),
    ] {
        assert_eq!(errors_of(RULES, plans), expected, "{plans}");
    }
    let long = format!("value,limit\n{},1 per 1m\n{},1 per 1m\n", "v".repeat(4_096), "v".repeat(4_097));
    assert_eq!(
        errors_of(RULES, &long),
        "plans.csv:3:1: a value has at most 4096 bytes, and this one has 4097"
    );
    let bytes = dir(&[("rules.yaml", RULES), ("plans.csv", PLANS)]);
    fs::write(bytes.path().join("blocked.txt"), b"a\n\xff\n").expect("a file");
    assert_eq!(errors(bytes.path()), "blocked.txt:2:1: this is not UTF-8");
}

#[test]
fn ten_errors_of_a_table_are_told_and_the_number_of_the_others() {
    let mut plans = String::from("value,limit\n");
    for i in 0..1_000 {
        writeln!(plans, "v{i},{i} pr 1m").expect("a string");
    }
    let errors = errors_of(RULES, &plans);
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 11, "{errors}");
    assert!(lines[9].starts_with("plans.csv:11:4: invalid limit '9 pr 1m'"), "{errors}");
    assert_eq!(lines[10], "plans.csv:12:5: and 990 more errors, starting here");
}

#[test]
fn errors_in_what_rules_say_of_tables_have_their_place() {
    let with = |rest: &str| format!("domain: shop\ndescriptors:\n  - key: tenant\n{rest}\n");
    for (rest, expected) in [
        (
            "    limits_from: gone.csv",
            "rules.yaml:4:18: cannot read the table gone.csv: No such file or directory",
        ),
        (
            "    values_from: plans.csv\n    limits_from: plans.csv",
            "rules.yaml:5:5: 'values_from' and 'limits_from' cannot be combined",
        ),
        (
            "    value: a\n    limits_from: plans.csv",
            "rules.yaml:5:18: the table has the values of 'tenant'; remove those that rules.yaml:3:5 names",
        ),
        (
            "    value: a\n    values_from: blocked.txt",
            "rules.yaml:4:5: 'value' and 'values_from' cannot be combined",
        ),
        ("    count_by: value", "rules.yaml:4:5: 'count_by: value' requires 'values_from'"),
        ("    default: free", "rules.yaml:4:5: 'default' requires 'limits_from'"),
        (
            "    limits_from: plans.csv\n    default: free",
            "rules.yaml:5:14: unknown plan 'free'; the domain has no 'plans'",
        ),
        ("    limits_from: {by: tenant}", "rules.yaml:4:5: 'limits_from' requires 'file'"),
        (
            "    limits_from: {file: plans.csv, collumn: limit}",
            "rules.yaml:4:36: config error, unknown key 'collumn': did you mean 'column'?",
        ),
        (
            "    limits_from: {file: plans.csv, by: user}",
            "rules.yaml:4:40: no key 'user' is above this descriptor; 'by' names its key, or one above it",
        ),
        (
            "    limits_from: plans.csv\n    descriptors:\n      - {key: path, limits_from: {file: other.csv, by: tenant}}",
            "rules.yaml:6:34: the limits of 'tenant' are in plans.csv already",
        ),
        (
            "    limits_from: plans.csv\n  - key: tenant\n    values_from: blocked.txt",
            "blocked.txt:1:1: the value 'a' is in line 2 of plans.csv, too",
        ),
        (
            "    limits_from: plans.csv\nplans: {p: {requests: 1, per: 1m, name: n}}",
            "rules.yaml:5:35: a plan has no 'name'; it belongs to the rules",
        ),
        (
            "    limits_from: plans.csv\nplans: {p: {requests: 1, per: 1m, share: {}}}",
            "rules.yaml:5:35: a plan has no 'share'",
        ),
    ] {
        let files = [
            ("rules.yaml", &*with(rest)),
            ("plans.csv", "value,limit\na,1 per 1m\n"),
            ("other.csv", "value,limit\na,1 per 1m\n"),
            ("blocked.txt", "a\n"),
        ];
        let errors = errors(dir(&files).path());
        assert!(errors.lines().any(|line| line.starts_with(expected)), "{rest}:\n{errors}");
    }
}

#[test]
fn values_without_a_limit_are_warned_of() {
    let text = RULES.replace("    default: free\n", "");
    let files = dir(&[("rules.yaml", &text), ("plans.csv", PLANS), ("blocked.txt", "a")]);
    let warnings = load(files.path()).warnings;
    assert!(
        warnings.len() == 1
            && warnings[0].to_string().contains("values of 'tenant' that the table lacks have no limit"),
        "{warnings:?}"
    );
    let rest = format!("{text}  - key: tenant\n");
    fs::write(files.path().join("rules.yaml"), rest).expect("a file");
    assert!(load(files.path()).warnings.is_empty());
}

#[test]
fn descriptors_that_a_default_hides_are_warned_of() {
    let text = format!("{RULES}  - key: tenant\n    value: 'a*'\n  - key: tenant\n    value: acme\n");
    let files = dir(&[("rules.yaml", &text), ("plans.csv", PLANS), ("blocked.txt", "a")]);
    let warnings: Vec<String> = load(files.path()).warnings.iter().map(ToString::to_string).collect();
    let expected =
        "rules.yaml:12:5: this descriptor never matches: the 'default' of plans.csv is tried first";
    assert!(warnings.len() == 1 && warnings[0].ends_with(expected), "{warnings:?}");
}

#[test]
fn rows_of_two_keys_give_limits_on_one_path() {
    let text = "\
domain: shop
descriptors:
  - key: tenant
    descriptors:
      - key: user
        limits_from: {file: plans.csv, by: tenant}
        descriptors:
          - key: path
            limits_from: {file: users.csv, by: user}
";
    let files = [
        ("rules.yaml", text),
        ("plans.csv", "value,limit\nacme,1 per 1m\nbolt,2 per 1m\n"),
        ("users.csv", "value,limit\nann,3 per 1m\nbob,4 per 1m\n"),
    ];
    let dir = dir(&files);
    let rules = rules(dir.path());
    let of = |tenant: &str, user: &str, path: Option<&str>| {
        let mut pairs = vec![("tenant", tenant), ("user", user)];
        pairs.extend(path.map(|path| ("path", path)));
        limits(&rules, &pairs).map(|(limit, _)| limit.split(' ').next().unwrap_or_default().to_owned())
    };
    for (tenant, user, own, below) in [
        ("acme", "ann", Some("1"), Some("3")),
        ("bolt", "bob", Some("2"), Some("4")),
        ("bolt", "eve", Some("2"), None),
        ("corp", "ann", None, Some("3")),
        ("corp", "eve", None, None),
    ] {
        assert_eq!(of(tenant, user, None).as_deref(), own, "{tenant} {user}");
        assert_eq!(of(tenant, user, Some("/")).as_deref(), below, "{tenant} {user}");
    }
}

#[test]
fn tables_are_no_rule_files() {
    // neither are YAML, nor has the second an extension that says so
    let files = dir(&[
        (
            "rules.yaml",
            "domain: shop\ndescriptors:\n  - {key: a, values_from: lists/blocked, rate_limit: {requests: 0, per: 1s}}\n",
        ),
        ("unused.csv", "value,limit\n{{{\n"),
        ("notes.txt", "domain: a\ndomain: b\n"),
        ("lists/blocked", "- a\nb: [\n"),
    ]);
    assert_eq!(load(files.path()).files, 1);
    assert!(found(&rules(files.path()), &[("a", "- a")]).is_some());
    // a table that no rule names any more is a rule file again
    fs::write(files.path().join("rules.yaml"), "domain: shop").expect("a file");
    assert!(errors(files.path()).starts_with("lists/blocked:2:"));
    // the name of a table
    fs::write(
        files.path().join("rules.yaml"),
        "domain: shop\ndescriptors: [{key: a, values_from: rules.yaml}]",
    )
    .expect("a file");
    let errors = errors(files.path());
    assert!(
        errors.contains("rules.yaml:2:37: this file is a table, as rules.yaml:2:37 says, so it has no rules"),
        "{errors}"
    );
}

#[test]
fn a_table_that_no_rule_names_is_not_read() {
    let files = dir(&[("rules.yaml", RULES), ("plans.csv", PLANS), ("blocked.txt", "a")]);
    load(files.path());
    fs::write(files.path().join("rules.yaml"), "domain: shop").expect("a file");
    fs::write(files.path().join("plans.csv"), "no table").expect("a file");
    assert!(load(files.path()).warnings.is_empty());
}

#[test]
fn links_lead_to_tables_within_the_directories_only() {
    let outside = dir(&[("plans.csv", PLANS), ("blocked.txt", "a")]);
    let files = dir(&[("inside/real.csv", PLANS), ("rules.yaml", RULES)]);
    symlink("inside/real.csv", files.path().join("plans.csv")).expect("a link");
    symlink(outside.path().join("blocked.txt"), files.path().join("blocked.txt")).expect("a link");
    let expected = "rules.yaml:10:18: the table blocked.txt is outside of the rules' directory, links resolved; move it \
                    there, or below WEIR_TABLES_DIR";
    assert_eq!(errors(files.path()), expected);
    let tables = TableOptions { dir: Some(outside.path().to_owned()), ..TableOptions::default() };
    let options = Options { tables, ..Options::default() };
    assert!(weir_config::load(files.path(), &options).is_ok(), "the link leads to the directory of tables");
    fs::remove_file(files.path().join("blocked.txt")).expect("removed");
    fs::remove_file(files.path().join("plans.csv")).expect("removed");
    assert!(weir_config::load(files.path(), &options).is_ok(), "both are in the directory of tables");
    let up = RULES.replace("plans.csv", "../plans.csv");
    fs::write(files.path().join("rules.yaml"), up).expect("a file");
    let parent = files.path().parent().expect("a parent");
    let escaped = parent.join("plans.csv");
    let is_mine = File::create_new(&escaped).is_ok();
    let errors = errors_with(files.path(), &options);
    if is_mine {
        fs::remove_file(&escaped).expect("removed");
    }
    assert!(errors.contains("../plans.csv is outside of the rules' directory"), "{errors}");
}

#[test]
fn standard_input_has_tables_in_their_directory_only() {
    let files = dir(&[("plans.csv", PLANS), ("blocked.txt", "a")]);
    let errors =
        weir_config::load_input("<stdin>", RULES.as_bytes(), &Options::default()).expect_err("errors");
    let expected =
        "<stdin>:7:18: the table 'plans.csv' is a file beside rule files, and these rules are none";
    assert!(errors.to_string().starts_with(expected), "{errors}");
    let tables = TableOptions { dir: Some(files.path().to_owned()), ..TableOptions::default() };
    let options = Options { tables, ..Options::default() };
    let loaded = weir_config::load_input("<stdin>", RULES.as_bytes(), &options);
    assert!(loaded.is_ok(), "{loaded:?}");
}

/// As from a control plane, or in a trial of rules: neither may read files.
#[test]
fn documents_have_no_tables() {
    let files = dir(&[("plans.csv", PLANS), ("blocked.txt", "a")]);
    let tables = TableOptions { dir: Some(files.path().to_owned()), ..TableOptions::default() };
    let options = Options { tables, ..Options::default() };
    let tree = serde_json::json!({
        "domain": "shop", "descriptors": [{ "key": "tenant", "values_from": "blocked.txt", "rate_limit": { "unlimited": true } }],
    });
    for content in [DocumentContent::Yaml(RULES.to_owned()), DocumentContent::Tree(tree)] {
        let document = Document { name: "shop".to_owned(), content };
        let errors = weir_config::load_documents(vec![document], &options).expect_err("errors");
        let errors: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
        assert!(
            errors
                .iter()
                .all(|error| error.contains("is a file beside rule files, and these rules are none")),
            "{errors:?}"
        );
        assert!(errors.iter().any(|error| error.contains("'blocked.txt'")), "{errors:?}");
    }
}

/// A ConfigMap: visible links to the files of the version to which `..data` leads.
#[test]
fn rules_and_tables_of_a_config_map_are_of_one_version() {
    let files = dir(&[]);
    let version = |name: &str, plan: &str| {
        let dir = files.path().join(name);
        fs::create_dir(&dir).expect("a directory");
        let rules = format!(
            "domain: shop\nplans: {{{plan}: {{requests: 1, per: 1m}}}}\ndescriptors: [{{key: tenant, limits_from: \
             plans.csv}}, {{key: tenant}}]\n"
        );
        fs::write(dir.join("rules.yaml"), rules).expect("a file");
        fs::write(dir.join("plans.csv"), format!("value,plan\nacme,{plan}\n")).expect("a file");
    };
    let swap = |name: &str| {
        symlink(name, files.path().join("..data_tmp")).expect("a link");
        fs::rename(files.path().join("..data_tmp"), files.path().join("..data")).expect("a rename");
    };
    version("..v0", "p0");
    swap("..v0");
    for name in ["rules.yaml", "plans.csv"] {
        symlink(format!("..data/{name}"), files.path().join(name)).expect("a link");
    }
    // a version lives for one load at least, and may change in the midst of the next one
    let (is_done, loads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1..100 {
                let seen = loads.load(Ordering::Acquire);
                while loads.load(Ordering::Acquire) == seen {
                    std::thread::yield_now();
                }
                version(&format!("..v{i}"), &format!("p{i}"));
                swap(&format!("..v{i}"));
                fs::remove_dir_all(files.path().join(format!("..v{}", i - 1))).expect("removed");
            }
            is_done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            // the plan of a table is one of its own version's, or it would be unknown
            let rules = rules(files.path());
            assert!(found(&rules, &[("tenant", "acme")]).is_some());
            loads.fetch_add(1, Ordering::Release);
        }
    });
    assert_eq!(
        limits(&rules(files.path()), &[("tenant", "acme")]).expect("a rule").1,
        "shop.tenant.plan_p99"
    );
}

#[test]
fn a_table_that_is_replaced_while_it_is_read_is_whole() {
    let files = dir(&[("rules.yaml", RULES), ("blocked.txt", "a")]);
    let write = |plan: &str, values: usize| {
        let mut text = String::from("value,plan\n");
        (0..values).for_each(|i| writeln!(text, "v{i},{plan}").expect("a string"));
        fs::write(files.path().join("new"), text).expect("a file");
        fs::rename(files.path().join("new"), files.path().join("plans.csv")).expect("a rename");
    };
    write("free", 1_000);
    let is_done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..50 {
                write(if i % 2 == 0 { "pro" } else { "free" }, 1_000 + i);
            }
            is_done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            let Ok(loaded) = weir_config::load(files.path(), &Options::default()) else {
                // `new` is a rule file with errors for a moment, or the table has changed each time
                continue;
            };
            let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
            let path = |value: &str| limits(&rules, &[("tenant", value)]).expect("a rule").1;
            assert_eq!(path("v0"), path("v999"), "no half of each");
        }
    });
}

#[test]
fn a_file_has_at_most_5_000_000_lines() {
    let dir = dir(&[("rules.yaml", RULES), ("plans.csv", PLANS)]);
    let mut text = "\n".repeat(4_999_999);
    text.push_str("192.0.2.1\n");
    fs::write(dir.path().join("blocked.txt"), &text).expect("a file");
    assert!(found(&rules(dir.path()), &[("address", "192.0.2.1")]).is_some());
    text.push_str("192.0.2.2\n");
    fs::write(dir.path().join("blocked.txt"), &text).expect("a file");
    assert_eq!(errors(dir.path()), "blocked.txt:5000001:1: a table has at most 5000000 lines");
    fs::write(dir.path().join("blocked.txt"), "a\n").expect("a file");
    let mut text = PLANS.to_owned() + &"\n".repeat(4_999_995);
    text.push_str("last,free\n");
    fs::write(dir.path().join("plans.csv"), text.replace("last,free", "last,free,")).expect("a file");
    assert!(found(&rules(dir.path()), &[("tenant", "last")]).is_some());
    fs::write(dir.path().join("plans.csv"), text.replace("last,free", "\nlast,free,")).expect("a file");
    assert_eq!(errors(dir.path()), "plans.csv:5000001:1: a table has at most 5000000 lines");
}

#[test]
fn a_line_of_a_gigabyte_fails_early() {
    let dir = dir(&[("rules.yaml", RULES), ("plans.csv", PLANS), ("blocked.txt", "a\n")]);
    for (name, text) in [("blocked.txt", "a\n"), ("plans.csv", "value,plan\n")] {
        let path = dir.path().join(name);
        let before = fs::read(&path).expect("a file");
        fs::write(&path, text).expect("a file");
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(1 << 30))
            .expect("a sparse file");
        assert_eq!(
            errors(dir.path()),
            format!("{name}:2:1: a line has at most 65536 bytes, and this one has more")
        );
        fs::write(&path, before).expect("a file");
    }
}

#[test]
fn all_tables_together_have_a_limit_also_those_that_are_still_in_force() {
    let mut plans = String::from("value,plan\n");
    (0..20_000).for_each(|i| writeln!(plans, "tenant{i:010},free").expect("a string"));
    let dir = dir(&[("rules.yaml", RULES), ("plans.csv", &plans), ("blocked.txt", "a")]);
    let options = |most| Options {
        tables: TableOptions { dir: None, memory: Arc::new(TableMemory::new(most)) },
        ..Options::default()
    };
    let errors = errors_with(dir.path(), &options(300_000));
    assert!(errors.starts_with("plans.csv:"), "{errors}");
    assert!(
        errors.contains("all tables together take more than WEIR_MAX_TABLE_BYTES, which is 300000"),
        "{errors}"
    );
    let options = options(1_400_000);
    let memory = Arc::clone(&options.tables.memory);
    let load = || weir_config::load(dir.path(), &options);
    let first = load().expect("there is room for one");
    let used = memory.used();
    assert!((700_000..750_000).contains(&used), "{used}");
    assert!(load().is_err(), "the first is still there");
    assert_eq!(memory.used(), used, "what was read until then is gone");
    drop(first);
    assert_eq!(memory.used(), 0);
    assert!(load().is_ok());
}

#[test]
fn clones_of_rules_share_their_tables() {
    let dir = dir(&[("rules.yaml", RULES), ("plans.csv", PLANS), ("blocked.txt", "a")]);
    let loaded = load(dir.path());
    let clone = loaded.domains.clone();
    for (first, second) in loaded.domains[0].nodes.iter().zip(&clone[0].nodes) {
        assert_eq!(first.values, second.values, "the same table in memory");
    }
}

#[test]
fn different_limits_are_bounded_since_each_is_a_node() {
    let mut plans = String::from("value,limit\n");
    (0..2_000).for_each(|i| writeln!(plans, "v{i},{} per 1m", i + 1).expect("a string"));
    let mut text = String::from(
        "domain: shop\ndescriptors:\n  - key: tenant\n    limits_from: plans.csv\n    descriptors:\n",
    );
    (0..100).for_each(|i| {
        writeln!(text, "      - {{key: k{i}, rate_limit: {{requests: 1, per: 1m}}}}").expect("a string");
    });
    let errors = errors_of(&text, &plans);
    let expected = "rules.yaml:4:18: the table has 2000 different limits, each with 101 descriptors here, and tables add at \
                    most 150000 to all rules; equal limits are one, so give more values the same plan";
    assert_eq!(errors, expected);
}

#[test]
fn networks_are_listed_in_a_table_too() {
    let rules = "\
domain: shop
descriptors:
  - key: address
    match: cidr
    values_from: blocked.txt
    count_by: network
    rate_limit: {requests: 5, per: 1m}
  - key: address
    match: cidr
    values: [10.0.0.0/8]
    rate_limit: {unlimited: true}
";
    let dir =
        dir(&[("rules.yaml", rules), ("blocked.txt", "# some\n10.1.0.0/16\n\n2001:db8::/32\n192.0.2.7\n")]);
    let set = self::rules(dir.path());
    let of = |value: &str| found(&set, &[("address", value)]).map(|rule| rule.path.to_string());
    for value in ["10.1.2.3", "2001:DB8::1", "192.0.2.7", "::ffff:10.1.0.1"] {
        assert_eq!(of(value).as_deref(), Some("shop.address_blocked.txt"), "{value}");
    }
    assert_eq!(of("10.2.0.0").as_deref(), Some("shop.address_10.0.0.0/8"));
    assert_eq!(of("192.0.2.8"), None);
    let rule = found(&set, &[("address", "10.1.2.3")]).expect("a rule");
    let key = |value: &str| set.counter_key(rule, "shop", &entries(&[("address", value)]));
    assert_eq!(key("10.1.2.3"), key("10.1.9.9"));
    assert_ne!(key("10.1.2.3"), key("192.0.2.7"));
    fs::write(dir.path().join("blocked.txt"), "10.1.0.0/16\n10.1.2.0/8\nbad\n10.0.0.0/8\n").expect("a file");
    assert_eq!(
        errors(dir.path()).lines().collect::<Vec<_>>(),
        [
            "blocked.txt:2:1: '10.1.2.0/8' has bits after its prefix; write '10.0.0.0/8', or the address alone",
            "blocked.txt:3:1: 'bad' is no network; write an address, or one with a prefix length, such as 10.0.0.0/8 or \
             2001:db8::/32",
            "rules.yaml:10:14: duplicate network 10.0.0.0/8 of 'shop.address'; the first is at blocked.txt:4:1",
        ]
    );
}

/// A customer's own month: the plan's windows, cut by the clocks and the billing day of the row.
#[test]
fn rows_have_their_own_time_zones_and_billing_days() {
    let rules = "\
domain: shop
timezone: Europe/Berlin
plans:
  pro: {tiers: [{requests: 9, per: 1s}, {requests: 1000, per: calendar month}]}
descriptors:
  - key: tenant
    limits_from: plans.csv
    default: pro
";
    let plans = "value,plan,limit,timezone,starts\nacme,pro,,Asia/Tokyo,15\nbolt,pro,,,\ncorp,pro,,,03\n\
                 dyn,,7 per calendar day,,\neve,,7 per calendar day,America/New_York,\n";
    let dir = dir(&[("rules.yaml", rules), ("plans.csv", plans)]);
    let mut loaded = load(dir.path());
    let at = weir_config::time("2027-05-20T12:00:00Z", None).expect("a time");
    let until = weir_config::put_in_force(&mut loaded.domains, at);
    assert_eq!(until, weir_config::time("2027-05-20T22:00:00Z", None).ok(), "midnight in Berlin");
    let set = RuleSet::new(&loaded.domains, KeyHasher::random());
    let window = |value: &str| {
        let rule = found(&set, &[("tenant", value)]).expect("a rule");
        let (start, end) = rule.rule.tiers().last().expect("a tier").window(at);
        [start, end].map(|edge| weir_config::words(edge, None).replace("+00:00[UTC]", ""))
    };
    for (value, window_of) in [
        ("acme", ["2027-05-14T15:00:00", "2027-06-14T15:00:00"]),
        ("bolt", ["2027-04-30T22:00:00", "2027-05-31T22:00:00"]),
        ("corp", ["2027-05-02T22:00:00", "2027-06-02T22:00:00"]),
        ("dyn", ["2027-05-19T22:00:00", "2027-05-20T22:00:00"]),
        ("eve", ["2027-05-20T04:00:00", "2027-05-21T04:00:00"]),
        ("other", ["2027-04-30T22:00:00", "2027-05-31T22:00:00"]),
    ] {
        assert_eq!(window(value), window_of, "{value}");
    }
}

#[test]
fn a_plan_may_have_a_schedule() {
    let rules = "\
domain: shop
timezone: Europe/Berlin
plans:
  shop: {schedule: [{requests: 1, per: 1m, active: {from: \"08:00\", to: \"18:00\"}}, {requests: 2, per: 1m}]}
descriptors:
  - key: tenant
    limits_from: plans.csv
    default: shop
    rate_limit: {name: plan, coordination: strict}
";
    let dir = dir(&[("rules.yaml", rules), ("plans.csv", "value,plan\nacme,shop\n")]);
    let mut loaded = load(dir.path());
    for (at, requests) in
        [("2027-05-20T06:00:00Z", 1), ("2027-05-20T16:00:00Z", 2), ("2027-05-21T06:00:00Z", 1)]
    {
        let at = weir_config::time(at, None).expect("a time");
        weir_config::put_in_force(&mut loaded.domains, at);
        let set = RuleSet::new(&loaded.domains, KeyHasher::random());
        for value in ["acme", "other"] {
            let rule = &found(&set, &[("tenant", value)]).expect("a rule").rule;
            assert_eq!((rule.tiers()[0].requests, rule.name.as_deref()), (requests, Some("plan")));
            assert_eq!(rule.coordination.mode, Some(weir_limit::Coordination::Strict));
        }
    }
}
