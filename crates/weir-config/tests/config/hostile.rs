//! Tests that hostile input is rejected with a position and without a panic.

use std::{fmt::Write as _, fs, fs::File, time::Instant};

use weir_config::Options;

/// Far longer than any load takes.
const DEADLINE_SECONDS: u64 = 60;

/// Returns the first error of `text`.
fn rejected(text: &str) -> String {
    let started = Instant::now();
    let errors = weir_config::parse("f.yaml", text).expect_err("errors");
    assert!(started.elapsed().as_secs() < DEADLINE_SECONDS);
    errors.errors[0].to_string()
}

#[test]
fn aliases_that_expand_exponentially_are_rejected() {
    let mut text = "domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..20 {
        let alias = format!("*a{},", i - 1).repeat(10);
        writeln!(text, "a{i}: &a{i} [{alias}]").expect("a string");
    }
    let error = rejected(&text);
    assert!(error.ends_with("more than 2000000 values, aliases resolved"), "{error}");
}

#[test]
fn merges_that_expand_exponentially_are_rejected() {
    let mut text = "domain: d\na0: &a0 {k0: x, k1: x, k2: x, k3: x, k4: x}\n".to_owned();
    for i in 1..40 {
        writeln!(text, "a{i}: &a{i} {{<<: [*a{0}, *a{0}, *a{0}], j{i}: *a{0}}}", i - 1).expect("a string");
    }
    let error = rejected(&text);
    assert!(error.contains("more than 2000000 values") || error.contains("nested deeper"), "{error}");
}

/// Each rule has the keys and values above it.
#[test]
fn long_keys_above_many_rules_are_bounded() {
    let rules = |key: usize, rules: usize| {
        let leaf = |i: usize| format!("  - {{key: k{i}, rate_limit: {{requests: 1, per: 1s}}}}\n");
        let leaves: String = (0..rules).map(leaf).collect();
        format!("domain: d\ndescriptors:\n- key: {}\n  descriptors:\n{leaves}", "k".repeat(key))
    };
    // a megabyte fits 63 times beside the other texts
    let error = rejected(&rules(1 << 20, 20_000));
    assert!(error.starts_with("f.yaml:68:5: ") && error.contains("more than 67108864 bytes"), "{error}");
    assert!(weir_config::parse("f.yaml", &rules(1_000, 20_000)).is_ok());
}

#[test]
fn the_wildcards_of_a_value_are_bounded() {
    let value = |stars: usize| {
        format!(
            "domain: d\ndescriptors:\n- key: k\n  value: '{}'\n  rate_limit: {{requests: 1, per: 1s}}\n",
            "*a".repeat(stars)
        )
    };
    assert!(weir_config::parse("f.yaml", &value(100)).is_ok());
    assert!(rejected(&value(1_000_000)).ends_with("4:10: a value may have at most 100 '*'"));
}

#[test]
fn text_that_aliases_repeat_is_bounded() {
    let text = |uses: usize| {
        let list = "*a,".repeat(uses);
        format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {{unlimited: true}}\n  metadata: {{a: &a '{}', l: [{list}]}}\n",
            "x".repeat(1 << 20)
        )
    };
    let loaded = weir_config::parse("f.yaml", &text(60)).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let error = rejected(&text(20_000));
    assert!(error.starts_with("f.yaml:5:"), "{error}");
    assert!(error.ends_with("more than 67108864 bytes of text, counted at each use of an alias"), "{error}");

    let mut merges = format!("domain: d\ndescriptors:\n- &a {{key: k, value: '{}'}}\n", "x".repeat(1 << 20));
    for i in 0..20_000 {
        writeln!(merges, "- {{<<: *a, key: k{i}}}").expect("a string");
    }
    let error = rejected(&merges);
    assert!(error.contains("bytes of text"), "{error}");
}

#[test]
fn deep_nesting_is_rejected_in_every_style() {
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
        let error = rejected(&text);
        assert!(error.ends_with("nested deeper than 128 levels"), "{error}");
    }
}

#[test]
fn sixty_levels_of_descriptors_are_valid() {
    let mut text = "domain: d\n".to_owned();
    for level in 0..60 {
        let indent = " ".repeat(level * 2);
        write!(text, "{indent}descriptors:\n{indent}- key: k\n").expect("a string");
    }
    let loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
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
    // a sparse file, which takes no space
    File::create(dir.path().join("large.yaml")).and_then(|file| file.set_len(100_000_000)).expect("a file");
    let errors = weir_config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    assert!(
        errors.ends_with(
            "large.yaml: error loading config file: the file has more than 16777216 bytes, the maximum"
        ),
        "{errors}"
    );
}

#[test]
fn bytes_that_are_not_utf8_are_rejected_with_their_position() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.yaml"), b"domain: d\n# \xc3\xa4\xff\n").expect("a file");
    let errors = weir_config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    assert!(
        errors.ends_with("a.yaml:2:4: error loading config file: the file is not valid UTF-8"),
        "{errors}"
    );
}

#[test]
fn utf16_is_read_by_its_byte_order_mark() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.yaml");
    let written = "\u{feff}domain: d\ndescriptors:\n- {key: ä}\n".encode_utf16();
    let bytes: Vec<u8> = written.flat_map(u16::to_le_bytes).collect();
    fs::write(&file, &bytes).expect("a file");
    let loaded = weir_config::load_file(&file, &Options::default()).expect("valid rules");
    assert_eq!(loaded.domains[0].nodes[0].key, "ä");

    fs::write(&file, &bytes[..bytes.len() - 1]).expect("a file");
    let errors = weir_config::load_file(&file, &Options::default()).expect_err("errors").to_string();
    assert!(errors.contains("a.yaml:3:11: error loading config file: the file ends within"), "{errors}");
}

#[test]
fn large_values_of_unknown_keys_are_rejected() {
    let mut text = "domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..4 {
        writeln!(text, "a{i}: &a{i} [{}]", format!("*a{},", i - 1).repeat(10)).expect("a string");
    }
    writeln!(text, "descriptors: [{}]", "*a3,".repeat(100)).expect("a string");
    let error = rejected(&text);
    assert!(error.starts_with("f.yaml:2:1: config error, unknown key 'a0'"), "{error}");
}

#[test]
fn ten_thousand_rules_are_valid() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for i in 0..10_000 {
        write!(text, "- key: k\n  value: v{i}\n  rate_limit: {{unit: day, requests_per_unit: {i}}}\n")
            .expect("a string");
    }
    let loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.domains[0].nodes.len(), 10_000);
}

#[test]
fn ten_thousand_errors_are_cut_short() {
    let text =
        format!("domain: d\n{}", (0..10_000).map(|i| format!("k{i}: x")).collect::<Vec<_>>().join("\n"));
    let errors = weir_config::parse("f.yaml", &text).expect_err("errors").errors;
    assert_eq!(errors.len(), 101);
    assert_eq!(errors[100].to_string(), "f.yaml:102:1: and 9900 more errors, starting here");
}

#[test]
fn errors_of_a_load_are_cut_short() {
    const ITEMS: usize = 100_000;
    // four megabytes, of which each item repeats the first
    let mut text = "domain: d\ndescriptors:\n- &first {key: k, value: v}\n".to_owned();
    text.push_str(&format!("- {{<<: *first}} # {}\n", "x".repeat(20)).repeat(ITEMS));
    let errors = weir_config::parse("f.yaml", &text).expect_err("errors");
    assert_eq!(errors.errors.len(), 1_001);
    let printed = errors.to_string();
    assert!(printed.len() < 200_000, "{}", printed.len());
    assert!(
        printed.starts_with("f.yaml:4:3: duplicate descriptor composite key 'd.k_v'; the first is"),
        "{}",
        &printed[..200]
    );
    assert!(printed.ends_with(&format!("and {} more errors, starting here", ITEMS - 1_000)), "{printed}");

    // in many files, with long messages
    let dir = tempfile::tempdir().expect("a directory");
    let key = "k".repeat(10_000);
    for i in 0..300 {
        let text = format!("domain: d{i}\ndescriptors:\n- key: {key}\n- key: {key}\n- key: {key}\n- {{}}\n");
        fs::write(dir.path().join(format!("{i}.yaml")), text).expect("a file");
    }
    let printed = weir_config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(printed.len() < 300 << 10, "{}", printed.len());
    assert!(lines.iter().any(|line| line.contains("descriptor has empty key")), "{}", lines.len());
    assert!(lines.iter().all(|line| line.len() < 3_000));
    assert!(lines[lines.len() - 1].ends_with("more errors, starting here"), "{}", lines[lines.len() - 1]);
}

#[test]
fn warnings_of_a_document_are_cut_short() {
    let text = format!("{}descriptors: []\n", "domain: d\n".repeat(10_000));
    let warnings = weir_config::parse("f.yaml", &text).expect("valid rules").warnings;
    assert_eq!(warnings.len(), 100);
    assert!(warnings[0].message.contains("duplicate key 'domain'"), "{}", warnings[0]);
}

#[test]
fn many_mappings_of_one_key_are_combined_in_linear_time() {
    const ENTRIES: usize = 200_000;
    let mut text = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unlimited: true}\n".to_owned();
    for i in 0..ENTRIES {
        writeln!(text, "  metadata: {{k{i}: 1}}").expect("a string");
    }
    let started = Instant::now();
    let loaded = weir_config::parse("f.yaml", &text).expect("valid rules");
    assert!(started.elapsed().as_secs() < DEADLINE_SECONDS);
    let rule = loaded.domains[0].nodes[0].rule.as_ref().expect("a rule");
    assert_eq!(rule.metadata.as_ref().expect("metadata").len(), ENTRIES);
}

#[test]
fn an_error_stays_on_its_line() {
    let text =
        "domain: d\ndescriptors:\n- key: \"k\\n2026 ERROR forged\"\n- key: \"k\\n2026 ERROR forged\"\n";
    let errors = weir_config::parse("f.yaml", text).expect_err("errors").to_string();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(r"'d.k\n2026 ERROR forged'"), "{errors}");
}

#[test]
fn long_names_are_cut_short_in_messages() {
    let name = "x".repeat(1_000_000);
    for text in [format!("domain: d\n? {name}\n: 1\n"), format!("domain: d\ndescriptors: [{name}]\n")] {
        let error = rejected(&text);
        assert!(error.len() < 500, "{}", error.len());
    }
}

#[test]
fn random_input_does_not_panic() {
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
    // a fixed seed makes every run the same
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..3_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[usize::try_from(state >> 33).expect("31 bits") % pieces.len()]);
        }
        let _ = weir_config::parse("f.yaml", &text);
    }
}
