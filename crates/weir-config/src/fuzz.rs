//! A fuzz target: the text of a rule file.

use super::{Options, encoding::decode, error::ConfigErrors, load_input, parse};
use weir_limit::{Entry, KeyHasher, Origin, RuleSet};

const FILE: &str = "rules.yaml";

pub fn rules(input: &[u8]) {
    let loaded = load_input(FILE, input, &Options::default());
    let Ok(text) = decode(input.to_vec()) else {
        assert!(loaded.is_err(), "it is no text");
        return;
    };
    let parsed = parse(FILE, &text);
    assert_eq!(format!("{loaded:?}"), format!("{parsed:?}"), "the same, whatever it is read from");
    let findings: Vec<(Origin, String)> = match &parsed {
        Ok(loaded) => loaded.warnings.iter().map(|found| (found.at.clone(), found.message.clone())).collect(),
        Err(ConfigErrors { errors, warnings }) => {
            assert!(!errors.is_empty());
            let errors = errors.iter().map(|found| (found.at.clone(), found.message.clone()));
            errors.chain(warnings.iter().map(|found| (found.at.clone(), found.message.clone()))).collect()
        }
    };
    // line breaks of YAML; an error may be on the line after the last one
    let lines = text.replace("\r\n", "\n").split(['\n', '\r']).count() + 1;
    for (at, message) in findings {
        assert!(at.line as usize <= lines, "{at:?} of {lines} lines: {message}");
        assert!(!message.is_empty());
    }
    let Ok(loaded) = parsed else { return };
    let rules = RuleSet::new(&loaded.domains, KeyHasher::with_secret([1, 2]));
    for domain in &loaded.domains {
        assert!(rules.has_domain(&domain.name));
        for node in &domain.nodes {
            let entries = [Entry { key: &node.key, value: "value" }, Entry { key: "k", value: "v" }];
            for count in 0..=entries.len() {
                let _ = rules.find(&domain.name, &entries[..count]);
            }
        }
    }
}
