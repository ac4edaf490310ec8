//! Input that is made to hurt: refused, with a place, without a panic.

use std::{fmt::Write as _, fs, fs::File, time::Instant};

use weir::config::{self, Options};

/// Far more than it takes: it tells what ends from what does not.
const DEADLINE_SECONDS: u64 = 60;

/// The first error of `text`.
fn refused(text: &str) -> String {
    let started = Instant::now();
    let errors = config::parse("f.yaml", text).expect_err("errors");
    assert!(started.elapsed().as_secs() < DEADLINE_SECONDS);
    errors.errors[0].to_string()
}

#[test]
fn a_bomb_of_aliases() {
    let mut text = "domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..20 {
        let alias = format!("*a{},", i - 1).repeat(10);
        writeln!(text, "a{i}: &a{i} [{alias}]").expect("a string");
    }
    let error = refused(&text);
    assert!(error.ends_with("more than 2000000 values, aliases resolved"), "{error}");
}

#[test]
fn a_bomb_of_merges() {
    let mut text = "domain: d\na0: &a0 {k0: x, k1: x, k2: x, k3: x, k4: x}\n".to_owned();
    for i in 1..40 {
        writeln!(text, "a{i}: &a{i} {{<<: [*a{0}, *a{0}, *a{0}], j{i}: *a{0}}}", i - 1).expect("a string");
    }
    let error = refused(&text);
    assert!(error.contains("more than 2000000 values") || error.contains("nested deeper"), "{error}");
}

#[test]
fn deep_nesting_in_every_style() {
    let flow = format!("domain: d\ndescriptors: {}{}", "[".repeat(3000), "]".repeat(3000));
    let block = format!("domain: d\ndescriptors:\n {}x", "- ".repeat(3000));
    let mut mappings = String::new();
    for i in 0..3000 {
        writeln!(mappings, "{}k:", " ".repeat(i)).expect("a string");
    }
    let mut aliases = "domain: d\na0: &a0 [x]\n".to_owned();
    for i in 1..3000 {
        writeln!(aliases, "a{i}: &a{i} [*a{}]", i - 1).expect("a string");
    }
    for text in [flow, block, mappings, aliases] {
        let error = refused(&text);
        assert!(error.ends_with("nested deeper than 128 levels"), "{error}");
    }
}

#[test]
fn rules_may_be_nested_as_deep_as_the_limit_says() {
    let mut text = "domain: d\n".to_owned();
    for level in 0..60 {
        let indent = " ".repeat(level * 2);
        write!(text, "{indent}descriptors:\n{indent}- key: k\n").expect("a string");
    }
    let loaded = config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let mut depth = 0;
    let mut nodes = &loaded.domains[0].nodes;
    while let Some(node) = nodes.first() {
        depth += 1;
        nodes = &node.children;
    }
    assert_eq!(depth, 60);
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let dir = tempfile::tempdir().expect("a directory");
    // a file with a hole: it has 100 MB without needing them
    File::create(dir.path().join("large.yaml")).and_then(|file| file.set_len(100_000_000)).expect("a file");
    let errors = config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    assert!(
        errors.ends_with(
            "large.yaml: error loading config file: it has 100000000 bytes, more than the 16777216 that a file may have"
        ),
        "{errors}"
    );
}

#[test]
fn bytes_that_are_no_text() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.yaml"), b"domain: d\n# \xc3\xa4\xff\n").expect("a file");
    let errors = config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    assert!(
        errors.ends_with("a.yaml:2:4: error loading config file: this is not UTF-8, as YAML must be"),
        "{errors}"
    );
}

#[test]
fn large_values_in_wrong_places() {
    let mut text = "domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..4 {
        writeln!(text, "a{i}: &a{i} [{}]", format!("*a{},", i - 1).repeat(10)).expect("a string");
    }
    writeln!(text, "descriptors: [{}]", "*a3,".repeat(100)).expect("a string");
    let error = refused(&text);
    assert!(error.starts_with("f.yaml:2:1: config error, unknown key 'a0'"), "{error}");
}

#[test]
fn ten_thousand_rules_are_fine() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for i in 0..10_000 {
        write!(text, "- key: k\n  value: v{i}\n  rate_limit: {{unit: day, requests_per_unit: {i}}}\n")
            .expect("a string");
    }
    let loaded = config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.domains[0].nodes.len(), 10_000);
}

#[test]
fn ten_thousand_errors_are_cut_short() {
    let text =
        format!("domain: d\n{}", (0..10_000).map(|i| format!("k{i}: x")).collect::<Vec<_>>().join("\n"));
    let errors = config::parse("f.yaml", &text).expect_err("errors").errors;
    assert_eq!(errors.len(), 101);
    assert_eq!(errors[100].to_string(), "f.yaml:102:1: and 9900 more errors, of which this is the first");
}

#[test]
fn names_of_any_length_are_cut_short_in_messages() {
    let name = "x".repeat(1_000_000);
    for text in [format!("domain: d\n? {name}\n: 1\n"), format!("domain: d\ndescriptors: [{name}]\n")] {
        let error = refused(&text);
        assert!(error.len() < 500, "{}", error.len());
    }
}

#[test]
fn anything_at_all_is_read_without_a_panic() {
    let pieces = [
        "domain: d\n",
        "- ",
        "key: ",
        "  ",
        "\n",
        "&a ",
        "*a",
        "<<: ",
        "{",
        "}",
        "[",
        "]",
        "'",
        "\"",
        "|\n",
        "? ",
        ": ",
        "!!binary ",
        "--- ",
        "...",
        "%YAML",
        "\u{feff}",
        "\0",
        "\t",
        "é",
        "#",
        ", ",
    ];
    // a small generator of its own: the same on every run
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..3_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[usize::try_from(state >> 33).expect("31 bits") % pieces.len()]);
        }
        let _ = config::parse("f.yaml", &text);
    }
}
