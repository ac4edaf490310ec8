//! `weir man`: a page for each command, with all that its `--help` says.

use std::{collections::BTreeSet, fs};

use crate::child::{run, stderr, stdout};

/// The macros that a page may use; any other line that begins with a dot would be lost.
const MACROS: [&str; 10] = ["TH", "SH", "TP", "PP", "RS", "RE", "IP", "nf", "fi", "br"];

#[test]
fn every_command_has_a_page_with_its_options_and_examples() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("man/pages");
    let written = run(&["man", dir.to_str().expect("UTF-8")], &[]);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));

    let help = stdout(&run(&["--help"], &[]));
    let commands =
        help.split_once("\nCommands:\n").expect("commands").1.split("\n\n").next().expect("a list");
    let commands =
        commands.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let commands = commands.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help");
    let mut expected: BTreeSet<String> = commands.map(|name| format!("weir-{name}.1")).collect();
    assert!(expected.len() >= 7, "{expected:?}");
    expected.insert("weir.1".to_owned());
    let files = fs::read_dir(&dir).expect("the pages");
    let files: BTreeSet<String> =
        files.map(|file| file.expect("a page").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(files, expected);

    for name in files {
        let page = fs::read_to_string(dir.join(&name)).expect("text");
        let name = name.trim_end_matches(".1");
        let help = name.strip_prefix("weir-").map_or(vec!["--help"], |command| vec![command, "--help"]);
        let help = stdout(&run(&help, &[]));
        let words = help.split(|c: char| c.is_whitespace() || c == '=' || c == ',');
        let options: Vec<&str> = words.filter(|word| word.starts_with("--") && word.len() > 2).collect();
        assert!(options.contains(&"--help"), "{help}");
        for option in options {
            assert!(page.contains(&option.replace('-', r"\-")), "{name}: {option}");
        }
        assert!(page.contains(&format!("weir {}", env!("CARGO_PKG_VERSION"))), "{page}");
        for line in page.lines().filter_map(|line| line.strip_prefix('.')) {
            let used = line.split(' ').next().unwrap_or_default();
            assert!(
                MACROS.contains(&used) || used.starts_with("ie") || used.starts_with("el"),
                "{name}: .{line}"
            );
        }
    }
    let page = fs::read_to_string(dir.join("weir.1")).expect("text");
    for section in ["ENVIRONMENT", "SIGNALS", "EXAMPLES"] {
        assert!(page.contains(&format!(".SH {section}\n.nf\n")), "{section}");
    }
    assert!(page.contains("RUNTIME_ROOT, RUNTIME_SUBDIRECTORY"), "{page}");
}
