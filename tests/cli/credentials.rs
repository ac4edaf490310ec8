//! Secrets from systemd's credentials, read by the program as the unit starts it.

use std::{fs, net::TcpListener};

use tempfile::TempDir;

use crate::{
    NO_DELAY, RULES,
    child::{Serving, run, stderr},
    path, rules,
};

fn credentials(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("a file in it");
    }
    dir
}

/// Returns the error of a start with this directory of credentials.
fn refused(dir: &str, variables: &[(&str, &str)]) -> String {
    let rules = rules(RULES);
    let output = run(
        &["serve", "--config", path(&rules), "--port", "0", "--debug-port", "0", "--grpc-port", "0"],
        &[&[("CREDENTIALS_DIRECTORY", dir)], variables].concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_credential_gives_a_variable_its_value() {
    let rules = rules(RULES);
    // weir connects to it, and sends the password first
    let redis = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = redis.local_addr().expect("an address").to_string();
    let dir = credentials(&[
        ("weir_REDIS_AUTH", b"s3cret word\n"),
        ("weir_REDIS_PASSWORD", b"x"),
        // keys for TLS, and what others need, are no variables
        ("weir_tls.key", b"\xff"),
        ("other", b"\xff"),
    ]);
    let variables = [("CREDENTIALS_DIRECTORY", path(&dir)), ("REDIS_URL", &address), NO_DELAY];
    let weir = Serving::start(path(&rules), &variables);
    let (mut stream, _) = redis.accept().expect("weir connects");
    let mut received = Vec::new();
    let mut part = [0; 1024];
    while !received.windows(11).any(|bytes| bytes == b"s3cret word") {
        let read = std::io::Read::read(&mut stream, &mut part).expect("commands");
        assert!(read > 0, "{}", String::from_utf8_lossy(&received));
        received.extend(&part[..read]);
    }
    assert!(received.windows(4).any(|bytes| bytes.eq_ignore_ascii_case(b"AUTH") || bytes == b"ELLO"));
    drop((stream, redis));
    weir.signal("TERM");
    let (_, log) = weir.ended();
    assert!(log.contains("the credential weir_REDIS_PASSWORD has no effect with these settings"), "{log}");
    assert!(!log.contains("s3cret") && !log.contains("weir_REDIS_AUTH"), "{log}");
}

#[test]
fn credentials_that_cannot_be_used_are_errors() {
    let missing = refused("/nonexistent", &[]);
    assert!(missing.contains("cannot read the credential /nonexistent: No such file"), "{missing}");

    let binary = credentials(&[("weir_REDIS_AUTH", b"\xff\xfe")]);
    let binary = refused(path(&binary), &[]);
    assert!(binary.contains("weir_REDIS_AUTH; a credential is UTF-8 text of at most 1 MiB"), "{binary}");

    let large = credentials(&[("weir_REDIS_AUTH", &vec![b'x'; (1 << 20) + 1])]);
    assert!(refused(path(&large), &[]).contains("at most 1 MiB"));

    let twice = credentials(&[("weir_REDIS_AUTH", b"one")]);
    let twice = refused(path(&twice), &[("REDIS_AUTH", "two")]);
    let expected = "REDIS_AUTH is set, and is also a credential (weir_REDIS_AUTH); remove one of them";
    assert!(twice.contains(expected) && !twice.contains("two"), "{twice}");
}
