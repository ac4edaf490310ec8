//! Tests that the rule files and messages in the documentation are valid and current.

use weir::config;

#[test]
fn every_rule_file_in_the_documentation_is_valid() {
    for (page, text, least) in [
        ("rules.md", include_str!("../../docs/rules.md"), 5),
        ("README.md", include_str!("../../README.md"), 2),
        ("coordination.md", include_str!("../../docs/coordination.md"), 1),
        ("how-to.md", include_str!("../../docs/how-to.md"), 2),
    ] {
        let blocks = text.split("```yaml\n").skip(1);
        let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
        // other blocks are Envoy's configuration
        let files: Vec<_> = blocks.filter(|block| block.starts_with("domain:")).collect();
        assert!(files.len() >= least, "{page}: {}", files.len());
        for file in files {
            match config::parse(page, file) {
                Ok(loaded) => assert!(loaded.warnings.is_empty(), "{file}\n{:?}", loaded.warnings),
                Err(errors) => panic!("{file}\n{errors}"),
            }
        }
    }
}

#[test]
fn the_documented_errors_and_warnings_have_the_current_text() {
    let text = "domain: shop
descriptors:
- key: a
  ratelimit: {}
- key: b
  rate_limit:
    unit: minutes
- key: tenant
  value: acme
- key: tenant
  value: acme
- key: path
  value: /v1/*
- key: path
  value: /v1/a/*
";
    let found = config::parse("shop.yaml", text).expect_err("errors");
    let errors = found.errors.iter().map(|error| &error.message);
    let warnings = found.warnings.iter().map(|warning| &warning.message);
    // the documentation shows other places
    let text_before_place =
        |message: &str| message.split(" at shop.yaml").next().map(str::to_owned).unwrap_or_default();
    let page = include_str!("../../docs/rules.md");
    let mut checked = 0;
    for message in errors.chain(warnings) {
        let text = text_before_place(message);
        let start = text.split(" values,").next().unwrap_or_default();
        assert!(page.contains(start), "{start}");
        checked += 1;
    }
    assert_eq!(checked, 4);
}
