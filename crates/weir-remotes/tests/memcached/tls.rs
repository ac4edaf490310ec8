//! Encrypted connections.

use std::{path::Path, sync::Arc};

use weir_limit::{Coordination, OverLimitPolicy};
use weir_net::tls::ClientTls;
use weir_remotes::memcached::{MemcachedRemote, MemcachedSettings};
use weir_store::clock::SystemClock;
use weir_testing::certificates::Certificates;

use crate::support::{Instance, Server, YEAR, settings, until, window};

/// Starts a server that accepts TLS only; it requires client certificates if `mutual`.
fn server(certificates: &Certificates, mutual: bool) -> Server {
    let (certificate, key) = certificates.sign("server", "127.0.0.1");
    let option = |name: &str, path: &Path| format!("{name}={}", path.display());
    let options = [
        option("ssl_chain_cert", &certificate),
        option("ssl_key", &key),
        option("ssl_ca_cert", &certificates.path("ca.pem")),
        format!("ssl_verify_mode={}", if mutual { 2 } else { 0 }),
    ];
    Server::start_with(&["-Z", "-o", &options.join(",")])
}

fn encrypted(server: &Server, tls: ClientTls) -> MemcachedSettings {
    MemcachedSettings { tls: Some(tls), ..settings(&[server]) }
}

#[tokio::test]
async fn counts_are_shared_over_tls() {
    let certificates = Certificates::new();
    let server = server(&certificates, true);
    let client = Some(certificates.sign("client", "weir"));
    let tls = ClientTls { ca: Some(certificates.path("ca.pem")), client, any_name: false };
    let new = || {
        let (tier, policy) = (window(50, YEAR), OverLimitPolicy::Count);
        Instance::new(encrypted(&server, tls.clone()), &[tier], policy, Coordination::Strict)
    };
    let instances = [new(), new()];
    for instance in &instances {
        instance.wait_until_connected().await;
        assert!(!instance.send("v", 25).await.over);
    }
    assert!(instances[0].send("v", 1).await.over);
}

#[tokio::test]
async fn other_certificates_are_refused() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let server = server(&certificates, false);
    let ca = |certificates: &Certificates| ClientTls {
        ca: Some(certificates.path("ca.pem")),
        ..ClientTls::default()
    };
    let open = |settings| MemcachedRemote::new(settings, Arc::new(SystemClock)).expect("valid files");
    let refused = open(encrypted(&server, ca(&others)));
    until("the attempt has failed", async || refused.state().has_failed()).await;
    assert!(refused.state().failures().contains("TLS"), "{}", refused.state().failures());
    let plain = open(settings(&[&server]));
    until("the attempt has failed", async || plain.state().has_failed()).await;
    let accepted = open(encrypted(&server, ca(&certificates)));
    until("it is connected", async || accepted.state().is_connected()).await;
    let missing = ClientTls { ca: Some("/nowhere/ca.pem".into()), ..ClientTls::default() };
    let error = MemcachedRemote::new(encrypted(&server, missing), Arc::new(SystemClock));
    let error = error.expect_err("there is no such file").to_string();
    assert!(error.contains("MEMCACHE_TLS_CACERT"), "{error}");
}
