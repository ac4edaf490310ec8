//! Certificate authorities of a test, and certificates that they sign.

use std::{sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_RSA_SHA256, SanType, date_time_ymd,
};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// An RSA key in PKCS #8, because ring cannot generate one.
const RSA: &str = include_str!("../keys/rsa.pem");

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// A certificate to sign.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// DNS names, IP addresses, or URIs with `://`.
    pub names: &'a [&'a str],
    pub usages: &'a [ExtendedKeyUsagePurpose],
    /// The first and the last year of its validity.
    pub years: [i32; 2],
    pub rsa: bool,
}

// === impl Leaf ===

impl<'a> Leaf<'a> {
    /// Returns a valid certificate for `names` without extended key usage, with an elliptic key.
    pub fn new(names: &'a [&'a str]) -> Self {
        Self { names, usages: &[], years: [2020, 4000], rsa: false }
    }
}

// === impl Authority ===

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(Self::params(name), key).expect("a certificate"))
    }

    /// Returns an authority that is valid from one second to another, since the epoch.
    pub fn lasting(name: &str, [first, last]: [u64; 2]) -> Self {
        let mut params = Self::params(name);
        let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        (params.not_before, params.not_after) = (at(first), at(last));
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns an authority that this one has signed.
    pub fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::signed_by(Self::params(name), key, &self.0).expect("a certificate"))
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a valid certificate for `names`.
    pub fn sign(&self, names: &[&str]) -> Pair {
        self.sign_leaf(Leaf::new(names))
    }

    pub fn sign_leaf(&self, leaf: Leaf<'_>) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.subject_alt_names = leaf.names.iter().map(|name| alternative_name(name)).collect();
        params.extended_key_usages = leaf.usages.to_vec();
        params.not_before = date_time_ymd(leaf.years[0], 1, 1);
        params.not_after = date_time_ymd(leaf.years[1], 1, 1);
        let key = if leaf.rsa {
            KeyPair::from_pem_and_sign_algo(RSA, &PKCS_RSA_SHA256).expect("a key")
        } else {
            KeyPair::generate().expect("a key")
        };
        let certificate = params.signed_by(&key, &self.0).expect("a signature");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Returns a certificate for `names` that is its own authority.
    pub fn self_signed(names: &[&str]) -> Pair {
        Self::self_signed_for(names, &[])
    }

    /// Returns a certificate for `names` and `usages` that is its own authority.
    pub fn self_signed_for(names: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.subject_alt_names = names.iter().map(|name| alternative_name(name)).collect();
        params.extended_key_usages = usages.to_vec();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Returns a client that trusts this authority, presents `pair`, and speaks one of `versions` with `alpn`.
    pub fn client(
        &self,
        pair: Option<&Pair>,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("valid versions")
            .with_root_certificates(roots);
        let mut config = match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
                let chain = chain.collect::<Result<_, _>>().expect("certificates");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

fn alternative_name(name: &str) -> SanType {
    if name.contains("://") {
        SanType::URI(name.try_into().expect("a URI"))
    } else if let Ok(address) = name.parse() {
        SanType::IpAddress(address)
    } else {
        SanType::DnsName(name.try_into().expect("a name"))
    }
}

// === impl Pair ===

impl Pair {
    /// Returns the pair with its key in the format before PKCS #8: PKCS #1 of an RSA key, or SEC 1 of an elliptic one.
    pub fn with_old_key(&self, rsa: bool) -> Self {
        let PrivateKeyDer::Pkcs8(der) = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key")
        else {
            panic!("not PKCS #8");
        };
        // PKCS #8 wraps the old format; these are the lengths of what comes before it in keys of these kinds
        let (label, start) = if rsa { ("RSA PRIVATE KEY", 26) } else { ("EC PRIVATE KEY", 29) };
        let key = pem(label, &der.secret_pkcs8_der()[start..]);
        Self { certificate: self.certificate.clone(), key }
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in der.chunks(3) {
        let bits = u32::from_be_bytes([0, part[0], *part.get(1).unwrap_or(&0), *part.get(2).unwrap_or(&0)]);
        for i in 0..4 {
            let digit = char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]);
            text.push(if i <= part.len() { digit } else { '=' });
        }
    }
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
