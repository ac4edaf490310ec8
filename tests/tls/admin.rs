//! The debug port with TLS.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Output};

use crate::{
    authority::Authority,
    child::{Serving, run, stderr},
    mounted::Mounted,
    service::RULES,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn the_debug_port_has_the_certificates_of_grpc_and_demands_those_of_clients() {
    let (server, clients) = (Authority::new("authority of servers"), Authority::new("authority of clients"));
    let files = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let pair = clients.sign(&["me"]);
    let (ca, certificate, key) =
        (file("ca.pem", &server.pem()), file("tls.crt", &pair.certificate), file("tls.key", &pair.key));
    let tokens = file("tokens", &format!("ops:full:{TOKEN}\n"));
    let rules = tempfile::tempdir().expect("a directory");
    fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
    let start = |mounted: &Mounted, more: &[(&str, &str)]| {
        let variables: Vec<(&str, String)> = mounted.variables().collect();
        let variables = variables.iter().map(|(name, value)| (*name, value.as_str()));
        let variables: Vec<(&str, &str)> =
            variables.chain([("DEBUG_TLS", "true")]).chain(more.iter().copied()).collect();
        Serving::start(rules.path().to_str().expect("a path in UTF-8"), &variables)
    };
    let top = |weir: &Serving, more: &[&str]| -> Output {
        let address = format!("https://{}", weir.address("debug"));
        let top =
            ["top", "--once", "--address", &address, "--tls-ca", &ca, "--tls-server-name", "weir.example"];
        run(&[&top[..], more].concat(), &[])
    };
    let own = ["--tls-cert", &certificate, "--tls-key", &key];

    let mounted = Mounted::new(&server.sign(&["weir.example"]), None);
    let weir = start(&mounted, &[("WEIR_ADMIN_TOKEN_FILE", &tokens)]);
    let with_token = top(&weir, &["--token-file", &tokens]);
    assert_eq!(with_token.status.code(), Some(0), "{}", stderr(&with_token));
    let without = top(&weir, &[]);
    assert!(stderr(&without).contains("(401)"), "{}", stderr(&without));
    let plain = run(&["top", "--once", "--address", weir.address("debug")], &[]);
    assert_eq!(plain.status.code(), Some(1), "it is encrypted");

    let mounted = Mounted::new(&server.sign(&["weir.example"]), Some(&clients.pem()));
    let weir = start(&mounted, &[]);
    let with_certificate = top(&weir, &own);
    assert_eq!(with_certificate.status.code(), Some(0), "{}", stderr(&with_certificate));
    assert_eq!(top(&weir, &[]).status.code(), Some(1), "it needs a certificate");
}
