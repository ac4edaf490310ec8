//! Starts with invalid certificates.

use std::fs;

use crate::{
    authority::{Authority, Pair},
    child::{run, stderr},
    mounted::Mounted,
    service::RULES,
};

/// Returns the error of a start with `pair` and `client_ca`, and with `variables`.
fn error(pair: &Pair, client_ca: Option<&str>, variables: &[(&str, &str)]) -> String {
    let rules = tempfile::tempdir().expect("a directory");
    fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
    let mounted = Mounted::new(pair, client_ca);
    let files: Vec<(&str, String)> = mounted.variables().collect();
    let mut all: Vec<(&str, &str)> = files.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend(variables);
    let output = run(&["serve", "--config", rules.path().to_str().expect("a path in UTF-8")], &all);
    assert_eq!(output.status.code(), Some(1));
    stderr(&output)
}

#[test]
fn an_invalid_certificate_fails_the_start_with_its_file() {
    let authority = Authority::new("authority");
    let (pair, other) = (authority.sign(&["localhost"]), authority.sign(&["localhost"]));
    let mixed = Pair { certificate: pair.certificate.clone(), key: other.key };
    let no_key = Pair { certificate: pair.certificate.clone(), key: pair.certificate.clone() };
    let no_certificate = Pair { certificate: pair.key.clone(), key: pair.key.clone() };
    let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = Pair { certificate: pair.certificate.clone() + unreadable, key: pair.key.clone() };
    for (pair, client_ca, expected) in [
        (&mixed, None, "tls.key does not belong to the certificate in "),
        (&no_key, None, "tls.key, holds no private key in PEM format"),
        (&no_certificate, None, "tls.crt, holds no certificate in PEM format"),
        (&pair, Some("nothing"), "GRPC_CLIENT_TLS_CACERT, "),
        (&broken, None, "tls.crt, holds a broken chain: certificate 2 is not in X.509 format"),
    ] {
        let error = error(pair, client_ca, &[]);
        assert!(error.contains("weir: error: cannot set up TLS of the gRPC port: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn missing_files_fail_the_start() {
    let authority = Authority::new("authority");
    let pair = authority.sign(&["localhost"]);
    let missing = error(&pair, None, &[("GRPC_SERVER_TLS_KEY", "/nowhere/tls.key")]);
    assert!(missing.contains("cannot read GRPC_SERVER_TLS_KEY, /nowhere/tls.key: No such file"), "{missing}");
    let unset = error(&pair, None, &[("GRPC_SERVER_TLS_KEY", "")]);
    assert!(
        unset.contains("GRPC_SERVER_TLS_KEY is not set, but must be the file of the private key"),
        "{unset}"
    );
    let name = error(&pair, None, &[("GRPC_CLIENT_TLS_SAN", "a b")]);
    assert!(name.contains("GRPC_CLIENT_TLS_SAN is \"a b\", but must be DNS names or URIs"), "{name}");
}
