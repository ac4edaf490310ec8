//! Reads the variables of envoyproxy/ratelimit for TLS: on the gRPC port, and the files of clients.

use std::path::PathBuf;

use super::reader::{Given, Reader};
use crate::tls::{ClientName, ServerTls};

/// Reads the TLS of the gRPC server, if it is on. Without `GRPC_SERVER_USE_TLS` the other variables have no effect, as in
/// envoyproxy/ratelimit.
pub(super) fn server(read: &mut Reader<'_>, warnings: &mut Vec<String>) -> Option<ServerTls> {
    let names = client_names(read);
    if read.bool("GRPC_SERVER_USE_TLS") { files_with(read, names, warnings) } else { None }
}

/// Reads the files of a server's TLS, which is on: those of the gRPC server.
pub(super) fn files(read: &mut Reader<'_>, warnings: &mut Vec<String>) -> Option<ServerTls> {
    let names = client_names(read);
    files_with(read, names, warnings)
}

fn client_names(read: &mut Reader<'_>) -> Vec<ClientName> {
    const NAMES: &str = "DNS names or URIs such as envoy.example.org or spiffe://cluster.local/ns/x/sa/y, with \
                         commas between them";
    read.parsed("GRPC_CLIENT_TLS_SAN", Vec::new(), |text| {
        text.split(',').map(ClientName::parse).collect::<Option<Vec<_>>>().ok_or(NAMES)
    })
}

fn files_with(
    read: &mut Reader<'_>,
    client_names: Vec<ClientName>,
    warnings: &mut Vec<String>,
) -> Option<ServerTls> {
    let client_ca = read.given("GRPC_CLIENT_TLS_CACERT").map(|given| PathBuf::from(given.value));
    if !client_names.is_empty() && client_ca.is_none() {
        warnings.push(
            "GRPC_CLIENT_TLS_SAN is set, but has no effect: clients need no certificate without \
             GRPC_CLIENT_TLS_CACERT"
                .into(),
        );
    }
    let mut file = |variable: &str, expected: &str| {
        let given = read.given(variable);
        if given.is_none() {
            read.reject(Given { name: variable.into(), value: String::new() }, expected);
        }
        given.map(|given| PathBuf::from(given.value))
    };
    let certificate = file("GRPC_SERVER_TLS_CERT", "the file of the certificate chain, because TLS is on");
    let key = file("GRPC_SERVER_TLS_KEY", "the file of the private key, because TLS is on");
    Some(ServerTls { certificate: certificate?, key: key?, client_ca, client_names })
}

/// Reads the certificate chain and the private key of a client: both or neither.
pub(super) fn client_files(
    read: &mut Reader<'_>,
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
