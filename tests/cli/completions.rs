//! `weir completions`, in a real bash.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::child::{run, stderr, stdout};

/// Returns what bash offers after `line`, whose last word is not finished.
fn offered(script: &str, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let last = words.len() - 1;
    let previous = words[last - 1];
    let ask = format!(
        "{script}\nCOMP_WORDS=({line}); [ ${{#COMP_WORDS[@]}} -gt {last} ] || COMP_WORDS+=('')\nCOMP_CWORD={last}\n\
         _weir weir '{}' '{previous}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words[last],
    );
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut bash = bash.spawn().expect("bash can be started");
    bash.stdin.take().expect("a pipe").write_all(ask.as_bytes()).expect("it reads");
    let output = bash.wait_with_output().expect("its output");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_their_values() {
    let script = run(&["completions", "bash"], &[]);
    assert_eq!(script.status.code(), Some(0), "{}", stderr(&script));
    let script = stdout(&script);
    assert_eq!(offered(&script, "weir sim"), ["simulate"]);
    assert_eq!(offered(&script, "weir call --dom"), ["--domain"]);
    assert_eq!(offered(&script, "weir check --format j"), ["json"]);
    assert!(offered(&script, "weir ").contains(&"serve".to_owned()));
}

#[test]
fn each_shell_has_a_script_that_knows_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&run(&["completions", shell], &[]));
        for word in ["serve", "explain", "simulate", "domain"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let unknown = run(&["completions", "tcsh"], &[]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("possible values: bash, elvish, fish"), "{}", stderr(&unknown));
}
