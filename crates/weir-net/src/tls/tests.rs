//! The dates and usages of certificates, at chosen times, and chains.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use tokio_rustls::rustls::{
    CertificateError, Error,
    client::danger::ServerCertVerifier as _,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    server::danger::ClientCertVerifier as _,
};

use super::{
    certificate::{BrokenChain, Validity, check_chain},
    client_verifier::{ClientVerifier, EndedAuthority},
    provider,
    server_verifier::{ServerVerifier, TrustAnchors},
};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn params(name: &str, years: [i32; 2]) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(years[0], 1, 1), date_time_ymd(years[1], 1, 1));
    params
}

fn authority_params(name: &str, years: [i32; 2]) -> CertificateParams {
    let mut params = params(name, years);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn authority(name: &str, years: [i32; 2]) -> Issuer {
    Issuer::self_signed(authority_params(name, years), key()).expect("an authority")
}

fn leaf(issuer: &Issuer) -> CertificateDer<'static> {
    params("leaf", [2000, 2100]).signed_by(&key(), issuer).expect("a certificate").der().clone()
}

fn pinned(usages: &[ExtendedKeyUsagePurpose]) -> CertificateDer<'static> {
    let mut params = authority_params("pinned", [2000, 2100]);
    params.extended_key_usages = usages.to_vec();
    params.self_signed(&key()).expect("a certificate").der().clone()
}

fn start_of(year: i32) -> UnixTime {
    let seconds = date_time_ymd(year, 1, 1).unix_timestamp();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().expect("after 1970")))
}

fn client_verifier(certificates: Vec<CertificateDer<'static>>) -> Arc<ClientVerifier> {
    ClientVerifier::new(certificates, Vec::new(), provider()).expect("certificates")
}

fn is_ended(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    other.0.downcast_ref::<EndedAuthority>().is_some_and(|ended| ended.subject.contains("CN=brief"))
}

#[test]
fn an_authority_authenticates_clients_only_while_it_is_valid() {
    let (brief, lasting) = (authority("brief", [2020, 2030]), authority("lasting", [2000, 2100]));
    let verifier = client_verifier(vec![brief.der().clone(), lasting.der().clone()]);
    let (of_brief, of_lasting) = (leaf(&brief), leaf(&lasting));
    // in any order: the verifier of a process sees its clock go on, and sometimes back
    for year in [2025, 2031, 2019, 2026, 2010] {
        let outcome = verifier.verify_client_cert(&of_brief, &[], start_of(year));
        if (2020..2030).contains(&year) {
            assert!(outcome.is_ok(), "{year}: {outcome:?}");
        } else {
            assert!(outcome.as_ref().is_err_and(is_ended), "{year}: {outcome:?}");
        }
        assert!(verifier.verify_client_cert(&of_lasting, &[], start_of(year)).is_ok(), "{year}");
    }
    // both ends belong to the time
    let second_after = UnixTime::since_unix_epoch(Duration::from_secs(start_of(2030).as_secs() + 1));
    assert!(verifier.verify_client_cert(&of_brief, &[], start_of(2030)).is_ok());
    assert!(verifier.verify_client_cert(&of_brief, &[], second_after).is_err());
    let stranger = authority("stranger", [2000, 2100]);
    let outcome = verifier.verify_client_cert(&leaf(&stranger), &[], start_of(2025));
    assert_eq!(outcome.err(), Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
}

#[test]
fn no_valid_authority_authenticates_nobody() {
    let brief = authority("brief", [2020, 2030]);
    let verifier = client_verifier(vec![brief.der().clone()]);
    let outcome = verifier.verify_client_cert(&leaf(&brief), &[], start_of(2031));
    assert!(outcome.as_ref().is_err_and(is_ended), "{outcome:?}");
    // through an intermediate, too
    let between = authority_params("between", [2000, 2100]);
    let between = Issuer::signed_by(between, key(), &brief).expect("a certificate");
    let intermediates = [between.der().clone()];
    assert!(verifier.verify_client_cert(&leaf(&between), &intermediates, start_of(2025)).is_ok());
    let outcome = verifier.verify_client_cert(&leaf(&between), &intermediates, start_of(2031));
    assert!(outcome.as_ref().is_err_and(is_ended), "{outcome:?}");
}

/// Also without the feature: then none of the provider is.
#[test]
fn a_build_for_fips_uses_approved_algorithms_only() {
    assert_eq!(provider().fips(), cfg!(feature = "fips"));
}

#[test]
fn a_pinned_certificate_is_used_as_it_says() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    for (usages, is_client, is_server) in [
        (&[][..], true, true),
        (&[ClientAuth], true, false),
        (&[ServerAuth], false, true),
        (&[ServerAuth, ClientAuth], true, true),
    ] {
        let (certificate, now) = (pinned(usages), start_of(2025));
        let outcome = client_verifier(vec![certificate.clone()]).verify_client_cert(&certificate, &[], now);
        assert_eq!(outcome.is_ok(), is_client, "{usages:?}: {outcome:?}");
        let verifier = server_verifier(certificate.clone(), now).expect("an authority");
        let name = ServerName::try_from("localhost").expect("a name");
        let outcome = verifier.verify_server_cert(&certificate, &[], &name, &[], now);
        assert_eq!(outcome.is_ok(), is_server, "{usages:?}: {outcome:?}");
    }
}

fn server_verifier(certificate: CertificateDer<'static>, now: UnixTime) -> Option<Arc<ServerVerifier>> {
    let mut anchors = TrustAnchors::empty(now);
    anchors.add(certificate).expect("a certificate");
    if anchors.is_empty() {
        return None;
    }
    let provider = provider();
    Some(ServerVerifier::new(anchors, false, provider).expect("authorities"))
}

#[test]
fn an_authority_vouches_for_servers_only_while_it_is_valid() {
    let brief = authority("brief", [2020, 2030]);
    let (server, name) = (leaf(&brief), ServerName::try_from("localhost").expect("a name"));
    let now = start_of(2025);
    let verifier = server_verifier(brief.der().clone(), now).expect("it is valid");
    assert!(verifier.verify_server_cert(&server, &[], &name, &[], now).is_ok());
    for year in [2019, 2031] {
        assert!(server_verifier(brief.der().clone(), start_of(year)).is_none(), "{year}");
    }
}

/// Such certificates have no extensions; old tools make authorities of them.
#[test]
fn the_dates_of_version_1_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir-testing/keys/v1.crt");
    let certificate = CertificateDer::from_pem_slice(&fs::read(path).expect("the file")).expect("PEM");
    let validity = Validity::of(&certificate).expect("a certificate");
    assert!(validity.contains(start_of(2050)) && !validity.contains(start_of(2200)), "{validity:?}");
    assert_eq!(validity.lifetime(), 36_500 * 24 * 60 * 60);
    let verifier = client_verifier(vec![certificate]);
    assert!(
        verifier.verify_client_cert(&leaf(&authority("other", [2000, 2100])), &[], start_of(2050)).is_err()
    );
}

#[test]
fn a_chain_holds_together() {
    let root = authority("root", [2000, 2100]);
    let between =
        |key| Issuer::signed_by(authority_params("between", [2000, 2100]), key, &root).expect("an issuer");
    let (issuer, impostor) = (between(key()), between(key()));
    let own = leaf(&issuer);
    let (root_der, issuer_der, impostor_der) =
        (root.der().clone(), issuer.der().clone(), impostor.der().clone());
    let elsewhere = authority("elsewhere", [2000, 2100]).der().clone();
    for chain in [
        vec![own.clone()],
        vec![own.clone(), issuer_der.clone()],
        vec![own.clone(), issuer_der.clone(), root_der.clone()],
        // TLS 1.3 allows any order, and certificates without a use
        vec![own.clone(), root_der.clone(), issuer_der.clone()],
        vec![own.clone(), elsewhere, issuer_der.clone()],
        // one of two with the same name is enough
        vec![own.clone(), impostor_der.clone(), issuer_der.clone()],
    ] {
        assert_eq!(check_chain(&chain), Ok(()));
    }
    let wrong = BrokenChain::WrongSignature { certificate: 1, issuer: 2 };
    assert_eq!(check_chain(&[own.clone(), impostor_der]), Err(wrong));
    // a bit of the signature, in the last bytes
    let mut damaged = issuer_der.to_vec();
    *damaged.last_mut().expect("bytes") ^= 1;
    let chain = [own.clone(), damaged.into(), root_der];
    assert_eq!(check_chain(&chain), Err(BrokenChain::WrongSignature { certificate: 2, issuer: 3 }));
    let cut = issuer_der[..issuer_der.len() - 1].to_vec();
    assert_eq!(check_chain(&[own.clone(), cut.into()]), Err(BrokenChain::Unreadable(2)));
    let longer = [&issuer_der[..], &[0]].concat();
    assert_eq!(check_chain(&[own, longer.into()]), Err(BrokenChain::Unreadable(2)));
}
