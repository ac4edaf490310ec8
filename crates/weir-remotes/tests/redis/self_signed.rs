//! Redis over TLS with a self-signed certificate that is its own authority, as `openssl req -x509` makes it by default.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use weir_net::tls::ClientTls;
use weir_remotes::redis::{Address, RedisRemote, RedisSettings};

use crate::support::{Server, connected, settings, until};

/// The first and the last year of a certificate that is valid today.
const VALID: [i32; 2] = [2020, 4000];

/// A server that accepts TLS only, and its certificate in a file.
struct SelfSigned {
    server: Server,
    dir: TempDir,
}

impl SelfSigned {
    /// Starts a server whose certificate is for `host`, and is valid from the first day of one year to that of another.
    fn start(host: &str, [from, to]: [i32; 2]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, host);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("redis.pem"), certificate.pem()).expect("a file");
        fs::write(path("redis.key"), key.serialize_pem()).expect("a file");
        let own = path("redis.pem");
        let server = Server::start_with_tls(&own, &path("redis.key"), &own, false);
        Self { server, dir }
    }

    fn certificate(&self) -> PathBuf {
        self.dir.path().join("redis.pem")
    }

    /// Returns settings for this server that trust the certificate in `ca`.
    fn trusting(&self, ca: PathBuf, any_name: bool) -> RedisSettings {
        let mut settings = settings(Address::tcp("localhost", self.server.port()));
        settings.main.tls = Some(ClientTls { ca: Some(ca), any_name, ..ClientTls::default() });
        settings
    }
}

/// Waits until a connection has failed. Returns the error.
async fn error(settings: RedisSettings) -> String {
    let remote = RedisRemote::new(settings).expect("the files are valid");
    until("the connection fails", async || remote.state().servers[0].error.is_some()).await;
    remote.state().servers[0].error.clone().expect("there is one")
}

#[tokio::test]
async fn a_trusted_self_signed_certificate_is_accepted() {
    let redis = SelfSigned::start("localhost", VALID);
    for any_name in [false, true] {
        connected(redis.trusting(redis.certificate(), any_name)).await;
    }
}

#[tokio::test]
async fn a_self_signed_certificate_for_another_name_is_rejected() {
    let redis = SelfSigned::start("elsewhere", VALID);
    let error = error(redis.trusting(redis.certificate(), false)).await;
    assert!(error.contains("not valid for name \"localhost\""), "{error}");
    connected(redis.trusting(redis.certificate(), true)).await;
}

#[tokio::test]
async fn a_self_signed_certificate_is_rejected_before_and_after_its_validity() {
    for (years, expected) in
        [([2020, 2021], "certificate expired"), ([3000, 4000], "certificate not valid yet")]
    {
        let redis = SelfSigned::start("localhost", years);
        for any_name in [false, true] {
            let error = error(redis.trusting(redis.certificate(), any_name)).await;
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_not_trusted_is_rejected() {
    let redis = SelfSigned::start("localhost", VALID);
    let other = SelfSigned::start("localhost", VALID);
    for any_name in [false, true] {
        let error = error(redis.trusting(other.certificate(), any_name)).await;
        assert!(error.contains("certificate"), "{error}");
    }
}
