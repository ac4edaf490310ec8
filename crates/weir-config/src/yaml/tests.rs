//! Which spellings of YAML the parser accepts, and as what: `spellings.txt` fails the test when the parser changes.

use std::fmt::Write as _;

use super::*;
use crate::scalar::Meaning;

/// `WRITE_SPELLINGS=1` writes the outcomes anew, for a new version of the parser: read the difference.
///
/// Cases: `### name`, the document, and after `=> ` what it means, or its faults. `␉`, `␍`, `␀`, `␈` and `␗` are tab,
/// carriage return, NUL, backspace and byte order mark.
const SPELLINGS: &str = include_str!("spellings.txt");

#[test]
fn spellings_mean_what_they_did() {
    let cases = SPELLINGS.split("### ").skip(1);
    let mut count = 0;
    let mut actual = SPELLINGS.split("### ").next().unwrap_or_default().to_owned();
    for case in cases {
        let (name, rest) = case.split_once('\n').expect("a name");
        let end = rest.find("=> ").expect("an outcome");
        let document = rest[..end].replace('␉', "\t").replace('␍', "\r").replace('␀', "\0");
        let document = document.replace('␈', "\u{8}").replace('␗', "\u{feff}");
        writeln!(actual, "### {name}\n{}{}", &rest[..end], outcome(&document)).expect("a string");
        count += 1;
    }
    if std::env::var_os("WRITE_SPELLINGS").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/yaml/spellings.txt");
        return std::fs::write(file, &actual).expect("the file can be written");
    }
    for (expected, actual) in SPELLINGS.split("### ").zip(actual.split("### ")) {
        assert_eq!(actual, expected);
    }
    assert!(count > 60, "{count}");
}

fn outcome(document: &str) -> String {
    let YamlDocument { root, warnings } = parse(document);
    let found = |start: &str, YamlFault { at: YamlPosition { line, column }, message }: YamlFault| {
        format!("{start} {line}:{column}: {message}")
    };
    let mut lines: Vec<String> = warnings.into_iter().map(|warning| found("=> warning", warning)).collect();
    lines.push(match root {
        Ok(root) if root.at == YamlPosition::default() => "=> empty".to_owned(),
        Ok(root) => format!("=> {}", shown(&root)),
        Err(fault) => found("=>", fault),
    });
    lines.join("\n") + "\n"
}

fn shown(node: &YamlNode) -> String {
    match &node.value {
        Value::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => "null".to_owned(),
            Meaning::Bool(value) => value.to_string(),
            Meaning::Int(value) => value.to_string(),
            Meaning::Float(value) => format!("{value:?}"),
            Meaning::Text => format!("{:?}", scalar.text()),
        },
        Value::List(items) => {
            format!("[{}]", items.iter().map(|item| shown(item)).collect::<Vec<_>>().join(", "))
        }
        Value::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{}: {}", shown(key), shown(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}
