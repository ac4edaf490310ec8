//! `weir check` and `weir explain` as programs: their inputs, variables and exit codes.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::{Output, Stdio},
};

use crate::{
    RULES,
    child::{run, stderr, stdout, weir},
    path, rules,
    skipped::skipped,
};

/// Runs weir with `text` as its standard input.
fn run_with_input(arguments: &[&str], text: &str) -> Output {
    let mut child =
        weir(arguments, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
    child.wait_with_output().expect("its output")
}

#[test]
fn check_reads_one_file() {
    let dir = rules(RULES);
    fs::write(dir.path().join("broken.yaml"), "domain: [").expect("a file");
    let file = dir.path().join("rules.yaml");
    let file = file.to_str().expect("a plain path");
    let checked = run(&["check", file], &[]);
    assert_eq!(stdout(&checked), format!("{file}: ok: 1 file, 1 domain, 2 rules, 0 warnings\n"));
    assert_eq!(checked.status.code(), Some(0));
    let missing = run(&["check", "/nowhere/rules.yaml"], &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stdout(&missing).contains("/nowhere/rules.yaml: error: "), "{}", stdout(&missing));
}

#[test]
fn check_reads_standard_input() {
    let checked = run_with_input(&["check", "-"], RULES);
    assert_eq!(stdout(&checked), "<stdin>: ok: 1 file, 1 domain, 2 rules, 0 warnings\n");
    assert_eq!(checked.status.code(), Some(0));
    let checked = run_with_input(&["check", "--format", "json", "-"], "domain: d\nfoo: 1\n");
    assert_eq!(checked.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_str(&stdout(&checked)).expect("it is JSON");
    assert_eq!(found["errors"][0]["file"], "<stdin>");
    assert_eq!((&found["errors"][0]["line"], &found["errors"][0]["column"]), (&2.into(), &1.into()));
}

#[test]
fn check_fails_on_warnings_if_they_are_denied() {
    let dir = rules("domain: d\nunit: day\n");
    assert_eq!(run(&["check", path(&dir)], &[]).status.code(), Some(0));
    let denied = run(&["check", "--deny-warnings", path(&dir)], &[]);
    assert_eq!(denied.status.code(), Some(1));
    assert!(stdout(&denied).contains("rules.yaml:2:1: error: 'unit' has no effect"), "{}", stdout(&denied));
}

#[test]
fn the_variables_for_files_apply_to_check_and_explain() {
    let dir = rules("domain: d\ndescriptors:\n- {key: a, rate_limit: {unlimited: true}}\n");
    let explain = ["explain", "--config", path(&dir), "--domain", "d", "b=x"];
    for (name, text, variable) in [
        (
            "more.yaml",
            "domain: d\ndescriptors:\n- {key: b, rate_limit: {unlimited: true}}\n",
            "MERGE_DOMAIN_CONFIG",
        ),
        (".hidden.yaml", "domain: [", "RUNTIME_IGNOREDOTFILES"),
    ] {
        fs::write(dir.path().join(name), text).expect("a file");
        let variables = [("MERGE_DOMAIN_CONFIG", "true"), ("RUNTIME_IGNOREDOTFILES", "1")];
        let others: Vec<_> = variables.into_iter().filter(|(name, _)| *name != variable).collect();
        for command in [&["check", path(&dir)][..], &explain] {
            assert_eq!(run(command, &others).status.code(), Some(1), "{command:?} without {variable}");
            let output = run(command, &variables);
            assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stdout(&output));
        }
    }
    let wrong = run(&["check", path(&dir)], &[("MERGE_DOMAIN_CONFIG", "maybe")]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("MERGE_DOMAIN_CONFIG is \"maybe\""), "{}", stderr(&wrong));
}

#[test]
fn explain_exits_with_3_if_no_rule_matches() {
    let dir = rules(RULES);
    let explain =
        |domain, entry, dir| run(&["explain", "--config", dir, "--domain", domain, entry], &[]).status.code();
    assert_eq!(explain("shop", "hello=world", path(&dir)), Some(0));
    assert_eq!(explain("shop", "bye=world", path(&dir)), Some(3));
    assert_eq!(explain("market", "hello=world", path(&dir)), Some(3));
    assert_eq!(explain("shop", "hello=world", "/nowhere"), Some(1));
}

#[test]
fn commands_about_rules_read_the_settings_of_the_store() {
    let dir = rules(RULES);
    let explain = ["explain", "--config", path(&dir), "--domain", "shop", "hello=world"];
    for arguments in [&["check", path(&dir)][..], &explain] {
        let output = run(arguments, &[("BACKEND_TYPE", "redid")]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.contains("must be memory, disk, redis or memcache"), "{arguments:?}: {text}");
    }
}

#[test]
fn explain_names_the_member_and_its_pool() {
    let dir = tempfile::tempdir().expect("a directory");
    let rules = "domain: platform\ndescriptors:\n- key: service\n  value: kyc\n  descriptors:\n  - key: client\n    \
                 rate_limit: {requests: 4000, per: 10s, share: {weights: {home-loan: 2}, max_members: 50}}\n";
    std::fs::write(dir.path().join("rules.yaml"), rules).expect("a file");
    for (value, variables, expected) in [
        ("home-loan", &[][..], "  member: home-loan, with a weight of 2\n"),
        ("cards", &[], "  member: cards, or other if 49 others have a place\n"),
        ("", &[], "  member: none, since the value is empty: rejected\n"),
        ("cards", &[], "  shared by its members: anonymous: deny, borrow: by_demand, "),
        (
            "cards",
            &[],
            ", lend: within_cycle, max_members: 50, min: 0, reserve: 10%, weights: {\"home-loan\":2}\n",
        ),
        ("cards", &[], "  with Redis: lease (WEIR_COORDINATION)\n"),
        (
            "cards",
            &[("BACKEND_TYPE", "memcache")],
            "  with Memcached: of N instances, each has the N-th part of the pool\n",
        ),
    ] {
        let client = format!("client={value}");
        let arguments = ["explain", "--config", path(&dir), "--domain", "platform", "service=kyc", &client];
        let explained = run(&arguments, variables);
        let text = stdout(&explained);
        assert!(
            text.contains("  pool: platform service=kyc client=*, of which each client has a share\n"),
            "{text}"
        );
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_others_wrote_stays_on_its_line() {
    let twice = "- {key: \"k\\ninjected: ok\", rate_limit: {unlimited: true}}\n".repeat(2);
    let checked = run_with_input(&["check", "-"], &format!("domain: d\ndescriptors:\n{twice}"));
    let text = stdout(&checked);
    assert!(text.contains(r"composite key 'd.k\ninjected: ok'"), "{text}");
    assert!(!text.contains("\ninjected"), "{text}");
    let dir = rules(
        "domain: \"d\\nx\"\ndescriptors:\n- {key: \"k\\nx\", value: \"v\\nx*\", rate_limit: {name: \"n\\nx\", requests: 1, \
         per: 1s}}\n- {key: \"l\\e[2J\", descriptors: [{key: \"m\\nx\"}]}\n",
    );
    for (domain, entries) in [
        ("d\nx", &["k\nx=v\nx1"][..]),
        ("d\nx", &["k\nx=other\nx"]),
        ("d\nx", &["l\u{1b}[2J=\nx", "none\nx=\nx"]),
        ("d\nx", &["l\u{1b}[2J=\nx"]),
        ("e\nx", &["k\nx=v\nx1", "--and", "k\nx=v\nx2"]),
        ("d\nx", &["k\nx=v\nx1", "--and", "k\nx=v\nx2"]),
    ] {
        let arguments = [&["explain", "--config", path(&dir), "--domain", domain], entries].concat();
        let text = stdout(&run(&arguments, &[]));
        assert!(text.contains(r"\nx"), "{text}");
        assert!(!text.contains("\nx") && !text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn without_a_path_commands_read_what_the_service_would_serve() {
    let root = tempfile::tempdir().expect("a directory");
    let below = root.path().join("ratelimit/config");
    fs::create_dir_all(&below).expect("a directory in it");
    fs::write(below.join("rules.yaml"), RULES).expect("a file in that");
    let variables = [("RUNTIME_ROOT", path(&root)), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
    let checked = run(&["check"], &variables);
    let expected = format!("{}: ok: 1 file, 1 domain, 2 rules, 0 warnings\n", below.display());
    assert_eq!(stdout(&checked), expected, "{}", stderr(&checked));
    let explain = ["explain", "--domain", "shop", "hello=world"];
    let explained = run(&explain, &variables);
    let origin = format!("matches, {}/rules.yaml:4:5", below.display());
    assert!(stdout(&explained).contains(&origin), "{} {}", stdout(&explained), stderr(&explained));
    for command in [&["check"][..], &explain] {
        let refused = run(command, &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), variables[0]]);
        assert_eq!(refused.status.code(), Some(1), "{command:?}");
        assert!(stderr(&refused).contains("from a control plane"), "{command:?}: {}", stderr(&refused));
        assert!(stdout(&run(&[command[0], "--help"], &[])).contains("RUNTIME_ROOT"), "{command:?}");
    }
}

/// Checks the rules in `dir` as a user whom permissions hold back. None if that user cannot run the program.
fn check_as_nobody(dir: &Path) -> Option<String> {
    let owner = fs::metadata(dir).expect("a directory").uid();
    let mut command = weir(&["check", dir.to_str().expect("a plain path")], &[]);
    if owner == 0 {
        command.uid(65_534).gid(65_534);
    }
    match command.output() {
        Ok(output) => Some(stdout(&output)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_directory_without_rights_is_a_warning_and_a_file_is_an_error() {
    let permit = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("they can be set");
    };
    let dir = rules(RULES);
    permit(dir.path(), 0o755);
    let lost = dir.path().join("lost+found");
    fs::create_dir(&lost).expect("a directory");
    permit(&lost, 0o000);
    let Some(text) = check_as_nobody(dir.path()) else {
        return skipped("rights of rule files", "a user without rights cannot run the program");
    };
    let warning =
        format!("{}: warning: the directory cannot be read, so rules in it have no", lost.display());
    assert!(text.starts_with(&warning) && text.contains(": ok: 1 file, 1 domain"), "{text}");
    permit(&lost, 0o755);
    // any other directory may hold rules
    let tenants = dir.path().join("tenants");
    fs::create_dir(&tenants).expect("a directory");
    permit(&tenants, 0o000);
    let text = check_as_nobody(dir.path()).expect("the program can be run");
    assert!(
        text.starts_with(&format!("{}: error: error loading config file: ", tenants.display())),
        "{text}"
    );
    permit(&tenants, 0o755);
    let file = dir.path().join("rules.yaml");
    permit(&file, 0o000);
    let text = check_as_nobody(dir.path()).expect("the program can be run");
    assert!(text.starts_with(&format!("{}: error: error loading config file: ", file.display())), "{text}");
    permit(&file, 0o644);

    // the version of a ConfigMap is rules, and so is the directory itself
    let version = dir.path().join("..version");
    fs::create_dir(&version).expect("a directory");
    fs::create_dir(version.join("below")).expect("a directory");
    symlink("..version", dir.path().join("..data")).expect("a link");
    symlink("..data/below", dir.path().join("below")).expect("a link");
    for (closed, named) in
        [(version.join("below"), dir.path().join("below")), (version, dir.path().join("below"))]
    {
        permit(&closed, 0o000);
        let text = check_as_nobody(dir.path()).expect("the program can be run");
        let error = format!("{}: error: error loading config file: cannot read: ", named.display());
        assert!(text.starts_with(&error), "{text}");
        permit(&closed, 0o755);
    }
    permit(dir.path(), 0o000);
    let text = check_as_nobody(dir.path()).expect("the program can be run");
    assert!(text.contains("cannot read the rules directory"), "{text}");
    permit(dir.path(), 0o755);
}

#[test]
fn rules_beside_the_directory_are_named_with_what_to_do() {
    let root = rules(RULES);
    let map = root.path().join("ratelimit");
    fs::create_dir_all(map.join("..version")).expect("directories");
    fs::rename(root.path().join("rules.yaml"), map.join("..version/config.yaml")).expect("a rename");
    symlink("..version", map.join("..data")).expect("a link");
    symlink("..data/config.yaml", map.join("config.yaml")).expect("a link");
    let variables = [("RUNTIME_ROOT", path(&root)), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
    let checked = run(&["check"], &variables);
    assert_eq!(checked.status.code(), Some(1));
    let advice = format!("; {} is beside it and not read: move it into", map.join("config.yaml").display());
    assert!(stdout(&checked).contains(&advice), "{}", stdout(&checked));
    let checked = run(&["check"], &[variables[0], variables[1], ("RUNTIME_APPDIRECTORY", ".")]);
    assert!(stdout(&checked).contains(": ok: 1 file, 1 domain, 2 rules"), "{}", stdout(&checked));
}

#[test]
fn explain_shows_the_limit_of_another_time() {
    let dir = rules(
        "domain: d\ntimezone: Europe/Berlin\ndescriptors:\n- key: a\n  rate_limit:\n    schedule:\n    \
         - {requests: 7, per: 1m, active: {from: \"02:30\", to: \"04:00\"}}\n    - {requests: 9, per: 1m}\n",
    );
    let explain =
        |at: &str| run(&["explain", "--config", path(&dir), "--domain", "d", "--at", at, "a=x"], &[]);
    // 02:30 does not exist on that day
    for (at, limit, until) in [
        ("2027-03-28T02:30", "7 requests", "2027-03-28T04:00:00+02:00[Europe/Berlin]"),
        ("2027-03-28T00:59:59Z", "9 requests", "2027-03-28T03:00:00+02:00[Europe/Berlin]"),
        ("2027-03-29", "9 requests", "2027-03-29T02:30:00+02:00[Europe/Berlin]"),
    ] {
        let explained = run_lines(&explain(at));
        assert!(
            explained.contains(&format!("  by its schedule, until {until}:\n  {limit} per 1m")),
            "{explained}"
        );
    }
    let wrong = explain("soon");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("invalid time 'soon'; write 2027-03-28T02:30"), "{}", stderr(&wrong));
}

fn run_lines(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    stdout(output)
}
