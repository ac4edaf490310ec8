//! `weir call` with TLS.

use std::fs;

use crate::{
    authority::Authority,
    child::{Serving, run, stderr, stdout},
    mounted::Mounted,
    service::RULES,
};

#[test]
fn call_uses_tls_with_its_own_authority_and_certificate() {
    let (server, clients) = (Authority::new("authority of servers"), Authority::new("authority of clients"));
    let mounted = Mounted::new(&server.sign(&["weir.example"]), Some(&clients.pem()));
    let rules = tempfile::tempdir().expect("a directory");
    fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
    let variables: Vec<(&str, String)> = mounted.variables().collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let serving = Serving::start(rules.path().to_str().expect("a path in UTF-8"), &variables);

    let files = tempfile::tempdir().expect("a directory");
    let pair = clients.sign(&["me"]);
    let file = |name: &str, text: &str| {
        fs::write(files.path().join(name), text).expect("a file");
        files.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    };
    let (ca, certificate, key) =
        (file("ca.pem", &server.pem()), file("tls.crt", &pair.certificate), file("tls.key", &pair.key));
    let plain = serving.address("grpc").to_owned();
    let (https, upper, http) =
        (format!("https://{plain}"), format!("HTTPS://{plain}/"), format!("http://{plain}"));
    let call = |address: &str, tls: &[&str]| {
        let call = ["call", "--address", address, "--domain", "d", "k=v"];
        run(&[&call[..], tls].concat(), &[])
    };
    let all =
        ["--tls-ca", &ca, "--tls-cert", &certificate, "--tls-key", &key, "--tls-server-name", "weir.example"];
    // a flag is enough: the address needs no scheme then
    for address in [&https, &upper, &plain] {
        let called = call(address, &all);
        assert!(called.status.success(), "{}", stderr(&called));
        assert!(stdout(&called).starts_with("OK\n"), "{}", stdout(&called));
    }
    for (address, tls, expected) in [
        (&https, &all[2..], "TLS: "),
        (&https, &all[..6], "not valid for name"),
        (&https, &all[..2], "cannot reach"),
        (&http, &all[..], "is without TLS; write https://"),
        (&https, &["--tls-ca", "/nowhere/ca.pem"], "cannot read --tls-ca, /nowhere/ca.pem"),
        (&https, &["--tls-cert", &certificate], "--tls-key"),
        (&https, &["--tls-server-name", "a b"], "write a DNS name"),
        (&plain, &[], "write https://host:port"),
    ] {
        let called = call(address, tls);
        assert_eq!(called.status.code(), Some(1), "{tls:?}");
        let is_rejected = expected == "cannot reach" || stderr(&called).contains(expected);
        assert!(is_rejected, "{tls:?}: {}", stderr(&called));
    }
}
