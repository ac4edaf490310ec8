//! Tests that the rule files and messages in the documentation are valid and current.
//!
//! A snippet is used as its reader is told to: a rule file by itself, and what an HTML comment before it says.
//!
//! | comment | what its reader does |
//! | --- | --- |
//! | none, and it begins with `domain:` | uses it as the only file |
//! | `<!-- saved as config/NAME -->` | saves it beside the files of `config/` |
//! | `<!-- beside NAME, … -->` | uses it as the only rule file, beside the tables after `<!-- NAME -->` on the page |
//! | `<!-- rule: the rate_limit of a descriptor -->` | writes it below a descriptor |

use std::{fs, path::PathBuf};

use weir_config::{ConfigErrors, Loaded, Options};
use weir_testing::repository;

/// What its lines begin with if it is part of a rule file.
const RULE_KEYS: [&str; 7] =
    ["domain:", "descriptors:", "rate_limit:", "- key:", "- {key:", "- { key:", "tiers:"];

/// A block of YAML on a page.
struct Block {
    page: String,
    line: usize,
    text: String,
    /// The HTML comment in the line before it.
    comment: Option<String>,
}

/// Returns the pages of documentation.
fn pages() -> Vec<PathBuf> {
    let root = repository("");
    let markdown = |dir: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(&dir).expect("a directory").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
    };
    let mut pages = [markdown(root.clone()), markdown(root.join("docs"))].concat();
    for example in fs::read_dir(root.join("examples")).expect("examples") {
        let example = example.expect("an entry").path();
        if example.is_dir() {
            pages.extend(markdown(example));
        }
    }
    pages.extend(markdown(root.join("charts/weir")));
    pages.sort();
    pages
}

/// Returns the blocks of YAML on all pages.
fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let page = page.strip_prefix(repository("")).unwrap_or(&page).display().to_string();
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.trim() == "```yaml") {
            let indent = line.len() - line.trim_start().len();
            let inside = lines[i + 1..].iter().take_while(|line| line.trim() != "```");
            let text: Vec<&str> = inside.map(|line| line.get(indent..).unwrap_or_default()).collect();
            let before = i.checked_sub(1).map_or("", |before| lines[before].trim());
            let comment = before.strip_prefix("<!-- ").and_then(|text| text.strip_suffix(" -->"));
            let (text, comment) = (text.join("\n") + "\n", comment.map(str::to_owned));
            blocks.push(Block { page: page.clone(), line: i + 1, text, comment });
        }
    }
    blocks
}

/// Returns the block of a page after the comment with this name of a file.
fn table(page: &str, name: &str) -> String {
    let text = fs::read_to_string(repository(page)).expect("a page");
    let (_, after) = text.split_once(&format!("<!-- {name} -->\n```")).unwrap_or_else(|| panic!("no {name}"));
    let lines: Vec<&str> = after.lines().skip(1).take_while(|line| *line != "```").collect();
    lines.join("\n") + "\n"
}

impl Block {
    fn is_of_rules(&self) -> bool {
        let first =
            self.text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        first.is_some_and(|line| RULE_KEYS.iter().any(|key| line.trim_start().starts_with(key)))
    }

    /// Uses it as its reader is told to.
    fn used(&self) -> Result<Loaded, ConfigErrors> {
        match self.comment.as_deref() {
            None if self.text.starts_with("domain:") => weir_config::parse(&self.page, &self.text),
            Some("rule: the rate_limit of a descriptor") => {
                let least = self.text.lines().map(|line| line.len() - line.trim_start().len()).min();
                let lines =
                    self.text.lines().map(|line| format!("  {}\n", &line[least.unwrap_or_default()..]));
                let below: String = lines.collect();
                weir_config::parse(&self.page, &format!("domain: d\ndescriptors:\n- key: k\n{below}"))
            }
            Some(comment) if comment.starts_with("beside ") => {
                let dir = tempfile::tempdir().expect("a directory");
                fs::write(dir.path().join("rules.yaml"), &self.text).expect("a file");
                for name in comment.trim_start_matches("beside ").split(", ") {
                    fs::write(dir.path().join(name), table(&self.page, name)).expect("a file");
                }
                weir_config::load(dir.path(), &Options::default())
            }
            Some(comment) => {
                let name =
                    comment.strip_prefix("saved as config/").unwrap_or_else(|| panic!("{self}: {comment}"));
                let dir = tempfile::tempdir().expect("a directory");
                for file in fs::read_dir(repository("config")).expect("rules") {
                    let file = file.expect("an entry");
                    fs::copy(file.path(), dir.path().join(file.file_name())).expect("a copy");
                }
                let place = dir.path().join(name);
                assert!(!place.exists(), "{self}: its reader would overwrite {name}");
                fs::write(place, &self.text).expect("a file");
                weir_config::load(dir.path(), &Options::default())
            }
            None => panic!("{self}: say in a comment before it how it is used, as in tests/config/docs.rs"),
        }
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.page, self.line)
    }
}

#[test]
fn every_rule_in_the_documentation_works_as_its_reader_is_told_to_use_it() {
    let blocks: Vec<Block> = blocks().into_iter().filter(Block::is_of_rules).collect();
    for (page, least) in [
        ("README.md", 2),
        ("docs/rules.md", 11),
        ("docs/coordination.md", 3),
        ("docs/how-to.md", 2),
        ("docs/fair-shares.md", 2),
        ("docs/budgets.md", 1),
    ] {
        let of_page = blocks.iter().filter(|block| block.page == page).count();
        assert!(of_page >= least, "{page}: {of_page}");
    }
    for block in blocks {
        match block.used() {
            Ok(loaded) => assert!(loaded.warnings.is_empty(), "{block}: {:?}", loaded.warnings),
            Err(errors) => panic!("{block}:\n{errors}"),
        }
    }
}

/// Tables and sentences have descriptors in one line, which are written below `descriptors`.
#[test]
fn every_descriptor_within_a_line_of_the_documentation_is_valid() {
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for span in text.split('`').filter(|span| span.starts_with("{key:") && !span.contains(['\n', '…']))
        {
            let file = format!("domain: d\ndescriptors:\n- {span}\n");
            if let Err(errors) = weir_config::parse("span", &file) {
                panic!("{}: {span}\n{errors}", page.display());
            }
            found += 1;
        }
    }
    assert!(found >= 3, "{found}");
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
    let found = weir_config::parse("shop.yaml", text).expect_err("errors");
    let errors = found.errors.iter().map(|error| &error.message);
    let warnings = found.warnings.iter().map(|warning| &warning.message);
    // the documentation shows other places
    let text_before_place =
        |message: &str| message.split(" at shop.yaml").next().map(str::to_owned).unwrap_or_default();
    let page = include_str!("../../../../docs/rules.md");
    let mut checked = 0;
    for message in errors.chain(warnings) {
        let text = text_before_place(message);
        let start = text.split(" descriptors,").next().unwrap_or_default();
        assert!(page.contains(start), "{start}");
        checked += 1;
    }
    assert_eq!(checked, 4);
}

/// Ten limits of a real product, in a file that a newcomer can read.
#[test]
fn the_example_of_contracts_is_short_and_has_no_warnings() {
    let config = repository("examples/contracts/config");
    let text = fs::read_to_string(config.join("limits.yaml")).expect("the rules");
    assert!(text.lines().count() <= 120);
    let loaded = weir_config::load(&config, &Options::default()).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}
