//! `weir record` and `weir replay`, of a weir that serves.

use std::{
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use serde_json::Value;

use crate::{
    NO_DELAY,
    child::{Serving, run, stderr, stdout},
    path, rules,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 5 }
  - key: user
    rate_limit:
      tiers:
        - { requests: 4, per: 365d, algorithm: sliding_window }
        - { requests: 6, per: 365d, algorithm: token_bucket }
";

const RECORDS: (&str, &str) = ("WEIR_RECORD", "15m");

const FULL: (&str, &str) = ("WEIR_ADMIN", "full");

/// Asks about one hit. Returns whether it was admitted.
fn ask(weir: &Serving, key: &str, value: &str) -> bool {
    let address = weir.address("http");
    let body =
        format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#);
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!("POST /json HTTP/1.0\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).expect("it is sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    let status = reply.split(' ').nth(1).expect("a status");
    assert!(["200", "429"].contains(&status), "{reply}");
    status == "200"
}

/// Records what is there, and returns the file.
fn record(weir: &Serving, dir: &Path, options: &[&str]) -> String {
    if options == ["--values"] {
        allow_values(weir);
    }
    let file = dir.join("traffic").to_str().expect("a plain path").to_owned();
    let begin = ["record", "--minutes", "0", "--address", weir.address("debug"), "--output", &file];
    let recorded = run(&[&begin, options].concat(), &[]);
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    file
}

fn allow_values(weir: &Serving) {
    let (address, body) = (weir.address("debug"), r#"{"values": true}"#);
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!(
        "POST /v1/recording HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).expect("it is sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    assert!(reply.starts_with("HTTP/1.0 200") && reply.contains("\"is_on\":true"), "{reply}");
}

fn json(arguments: &[&str]) -> Value {
    let replayed = run(&[&["replay", "--json"], arguments].concat(), &[]);
    assert_eq!(replayed.status.code(), Some(0), "{}", stderr(&replayed));
    serde_json::from_str(&stdout(&replayed)).expect("valid JSON")
}

#[test]
fn a_replay_agrees_with_what_the_service_has_decided() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]);
    let mut admitted = [0_u64; 2];
    for i in 0..40 {
        admitted[0] += u64::from(ask(&weir, "tenant", ["acme", "globex"][i % 2]));
        admitted[1] += u64::from(ask(&weir, "user", ["bob", "eve", "pat"][i % 3]));
        ask(&weir, "unknown", "x");
    }
    let file = record(&weir, files.path(), &["--values"]);
    let result = json(&[&file, "--config", path(&dir)]);
    let numbers = ["requests", "newly_rejected", "newly_admitted"].map(|name| result[name].as_u64());
    assert_eq!(numbers, [Some(120), Some(0), Some(0)], "{result}");
    for (rule, admitted) in [("shop.tenant", admitted[0]), ("shop.user", admitted[1])] {
        let rules = result["rules"].as_array().expect("a list");
        let row = rules.iter().find(|row| row["rule"] == rule).expect("a row");
        assert_eq!(
            (row["admitted_old"].as_u64(), row["admitted_new"].as_u64()),
            (Some(admitted), Some(admitted))
        );
        assert_eq!(row["rejected_new"].as_u64(), Some(40 - admitted), "{row}");
    }
    assert_eq!(result["unknown"].as_array().map(Vec::len), Some(0), "{result}");
    // what the rules would have decided without their counts is the same
    let lower = rules(&RULES.replace("per_unit: 5", "per_unit: 3"));
    let result = json(&[&file, "--config", path(&lower), "--old", path(&dir)]);
    assert_eq!(result["newly_rejected"].as_u64(), Some(4), "{result}");
    assert_eq!(
        result["sentence"],
        "3.3 % of requests would newly be rejected, 100 % of them by `shop.tenant`."
    );
    assert_eq!(result["keys"][0]["text"], "tenant=acme");
}

#[test]
fn an_increase_has_an_exit_code_of_its_own_and_a_page_has_no_scripts() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]);
    (0..5).for_each(|_| assert!(ask(&weir, "tenant", "<script>alert(1)</script>")));
    let file = record(&weir, files.path(), &["--values"]);
    let lower = rules(&RULES.replace("per_unit: 5", "per_unit: 4"));
    let html = files.path().join("change.html");
    let replay = |most: &str| {
        let html = html.to_str().expect("a plain path");
        run(&["replay", &file, "--config", path(&lower), "--max-increase", most, "--html", html], &[])
    };
    assert_eq!(replay("20%").status.code(), Some(0));
    let above = replay("19.9%");
    assert_eq!(above.status.code(), Some(2), "{}", stderr(&above));
    assert!(stdout(&above).starts_with("20 % of requests would newly be rejected"), "{}", stdout(&above));
    let page = fs::read_to_string(html).expect("a page");
    assert!(
        page.contains("<svg") && page.contains("tenant=&lt;script&gt;") && !page.contains("<script"),
        "{page}"
    );
}

#[test]
fn hashed_values_are_found_with_their_key() {
    let named = RULES.replace("  - key: user\n", "  - key: tenant\n    value: acme\n    rate_limit: { unit: year, requests_per_unit: 2 }\n  - key: user\n");
    let (dir, files) = (rules(&named), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]);
    let admitted = (0..4).filter(|_| ask(&weir, "tenant", "acme")).count();
    assert_eq!(admitted, 2);
    let file = record(&weir, files.path(), &[]);
    assert!(!fs::read(&file).expect("a file").windows(4).any(|bytes| bytes == b"acme"));
    let result = json(&[&file, "--config", path(&dir)]);
    let unknown = result["unknown"].to_string();
    assert!(unknown.contains("there is no key file") && unknown.contains("shop.tenant_acme"), "{unknown}");
    let key = format!("{file}.key");
    let result = json(&[&file, "--config", path(&dir), "--key-file", &key]);
    assert_eq!(
        (result["newly_admitted"].as_u64(), result["unknown"].to_string()),
        (Some(0), "[]".to_owned())
    );
    assert_eq!(result["rules"][0]["rule"], "shop.tenant_acme", "{result}");
    // a recording that began without values has none
    let values = run(&["record", "--minutes", "0", "--values", "--address", weir.address("debug")], &[]);
    assert_eq!(values.status.code(), Some(1));
    assert!(stderr(&values).contains("started without values"), "{}", stderr(&values));
}

#[test]
fn an_instance_that_is_missing_is_named_first() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let [one, other] = [(); 2].map(|()| Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]));
    (0..3).for_each(|_| assert!(ask(&one, "tenant", "acme") && ask(&other, "tenant", "acme")));
    let gone =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").to_string();
    let file = files.path().join("all").to_str().expect("a plain path").to_owned();
    let addresses =
        ["--address", one.address("debug"), "--address", &gone, "--address", other.address("debug")];
    let recorded = run(&[&["record", "--minutes", "0", "--output", &file], &addresses[..]].concat(), &[]);
    assert_eq!(recorded.status.code(), Some(1), "{}", stderr(&recorded));
    assert!(stderr(&recorded).contains(&gone));
    // what two instances have admitted by themselves is too much for one limit
    let result = json(&[&file, "--config", path(&dir)]);
    assert_eq!(
        (result["requests"].as_u64(), result["newly_rejected"].as_u64()),
        (Some(6), Some(1)),
        "{result}"
    );
    assert!(result["unknown"][0].as_str().is_some_and(|first| first.contains(&gone)), "{result}");
    assert!(
        result["unknown"][1].as_str().is_some_and(|second| second.contains("One exact limiter")),
        "{result}"
    );
}

#[test]
fn a_recording_that_nobody_has_started_and_files_of_others_are_told() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, FULL]);
    let key = files.path().join("key");
    let key = key.to_str().expect("a plain path");
    let none = run(&["record", "--minutes", "0", "--key-file", key, "--address", weir.address("debug")], &[]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("There is no recording: start one by a POST. (404)"), "{}", stderr(&none));
    let reads = Serving::start(path(&dir), &[NO_DELAY]);
    let refused =
        run(&["record", "--minutes", "0", "--key-file", key, "--address", reads.address("debug")], &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("WEIR_ADMIN"), "{}", stderr(&refused));
    for (name, bytes, expected) in [
        ("other", &b"domain: shop"[..], "it is no recording"),
        ("newer", b"weir-recording\x02\x00\x00\x00\x00\x00", "its format has the number 2"),
        ("cut", b"weir-recording\x01\x00\xff", "its header is damaged"),
    ] {
        let file = files.path().join(name);
        fs::write(&file, bytes).expect("a file");
        let refused = run(&["replay", file.to_str().expect("a plain path"), "--config", path(&dir)], &[]);
        assert_eq!(refused.status.code(), Some(1), "{name}");
        assert!(stderr(&refused).contains(expected), "{name}: {}", stderr(&refused));
    }
    let missing = run(&["replay", "/nowhere", "--config", path(&dir)], &[]);
    assert!(stderr(&missing).contains("cannot read /nowhere"), "{}", stderr(&missing));
    let wrong = rules("domain: shop\ndescriptors:\n  - kee: x\n");
    let refused = run(&["replay", "/dev/null", "--config", path(&wrong)], &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("rules.yaml:3:5: error:"), "{}", stderr(&refused));
}

#[test]
fn an_access_log_is_replayed() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let log = files.path().join("access.log");
    let line = |second: u32, tenant: &str| {
        format!("{{\"start_time\":\"2026-11-30T09:00:{second:02}.000Z\",\"http\":{{\"tenant\":{tenant}}}}}\n")
    };
    let lines: String = (0..9).map(|i| line(i, if i < 7 { "\"acme\"" } else { "null" })).collect();
    fs::write(&log, lines).expect("a file");
    let log = log.to_str().expect("a plain path");
    let map = ["--domain", "shop", "--time", ".start_time", "--map", "tenant=.http.tenant"];
    let result = json(&[&[log, "--config", path(&dir)], &map[..]].concat());
    assert_eq!(
        (result["requests"].as_u64(), result["newly_rejected"].as_u64()),
        (Some(7), Some(2)),
        "{result}"
    );
    let unknown = result["unknown"].to_string();
    assert!(unknown.contains("2 of 9 lines lack the field .http.tenant"), "{unknown}");
    let without = run(&["replay", log, "--config", path(&dir), "--map", "tenant=.x"], &[]);
    assert!(
        stderr(&without).contains("--time") && stderr(&without).contains("--domain"),
        "{}",
        stderr(&without)
    );
}

#[test]
fn a_recording_goes_on_across_a_reload() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]);
    (0..6).for_each(|_| _ = ask(&weir, "tenant", "acme"));
    fs::write(dir.path().join("rules.yaml"), RULES.replace("per_unit: 5", "per_unit: 1000000"))
        .expect("a file");
    // until the new rules are in force: rejected hits count, too
    let mut asked = 6;
    while !ask(&weir, "tenant", "acme") {
        asked += 1;
        assert!(asked < 100_000);
    }
    let file = record(&weir, files.path(), &[]);
    let result = json(&[&file, "--config", path(&dir)]);
    assert_eq!(result["requests"].as_u64(), Some(asked + 1), "{result}");
    assert!(result["newly_admitted"].as_u64() >= Some(1), "{result}");
    assert!(result["unknown"].to_string().contains("New rules came into force"), "{result}");
}

/// As GitHub runs it, with a `gh` that writes down what it is told.
#[test]
fn the_action_comments_what_differs() {
    let (dir, files) = (rules(RULES), tempfile::tempdir().expect("a directory"));
    let weir = Serving::start(path(&dir), &[NO_DELAY, RECORDS, FULL]);
    (0..5).for_each(|_| assert!(ask(&weir, "tenant", "acme")));
    let traffic = record(&weir, files.path(), &["--values"]);
    let work = files.path().join("repository");
    let write = |name: &str, text: &str| {
        let file = work.join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("it can be made");
        fs::write(file, text).expect("a file");
    };
    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"];
        let ran = Command::new("git").args(who).args(arguments).current_dir(&work).output().expect("git");
        assert!(ran.status.success(), "{}", stderr(&ran));
        stdout(&ran).trim().to_owned()
    };
    write("limits/rules.yaml", RULES);
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "base"]);
    let base = git(&["rev-parse", "HEAD"]);
    write("limits/rules.yaml", &RULES.replace("per_unit: 5", "per_unit: 3"));
    write(
        "bin/gh",
        "#!/bin/sh\ncase \"$*\" in *paginate*) echo 41; exit;; esac\n\
         for part; do case $part in body=@*) cat \"${part#body=@}\";; esac; done\necho \"$@\"\n",
    );
    let gh = work.join("bin/gh");
    fs::set_permissions(&gh, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let run = |most: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/replay-action.sh");
        let found = std::env::var_os("PATH").unwrap_or_default();
        let found = [&*work.join("bin").into_os_string(), &*found].join(OsStr::new(":"));
        let variables = [
            ("RECORDING", &*traffic),
            ("CONFIG", "limits"),
            ("BASE", &base),
            ("MAX_INCREASE", most),
            ("WEIR", env!("CARGO_BIN_EXE_weir")),
            ("COMMENT", "true"),
            ("PULL_REQUEST", "7"),
            ("GITHUB_REPOSITORY", "shop/limits"),
        ];
        Command::new(script).envs(variables).env("PATH", found).current_dir(&work).output().expect("a script")
    };
    let sentence = "40 % of requests would newly be rejected, 100 % of them by `shop.tenant`.";
    let above = run("1%");
    assert_eq!(above.status.code(), Some(2), "{}", stderr(&above));
    let text = stdout(&above);
    assert!(text.starts_with(sentence), "{text}");
    assert!(
        text.contains(&format!("<!-- weir replay -->\n**Rate limits:** {sentence}\n\nThis is more than")),
        "{text}"
    );
    assert!(
        text.contains("--method PATCH") && text.contains("repos/shop/limits/issues/comments/41"),
        "{text}"
    );
    assert_eq!(run("50%").status.code(), Some(0));
    assert!(!work.join(".weir-replay-old").exists());
}
