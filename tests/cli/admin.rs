//! The commands that ask a running weir: `weir why`, `weir top`, `weir hot`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::Value;

use crate::{
    NO_DELAY, RULES,
    child::{Serving, run, stderr, stdout},
    log::post,
    path, rules,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const REQUEST: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "hello", "value": "world"}]}]}"#;

#[test]
fn why_and_top_ask_a_running_weir() {
    let dir = rules(RULES);
    let weir = Serving::start(path(&dir), &[NO_DELAY]);
    let debug = weir.address("debug");
    let why = |more: &[&str]| run(&[&["why", "--address", debug], more].concat(), &[]);
    let admitted = why(&["--domain", "shop", "hello=world"]);
    assert_eq!(admitted.status.code(), Some(0), "{}", stderr(&admitted));
    let text = stdout(&admitted);
    assert!(text.starts_with("The request would be admitted"), "{text}");
    assert!(text.contains("Rule shop.hello admits it: 2 are left of 2 requests per 365d"), "{text}");
    assert!(text.contains("\n\nhello=world\n"), "{text}");
    assert!(
        text.contains("> key hello, any value, ") || text.contains("> key hello, value world, "),
        "{text}"
    );
    post(weir.address("http"), &[REQUEST; 5]);
    let rejected = why(&["--json", "--domain", "shop", "hello=world"]);
    assert_eq!(rejected.status.code(), Some(2), "{}", stderr(&rejected));
    let answer: Value = serde_json::from_str(&stdout(&rejected)).expect("JSON");
    assert_eq!(answer["descriptors"][0]["counter"]["tiers"][0]["remaining"], 0, "{answer}");
    let line = why(&[
        "--line",
        "rejected domain=shop rule=shop.hello descriptor=hello=world hits=1 limit=a \
                                retry_after=1s mode=local reason=limit",
    ]);
    assert_eq!(line.status.code(), Some(2), "{}", stderr(&line));
    let unknown = why(&["--line", "hello"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("none of the log of rejections"), "{}", stderr(&unknown));

    let top = run(&["top", "--address", debug], &[]);
    assert_eq!(top.status.code(), Some(0), "{}", stderr(&top));
    assert!(
        stdout(&top).contains("hits of the last minute") && stdout(&top).contains("hello=world"),
        "{top:?}"
    );
    let top = run(&["top", "--once", "--json", "--address", debug], &[]);
    let seen: Value = serde_json::from_str(&stdout(&top)).expect("JSON");
    assert_eq!(seen["hot"]["items"][0]["hits"], 5, "{seen}");
    let hot = run(&["hot", "--json", "--by", "rejected", "--window", "10m", "--address", debug], &[]);
    let hot: Value = serde_json::from_str(&stdout(&hot)).expect("JSON");
    assert_eq!((&hot["by"], &hot["items"][0]["hits"]), (&"rejected".into(), &3.into()), "{hot}");
    let wrong = run(&["top", "--address", weir.address("http")], &[]);
    assert!(stderr(&wrong).contains("name weir's debug port, 6070 by default"), "{}", stderr(&wrong));
}

#[test]
fn a_token_comes_from_a_file_and_is_in_no_output() {
    let dir = rules(RULES);
    let tokens = tempfile::tempdir().expect("a directory");
    let file = tokens.path().join("tokens");
    fs::write(&file, format!("ops:full:{TOKEN}\n")).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    let file = file.to_str().expect("a path in UTF-8");
    let weir =
        Serving::start(path(&dir), &[NO_DELAY, ("WEIR_ADMIN_TOKEN_FILE", file), ("LOG_LEVEL", "debug")]);
    let top =
        |more: &[&str]| run(&[&["top", "--once", "--address", weir.address("debug")], more].concat(), &[]);
    assert_eq!(top(&["--token-file", file]).status.code(), Some(0));
    let refused = top(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("A token is needed") && stderr(&refused).contains("(401)"),
        "{refused:?}"
    );
    fs::write(tokens.path().join("wrong"), TOKEN.replace('0', "x")).expect("a file");
    let wrong = top(&["--token-file", tokens.path().join("wrong").to_str().expect("UTF-8")]);
    assert!(stderr(&wrong).contains("The token is wrong"), "{wrong:?}");
    let missing = top(&["--token-file", "/none/such"]);
    assert!(stderr(&missing).contains("cannot read --token-file /none/such"), "{missing:?}");
    weir.signal("TERM");
    let (_, output) = weir.ended();
    assert!(!output.contains(TOKEN), "{output}");
    // others on the machine could read it
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let readable = run(&["serve", "--config", path(&dir)], &[NO_DELAY, ("WEIR_ADMIN_TOKEN_FILE", file)]);
    assert_eq!(readable.status.code(), Some(1));
    assert!(stderr(&readable).contains("chmod o-rwx"), "{}", stderr(&readable));
}
