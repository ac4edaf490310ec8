//! Reads the variables of envoyproxy/ratelimit for rules from a control plane.

use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use weir_config::RuleDefaults;
use weir_limit::AlgorithmKind;
use weir_net::{grpc_client::Address, tls::ClientTls};
use weir_sources::xds::{XdsBackoff, XdsSettings, XdsTls};

use super::{parse, reader::SettingReader, tls};

/// gRPC's default, in bytes.
const MAX_MESSAGE: usize = 4 << 20;

pub(super) fn xds(
    read: &mut SettingReader<'_>,
    merge_domains: bool,
    warnings: &mut Vec<String>,
) -> Option<XdsSettings> {
    let is_wanted = is_wanted(read);
    // parsed even without effect, so that typing errors in weir's own variables are reported
    let defaults = read
        .optional("WEIR_XDS_ALGORITHM", |text| RuleDefaults::of_algorithm(text).ok_or(AlgorithmKind::NAMES));
    let defaults = defaults.unwrap_or_default();
    // where a rejected request counts nowhere, envoyproxy/ratelimit still counts the key that is over its limit
    let counts_nowhere = read.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT");
    let defaults = if counts_nowhere { defaults.with_costs() } else { defaults };
    let response_timeout = read.parsed("WEIR_XDS_RESPONSE_TIMEOUT", parse::positive_duration);
    if !is_wanted {
        warnings.extend(read.without_effect("xDS", "CONFIG_TYPE is not GRPC_XDS_SOTW"));
        return None;
    }
    Some(XdsSettings {
        server: read.parsed("CONFIG_GRPC_XDS_SERVER_URL", |text| {
            Address::parse_grpc(text).ok_or("host:port, dns:///host:port or unix:path")
        }),
        tls: tls(read, warnings),
        node_id: read.text("CONFIG_GRPC_XDS_NODE_ID"),
        node_metadata: metadata(read, warnings),
        headers: read.parsed("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", headers),
        connect_retry: read.duration_above_0("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", warnings),
        backoff: backoff(read, warnings),
        response_timeout,
        max_message: read.parsed("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", |text| {
            let bytes: Option<usize> = parse::integer(text);
            let bytes = bytes.map(|bytes| if bytes == 0 { MAX_MESSAGE } else { bytes });
            bytes.ok_or("a number of bytes, 0 for gRPC's default of 4 MiB")
        }),
        merge_domains,
        defaults,
        defaults_file: read.path("WEIR_XDS_DEFAULTS"),
    })
}

pub(super) fn is_wanted(read: &mut SettingReader<'_>) -> bool {
    read.choice("CONFIG_TYPE", &[("FILE", false), ("GRPC_XDS_SOTW", true)])
}

fn backoff(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> XdsBackoff {
    let initial = read.duration_above_0("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", warnings);
    let max = read.duration_above_0("XDS_CLIENT_BACKOFF_MAX_INTERVAL", warnings).max(initial);
    let factor = read.parsed("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", |text| {
        // envoyproxy/ratelimit multiplies by it, so it may be above 1 there
        let factor = text.parse().ok().filter(|factor: &f64| *factor >= 0.0 && factor.is_finite());
        factor.map(|factor| factor.min(1.0)).ok_or("a number, 0 or more, such as 0.5")
    });
    let has_jitter = read.bool("XDS_CLIENT_BACKOFF_JITTER");
    XdsBackoff { initial, max, jitter: if has_jitter { factor } else { 0.0 } }
}

fn tls(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<XdsTls> {
    const CA: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
    const NAME: &str = "CONFIG_GRPC_XDS_SERVER_TLS_SAN";
    const CERTIFICATE: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
    const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
    if !read.bool("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
        let not_encrypted = "the connection to the control plane is in plain text: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true";
        warnings.extend(tls::in_plain_text(read, &[CA, NAME, CERTIFICATE, KEY], not_encrypted));
        return None;
    }
    let ca = read.path(CA);
    let client = tls::client_files(read, CERTIFICATE, KEY);
    let server_name = read.optional(NAME, |text| {
        ServerName::try_from(text.to_owned()).map_err(|_| "a DNS name or an IP address")
    });
    Some(XdsTls { files: ClientTls { ca, client, any_name: false }, server_name })
}

/// `k1=v1,k2=v2`. Like envoyproxy/ratelimit, ignores a part that is no pair, with a warning.
fn metadata(read: &SettingReader<'_>, warnings: &mut Vec<String>) -> Vec<(String, String)> {
    const VARIABLE: &str = "CONFIG_GRPC_XDS_NODE_METADATA";
    let Some(given) = read.given(VARIABLE) else { return Vec::new() };
    let mut pairs = Vec::new();
    for (i, part) in given.value.split(',').enumerate().filter(|(_, part)| !part.trim().is_empty()) {
        match part.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                pairs.push((name.trim().to_owned(), value.trim().to_owned()));
            }
            // not the part itself, which may be a secret that went wrong
            _ => warnings.push(format!(
                "part {} of {VARIABLE} is ignored: it is no pair of a name and a value, such as env=prod",
                i + 1
            )),
        }
    }
    pairs
}

/// `k1:v1,k2:v2`, where a value may have further colons.
fn headers(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    const EXPECTED: &str = "headers such as <x-token:abc>,<x-region:eu>, with or without the brackets";
    let unbracketed: Vec<&str> =
        text.split(',').map(|part| part.trim().trim_start_matches('<').trim_end_matches('>')).collect();
    let pairs = parse::pairs(&unbracketed.join(",")).map_err(|_| EXPECTED)?;
    let valid = pairs.into_iter().map(|(name, value)| {
        let name = name.to_lowercase();
        let is_valid =
            name.parse::<AsciiMetadataKey>().is_ok() && value.parse::<AsciiMetadataValue>().is_ok();
        is_valid.then_some((name, value))
    });
    valid.collect::<Option<_>>().ok_or(EXPECTED)
}
