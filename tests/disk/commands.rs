//! `weir data`.

use std::{
    fs,
    io::Write as _,
    process::{Output, Stdio},
};

use weir_limit::Period;
use weir_store::clock::{Clock as _, SystemClock};

use crate::{
    child::{run, stderr, stdout, weir},
    support::{Disk, tiers, until},
};

/// Returns data whose clock is the system's, as that of the commands is.
fn disk() -> Disk {
    let disk = Disk::new();
    disk.clock.set(SystemClock.now());
    disk
}

fn data(disk: &Disk, arguments: &[&str]) -> Output {
    let dir = disk.settings.dir.to_str().expect("a plain path");
    run(&[&["data"], arguments].concat(), &[("WEIR_DATA_DIR", dir)])
}

/// Imports `input` into the data in `dir`.
fn import(dir: &str, input: &[u8]) -> Output {
    let mut import = weir(&["data", "import", "--dir", dir], &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    import.stdin.take().expect("it is piped").write_all(input).expect("it reads");
    import.wait_with_output().expect("its output")
}

/// A value is its caller's text, and must not act on the terminal of whoever looks at the data.
#[test]
fn values_are_printed_as_text() {
    let disk = disk();
    let opened = disk.open_with(tiers());
    opened.take("a\u{1b}[2J\u{9b}\u{202e}\u{200b}z", 7);
    opened.close();
    let said = stdout(&data(&disk, &["inspect"]));
    assert!(said.contains(r"d|k=a\u{1b}[2J\u{9b}\u{202e}\u{200b}z f1d: 7 hits"), "{said:?}");
    let exported = stdout(&data(&disk, &["export"]));
    assert!(exported.contains(r"d|k=a\u001b[2J\u009b\u202e\u200bz"), "{exported:?}");
    let other = Disk::new();
    let said = import(other.settings.dir.to_str().expect("a plain path"), exported.as_bytes());
    assert_eq!(stdout(&said), "4 counters imported\n");
    assert_eq!(stdout(&data(&other, &["export"])), exported);
}

#[test]
fn counters_are_printed_also_while_weir_runs() {
    let disk = disk();
    let opened = disk.open_with(tiers());
    for value in ["acme", "bolt", "acorn"] {
        opened.take(value, 7);
    }
    opened.written();
    let said = stdout(&data(&disk, &["inspect", "--prefix", "d|k=ac"]));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2 * 4 + 1, "{said}");
    assert!(lines[0].starts_with("d|k=acme b1d: 7 hits, expires in "), "{said}");
    assert!(
        lines[1].starts_with("d|k=acme f1d: 7 hits")
            && lines[2].starts_with("d|k=acme fy: 7 hits")
            && lines[3].starts_with("d|k=acme s1d: 7 hits"),
        "{said}"
    );
    assert_eq!(lines[8], "8 counters, of which 0 have expired, in a copy of data in use");
    opened.close();
    let said = stdout(&data(&disk, &["inspect", "--limit", "1"]));
    assert!(said.ends_with("\n16 counters, of which 0 have expired\n"), "{said}");
    assert_eq!(said.lines().count(), 2);
    let left = fs::read_dir(&disk.settings.dir).expect("a directory");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("copy")), "{left:?}");
}

/// The engine would panic about a key of 64 KB, and weir never looks for one of more than 256 bytes.
#[test]
fn names_that_weir_never_writes_are_not_imported() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().to_str().expect("a plain path");
    let line = |name: &str, tier: &str| {
        format!(
            r#"{{"counter":"{name}","tier":"{tier}","expires":"9000000000","state":{{"end":"9000000000","hits":1}}}}"#
        )
    };
    let long = "x".repeat(66_000);
    for (name, tier, field) in [(&*long, "f1m", "counter"), ("d|k=v", &*format!("f{long}"), "tier")] {
        let imported = import(dir, line(name, tier).as_bytes());
        let said = stderr(&imported);
        assert_eq!(imported.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("line 1: {field:?} must be")), "{said}");
    }
    let most = "x".repeat(256);
    assert_eq!(stdout(&import(dir, line(&most, "f1m").as_bytes())), "1 counters imported\n");
}

/// A backup of a running weir under load has all that was written before it, and becomes the data of another one.
#[test]
fn a_backup_is_made_while_weir_runs_and_is_restored() {
    let disk = disk();
    let opened = disk.open_with(tiers());
    for i in 0..500 {
        opened.take(&i.to_string(), 1 + i % 7);
    }
    opened.written();
    let from = disk.settings.dir.to_str().expect("a plain path");
    let export = weir(&["data", "export"], &[("WEIR_DATA_DIR", from)]).output().expect("it can be started");
    assert!(export.status.success(), "{}", stderr(&export));
    let before: Vec<_> = (0..500).map(|i| opened.take(&i.to_string(), 0)).collect();
    let other = Disk { clock: disk.clock.clone(), ..Disk::new() };
    let dir = other.settings.dir.to_str().expect("a plain path");
    let output = import(dir, &export.stdout);
    assert!(stdout(&output).ends_with("counters imported\n"), "{}{}", stdout(&output), stderr(&output));
    let restored = other.open_with(tiers());
    let after: Vec<_> = (0..500).map(|i| restored.take(&i.to_string(), 0)).collect();
    assert_eq!(after, before);
}

#[test]
fn expired_counters_are_compacted_away() {
    let disk = disk();
    let opened = disk.open();
    for i in 0..100 {
        opened.take(&i.to_string(), 1);
    }
    opened.written();
    let refused = data(&disk, &["compact"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("in use by another process: stop it first")
    );
    opened.close();
    // two days ago
    let now = disk.clock.now();
    disk.clock.set(weir_limit::Timestamp::from_nanos(now.as_nanos() - 2 * 86_400 * 1_000_000_000));
    let opened = disk.open();
    for i in 0..70 {
        opened.take(&format!("old{i}"), 1);
    }
    opened.close();
    disk.clock.advance(Period::from_secs(2 * 86_400));
    let said = stdout(&data(&disk, &["inspect", "--limit", "0"]));
    assert_eq!(said, "171 counters, of which 70 have expired\n");
    assert_eq!(stdout(&data(&disk, &["compact"])), "70 expired counters removed\n");
    assert_eq!(stdout(&data(&disk, &["inspect", "--limit", "0"])), "101 counters, of which 0 have expired\n");
    let opened = disk.open();
    until("all are there", || opened.hits("7") == 1);
}

#[test]
fn wrong_use_is_told() {
    let disk = disk();
    let output = run(&["data", "inspect"], &[]);
    assert!(stderr(&output).contains("Give --dir, or set WEIR_DATA_DIR"), "{}", stderr(&output));
    let output = data(&disk, &["inspect"]);
    assert!(stderr(&output).contains("there is no data in"), "{}", stderr(&output));
    let dir = disk.settings.dir.to_str().expect("a plain path");
    let line =
        "{\"counter\":\"d|k=v\",\"tier\":\"f1d\",\"expires\":\"1\",\"state\":{\"end\":\"1\",\"hits\":1}}\n";
    let wrong = line.replace("\"hits\":1", "\"hits\":\"one\"");
    for (second, expected) in [
        (wrong.as_bytes(), Some("line 2: \"hits\" must be a whole number")),
        (
            b"{]\n",
            Some(
                "line 2: it must be a JSON object: key must be a string, in column 2; some counters of lines",
            ),
        ),
        (b"\xff\n", Some("line 2: it cannot be read: ")),
        (b"\n \n", None),
    ] {
        let output = import(dir, &[line.as_bytes(), second].concat());
        assert_eq!(output.status.success(), expected.is_none(), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected.unwrap_or_default()), "{}", stderr(&output));
    }
}

/// A copy that a killed command left is removed by the next start, and one in use is not.
#[test]
fn a_copy_left_behind_is_removed() {
    let disk = disk();
    disk.open().close();
    let copies = ["copy-1", "copy-2"].map(|name| disk.settings.dir.join(name));
    for copy in &copies {
        fs::create_dir(copy).expect("a directory");
        fs::write(copy.join("lock"), "").expect("a file");
    }
    let used = fs::File::open(copies[1].join("lock")).expect("the lock");
    used.lock().expect("it is free");
    disk.open().close();
    assert_eq!(copies.map(|copy| copy.exists()), [false, true]);
}
