//! Reads the variables of envoyproxy/ratelimit for TLS: on the gRPC port, and the files of clients.

use std::path::PathBuf;

use weir_net::tls::{ClientName, ServerTls};

use super::reader::SettingReader;

/// None without `GRPC_SERVER_USE_TLS`, as in envoyproxy/ratelimit. Variables that demand certificates of clients are
/// then errors: whoever sets one expects that strangers are rejected.
pub(super) fn server(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<ServerTls> {
    const PLAIN_TEXT: &str =
        "unset, or GRPC_SERVER_USE_TLS set to true: in plain text, no client shows a certificate";
    let names = client_names(read);
    if read.bool("GRPC_SERVER_USE_TLS") {
        return files_with(read, names, warnings);
    }
    for variable in ["GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN"] {
        if let Some(given) = read.given(variable) {
            read.reject(given, PLAIN_TEXT);
        }
    }
    let files = ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"];
    let not_encrypted = "the gRPC port is in plain text: GRPC_SERVER_USE_TLS is not true";
    warnings.extend(in_plain_text(read, &files, not_encrypted));
    None
}

/// Reads the TLS of a server where it is on: the files are those of the gRPC server.
pub(super) fn files(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<ServerTls> {
    let names = client_names(read);
    files_with(read, names, warnings)
}

fn client_names(read: &mut SettingReader<'_>) -> Vec<ClientName> {
    const NAMES: &str = "DNS names or URIs such as envoy.example.org or spiffe://cluster.local/ns/x/sa/y, with \
                         commas between them";
    let names = read.optional("GRPC_CLIENT_TLS_SAN", |text| {
        text.split(',').map(ClientName::parse).collect::<Option<Vec<_>>>().ok_or(NAMES)
    });
    names.unwrap_or_default()
}

fn files_with(
    read: &mut SettingReader<'_>,
    client_names: Vec<ClientName>,
    warnings: &mut Vec<String>,
) -> Option<ServerTls> {
    let client_ca = read.path("GRPC_CLIENT_TLS_CACERT");
    if !client_names.is_empty() && client_ca.is_none() {
        warnings.push(
            "GRPC_CLIENT_TLS_SAN is set, but has no effect: clients need no certificate without \
             GRPC_CLIENT_TLS_CACERT"
                .into(),
        );
    }
    let mut file = |variable: &str, expected: &str| {
        let given = read.path(variable);
        if given.is_none() {
            read.missing(variable, expected);
        }
        given
    };
    let certificate = file("GRPC_SERVER_TLS_CERT", "the file of the certificate chain, because TLS is on");
    let key = file("GRPC_SERVER_TLS_KEY", "the file of the private key, because TLS is on");
    Some(ServerTls { certificate: certificate?, key: key?, client_ca, client_names })
}

pub(super) fn in_plain_text(
    read: &SettingReader<'_>,
    variables: &[&str],
    not_encrypted: &str,
) -> Vec<String> {
    let set = variables.iter().filter(|variable| read.is_given(variable));
    set.map(|variable| format!("{variable} is set, but {not_encrypted}")).collect()
}

pub(super) fn client_files(
    read: &mut SettingReader<'_>,
    certificate: &str,
    key: &str,
) -> Option<(PathBuf, PathBuf)> {
    match (read.given(certificate), read.given(key)) {
        (Some(certificate), Some(key)) => Some((certificate.value.into(), key.value.into())),
        (None, None) => None,
        (Some(given), None) => {
            read.reject(given, format!("set together with {key}"));
            None
        }
        (None, Some(given)) => {
            read.reject(given, format!("set together with {certificate}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::resolve::tests::resolve;

    #[test]
    fn certificates_of_clients_need_tls() {
        for named in [("GRPC_CLIENT_TLS_CACERT", "/ca"), ("GRPC_CLIENT_TLS_SAN", "envoy")] {
            for switch in ["", "false"] {
                let error =
                    resolve(&[named, ("GRPC_SERVER_USE_TLS", switch)]).expect_err("it is open to all");
                let error = error.to_string();
                assert!(
                    error.starts_with(named.0) && error.contains("GRPC_SERVER_USE_TLS set to true"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn files_of_tls_without_tls_cause_warnings() {
        let redis = ("REDIS_URL", "redis:1");
        let per_second = [("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "redis:2")];
        let client = [("REDIS_TLS_CLIENT_CERT", "/cert"), ("REDIS_TLS_CLIENT_KEY", "/key")];
        let (ca, memcached) = (("REDIS_TLS_CACERT", "/ca"), ("MEMCACHE_HOST_PORT", "memcached:1"));
        for (variables, expected) in [
            (vec![("GRPC_SERVER_TLS_CERT", "/cert")], &["GRPC_SERVER_TLS_CERT"][..]),
            (vec![redis, ca], &["REDIS_TLS_CACERT"]),
            ([&[redis][..], &client].concat(), &["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"]),
            (vec![redis, ca, ("REDIS_TLS", "true")], &[]),
            (vec![("REDIS_URL", "rediss://redis"), ca], &[]),
            // one of both is in plain text
            ([&[redis, ca, ("REDIS_TLS", "true")][..], &per_second].concat(), &["REDIS_TLS_CACERT"]),
            (vec![memcached, ("MEMCACHE_TLS_CACERT", "/ca")], &["MEMCACHE_TLS_CACERT"]),
            (vec![memcached, ("MEMCACHE_TLS_CACERT", "/ca"), ("MEMCACHE_TLS", "true")], &[]),
            (
                vec![
                    ("TRACING_ENABLED", "true"),
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
                    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
                ],
                &["OTEL_EXPORTER_OTLP_CERTIFICATE"],
            ),
            (
                vec![("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca")],
                &["CONFIG_GRPC_XDS_SERVER_TLS_CACERT"],
            ),
        ] {
            let warnings = resolve(&variables).expect("warnings are enough").warnings;
            assert_eq!(warnings.len(), expected.len(), "{variables:?}: {warnings:?}");
            for (warning, variable) in warnings.iter().zip(expected) {
                let is_expected = warning.starts_with(variable) && warning.contains("in plain text: ");
                assert!(is_expected, "{variables:?}: {warning}");
            }
        }
    }
}
