//! The pod of the Helm chart with TLS, client certificates, and a store from a Secret.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    authority::{Authority, Pair},
    pod::{await_more, render, under_load},
    support::{
        Envoy,
        bootstrap::{Bootstrap, from_header},
        config_map::ConfigMap,
        http::{self, HttpRequest},
        pod::Pod,
        process::Process,
        wait::{self, HOUR},
    },
};

const VALUES: &str = "
tls:
  enabled: true
  existingSecret: weir-tls
  clients: { caSecret: clients, san: envoy.example.com }
redis: { existingSecret: { name: store } }
# a busy machine is no failure of Redis
coordination: { decisionBudget: 10s }
stop: { delaySeconds: 1 }
rules:
  files:
    test.yaml:
      domain: test
      descriptors:
        - { key: user, rate_limit: { requests: 3, per: 1h } }
        - { key: load, rate_limit: { requests: 100000000, per: 1h } }
";

/// The name that the certificate of the chart's cert-manager resource has, too.
const NAME: &str = "weir.edge.svc.cluster.local";

fn secret(pair: &Pair) -> Value {
    json!({ "tls.crt": pair.certificate, "tls.key": pair.key })
}

fn start_redis(folder: &Path) -> (Process, PathBuf) {
    let socket = folder.join("redis.sock");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).current_dir(folder);
    let redis = Process::start("redis", &mut command, folder);
    wait::until("Redis listens", || socket.exists().then_some(()));
    (redis, socket)
}

/// Returns how Envoy speaks TLS to weir, with a client certificate.
fn transport(authority: &Authority, client: &Pair) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": NAME,
            "common_tls_context": {
                "tls_certificates": [{
                    "certificate_chain": { "inline_string": client.certificate },
                    "private_key": { "inline_string": client.key },
                }],
                "validation_context": {
                    "trusted_ca": { "inline_string": authority.pem() },
                    "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": NAME } }],
                },
            },
        },
    })
}

#[test]
fn the_pod_serves_tls_and_uses_a_renewed_certificate_under_load() {
    let folder = TempDir::new().expect("a folder");
    let (_redis, socket) = start_redis(folder.path());
    let (deployment, rules) = render(VALUES);
    let authority = Authority::new("mesh");
    let volume = |name: &str| folder.path().join(name);
    let _rules = ConfigMap::mount(&volume("rules"), &rules);
    let _clients = ConfigMap::mount(&volume("client-ca"), &json!({ "ca.crt": authority.pem() }));
    let mut certificate = ConfigMap::mount(&volume("tls"), &secret(&authority.sign(&[NAME])));
    let volumes = ["rules", "client-ca", "tls"].map(|name| (name, volume(name)));
    let secrets = BTreeMap::from([("store/url", socket.display().to_string())]);
    let mut pod = Pod::start(&deployment, &BTreeMap::from(volumes), &secrets, folder.path());

    let lists = json!([from_header("user", "x-user"), from_header("load", "x-load")]);
    let mut bootstrap = Bootstrap::limiting(lists).to_json(pod.grpc);
    bootstrap["static_resources"]["clusters"][0]["transport_socket"] =
        transport(&authority, &authority.sign(&["envoy.example.com"]));
    let file = folder.path().join("envoy.json");
    fs::write(&file, bootstrap.to_string()).expect("a file");
    let envoy = Envoy::start(&file, folder.path());

    wait::away_from_the_end_of(HOUR);
    for status in [200, 200, 200, 429] {
        assert_eq!(http::send(envoy.address, &HttpRequest::get("/").with("x-user", "a")).status, status);
    }
    let metrics = || http::send(pod.http, &HttpRequest::get("/metrics")).body;
    assert!(
        metrics().contains("\nweir_redis_connected{redis=\"main\"} 1\n"),
        "the store of the Secret is in use"
    );
    under_load(envoy.address, |sent| {
        await_more(sent);
        certificate.update(&secret(&authority.sign(&[NAME])));
        wait::until("the renewed certificate is in use", || {
            metrics().contains("\nweir_tls_reloads_total 1\n").then_some(())
        });
        await_more(sent);
    });
    assert!(metrics().contains("\nweir_tls_reloads_failed_total 0\n"));
    assert!(pod.stop(), "{}", pod.output());
}
