//! The Envoy example with TLS, and the certificates that its script makes.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;
use weir_testing::repository;

use crate::support::{Stack, replace_once};

const FOLDER: &str = "target/envoy-tls";

/// Envoy's client certificate in the example.
const CLIENT: &str = "            tls_certificates:
              - certificate_chain: { filename: target/envoy-tls/envoy.crt }
                private_key: { filename: target/envoy-tls/envoy.key }
";

/// Makes certificates as the README says.
fn certificates() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let script = repository("examples/envoy/certificates.sh");
    let made = Command::new(script).arg(folder.path()).status().expect("the script can be started");
    assert!(made.success(), "it needs openssl");
    folder
}

/// Starts the example with `certificates`. Envoy presents its certificate or not; weir demands one or not.
fn start(certificates: &Path, presented: bool, demanded: bool) -> Stack {
    let folder = certificates.to_str().expect("UTF-8");
    let file = |name: &str| format!("{folder}/{name}");
    let (certificate, key, authority) = (file("weir.crt"), file("weir.key"), file("ca.crt"));
    let mut settings = vec![
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
    ];
    if demanded {
        settings
            .extend([("GRPC_CLIENT_TLS_CACERT", &*authority), ("GRPC_CLIENT_TLS_SAN", "envoy.example.com")]);
    }
    Stack::from_example_with("config", "examples/envoy/envoy-tls.yaml", &settings, |text| {
        let text = if presented { text } else { replace_once(&text, CLIENT, "") };
        text.replace(FOLDER, folder)
    })
}

/// Returns whether seven greetings exceed the limit of three a minute: they exceed those of two windows.
fn is_limited(stack: &Stack) -> bool {
    assert_eq!(stack.get_with("x-hello", "world").status, 200);
    (0..6).any(|_| stack.get_with("x-hello", "world").status == 429)
}

#[test]
fn envoy_is_limited_over_tls_with_and_without_a_client_certificate() {
    let certificates = certificates();
    for is_mutual in [false, true] {
        let stack = start(certificates.path(), is_mutual, is_mutual);
        // Envoy admits what weir does not decide in time, as during a slow handshake
        assert!((0..20).any(|_| is_limited(&stack)), "with client certificates: {is_mutual}");
    }
}

/// Envoy admits requests that weir does not decide: `failure_mode_deny` is false.
#[test]
fn an_envoy_without_a_certificate_is_rejected() {
    let certificates = certificates();
    let stack = start(certificates.path(), false, true);
    assert!(!is_limited(&stack));
    stack.await_log("TLS handshake failed: the client presented no certificate");
}

#[test]
fn a_weir_with_a_certificate_of_another_authority_is_rejected_by_envoy() {
    let (certificates, others) = (certificates(), self::certificates());
    for name in ["weir.crt", "weir.key"] {
        fs::copy(others.path().join(name), certificates.path().join(name)).expect("it can be replaced");
    }
    let stack = start(certificates.path(), true, true);
    assert!(!is_limited(&stack));
    stack.await_log("TLS handshake failed");
}

/// But for TLS, the example is the one without it.
#[test]
fn the_example_is_that_without_tls() {
    let read = |path: &str| fs::read_to_string(repository(path)).expect("the file");
    let from_rules = |text: &str| text.split_once("# Envoy describes").expect("the rules").1.to_owned();
    let with = read("examples/envoy/envoy-tls.yaml");
    let (before, rest) = with.split_once("      transport_socket:\n").expect("TLS");
    let after = rest.split_once("      load_assignment:\n").expect("addresses").1;
    let plain = format!("{before}      load_assignment:\n{after}");
    assert_eq!(from_rules(&plain), from_rules(&read("examples/envoy/envoy.yaml")));
}
