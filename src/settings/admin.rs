//! Reads who may use the admin API.

use weir_net::tls::ServerTls;
use weir_server::http::{
    admin::{AdminLevel, AdminSettings},
    tenant::TenantSettings,
};

use super::{parse, reader::SettingReader, tls};

const LEVELS: [(&str, AdminLevel); 3] =
    [("off", AdminLevel::Off), ("read", AdminLevel::Read), ("full", AdminLevel::Full)];

pub(super) fn admin(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> AdminSettings {
    let level = read.optional("WEIR_ADMIN", |text| {
        // YAML turns `off` into a boolean
        let name = if parse::bool(text) == Ok(false) { "off" } else { text };
        parse::choice(name, &LEVELS)
    });
    let token_file = read.path("WEIR_ADMIN_TOKEN_FILE");
    let hosts = read.optional("WEIR_ADMIN_HOSTS", hosts).unwrap_or_default();
    let allows_plain = read.bool("WEIR_ADMIN_PLAIN");
    if level == Some(AdminLevel::Full) && token_file.is_none() {
        warnings.push(
            "WEIR_ADMIN=full without WEIR_ADMIN_TOKEN_FILE: everybody who reaches DEBUG_PORT may change counters"
                .into(),
        );
    }
    AdminSettings { level, token_file, hosts, allows_plain }
}

pub(super) fn tenants(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<TenantSettings> {
    let (key_file, revoked_file) = (read.path("WEIR_TOKEN_KEY_FILE"), read.path("WEIR_TOKEN_REVOKED_FILE"));
    if key_file.is_none() && revoked_file.is_some() {
        warnings.push("WEIR_TOKEN_REVOKED_FILE has no effect without WEIR_TOKEN_KEY_FILE".into());
    }
    Some(TenantSettings { key_file: key_file?, revoked_file })
}

/// `grpc` is the TLS of the gRPC server.
pub(super) fn debug_tls(
    read: &mut SettingReader<'_>,
    grpc: Option<&ServerTls>,
    warnings: &mut Vec<String>,
) -> Option<ServerTls> {
    if !read.bool("DEBUG_TLS") {
        return None;
    }
    grpc.cloned().or_else(|| tls::files(read, warnings))
}

fn hosts(text: &str) -> Result<Vec<Box<str>>, &'static str> {
    let is_of_name = |char: char| char.is_ascii_alphanumeric() || "-._:[]".contains(char);
    let hosts: Vec<Box<str>> = text.split(',').map(str::trim).map(Into::into).collect();
    let are_right = hosts.iter().all(|host| !host.is_empty() && host.chars().all(is_of_name));
    let expected = "host names, with or without a port, such as weir.example.org,console.example.org:8443";
    if are_right { Ok(hosts) } else { Err(expected) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::resolve::tests::resolve;

    #[test]
    fn who_may_is_read() {
        assert_eq!(resolve(&[]).expect("valid").admin, AdminSettings::default());
        for (text, level) in [
            ("off", AdminLevel::Off),
            ("false", AdminLevel::Off),
            ("Read", AdminLevel::Read),
            ("full", AdminLevel::Full),
        ] {
            let settings = resolve(&[("WEIR_ADMIN", text)]).expect("valid");
            assert_eq!(settings.admin.level, Some(level));
            assert_eq!(settings.warnings.is_empty(), level != AdminLevel::Full, "{:?}", settings.warnings);
        }
        let settings = resolve(&[
            ("WEIR_ADMIN", "full"),
            ("WEIR_ADMIN_TOKEN_FILE", "/etc/weir/tokens"),
            ("WEIR_ADMIN_HOSTS", "weir.example, weir.example:8443"),
            ("WEIR_ADMIN_PLAIN", "true"),
        ])
        .expect("valid");
        assert_eq!((settings.warnings.len(), settings.admin.allows_plain), (0, true));
        assert_eq!(settings.admin.hosts, ["weir.example", "weir.example:8443"].map(Box::from));
        assert_eq!(settings.admin.token_file, Some("/etc/weir/tokens".into()));
    }

    #[test]
    fn tls_is_that_of_grpc() {
        let files = [("GRPC_SERVER_TLS_CERT", "/c"), ("GRPC_SERVER_TLS_KEY", "/k")];
        let with = |more: &[(&'static str, &'static str)]| {
            let settings = resolve(&[&files[..], more].concat()).expect("valid settings");
            (settings.grpc.tls.is_some(), settings.debug_tls.is_some())
        };
        assert_eq!(with(&[]), (false, false));
        assert_eq!(with(&[("GRPC_SERVER_USE_TLS", "true")]), (true, false));
        assert_eq!(with(&[("GRPC_SERVER_USE_TLS", "true"), ("DEBUG_TLS", "true")]), (true, true));
        assert_eq!(with(&[("DEBUG_TLS", "true")]), (false, true));
        assert_eq!(resolve(&[("DEBUG_TLS", "true")]).expect_err("no files").0.len(), 2);
    }

    #[test]
    fn wrong_values_are_told() {
        let error = |name, value| resolve(&[(name, value)]).expect_err("it is wrong").to_string();
        assert_eq!(error("WEIR_ADMIN", "yes"), "WEIR_ADMIN is \"yes\", but must be off, read or full");
        assert!(error("WEIR_ADMIN_HOSTS", "https://weir.example").contains("must be host names"));
        assert!(error("WEIR_ADMIN_HOSTS", "a,,b").contains("must be host names"));
    }
}
