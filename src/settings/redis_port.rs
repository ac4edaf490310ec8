use weir_net::tls::ServerTls;
use weir_server::resp::{Auth, ServiceSettings};

use super::{
    parse,
    reader::SettingReader,
    resolve::{ListenAddress, RedisPortSettings},
    tls,
};

/// The default: that of smyte/ratelimit.
const PORT: u16 = 9049;

/// None if the server is off. `grpc` is the TLS of the gRPC server.
pub(super) fn redis_port(
    read: &mut SettingReader<'_>,
    grpc: Option<&ServerTls>,
    warnings: &mut Vec<String>,
) -> Option<RedisPortSettings> {
    let port = read.optional("WEIR_REDIS_PORT", |text| match text {
        "true" => Ok(Some(PORT)),
        "false" => Ok(None),
        // Kubernetes sets it so in all pods beside a service called weir-redis
        link if link.contains("://") => {
            warnings
                .push("WEIR_REDIS_PORT is a URL, as of a service called weir-redis: it has no effect".into());
            Ok(None)
        }
        text => parse::integer(text)
            .map(Some)
            .ok_or("true, which means 9049, false, or a port from 0 to 65535, where 0 selects a free port"),
    });
    let host = read.host("WEIR_REDIS_HOST");
    let auth =
        read.optional("WEIR_REDIS_AUTH", |text| Auth::parse(text).ok_or("a password, or user:password"));
    let allows_reset = read.bool("WEIR_REDIS_RESET");
    let is_encrypted = read.optional("WEIR_REDIS_TLS", parse::bool).unwrap_or(grpc.is_some());
    let Some(port) = port.flatten() else {
        warnings.extend(read.without_effect("Redis port", "WEIR_REDIS_PORT is not set"));
        return None;
    };
    let tls = match (is_encrypted, grpc) {
        (false, _) => None,
        (true, Some(tls)) => Some(tls.clone()),
        (true, None) => tls::files(read, warnings),
    };
    let service = ServiceSettings { auth, allows_reset };
    Some(RedisPortSettings { address: ListenAddress { host, port }, tls, service })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::resolve::tests::resolve;

    fn port(variables: &[(&str, &str)]) -> Option<RedisPortSettings> {
        resolve(variables).expect("valid settings").redis_port
    }

    #[test]
    fn the_server_is_off_unless_a_port_is_set() {
        assert_eq!(port(&[]), None);
        assert_eq!(port(&[("WEIR_REDIS_PORT", "false")]), None);
        let of = |text| port(&[("WEIR_REDIS_PORT", text)]).map(|settings| settings.address.port);
        assert_eq!([of("true"), of("0"), of("6379")], [Some(9049), Some(0), Some(6379)]);
        let error = resolve(&[("WEIR_REDIS_PORT", "yes please")]).expect_err("no port").to_string();
        let link = resolve(&[("WEIR_REDIS_PORT", "tcp://10.0.0.1:6379")]).expect("valid settings");
        assert_eq!((link.redis_port, link.warnings.len()), (None, 1));
        assert!(error.starts_with("WEIR_REDIS_PORT must be true, which means 9049"), "{error}");
    }

    #[test]
    fn a_user_and_password_are_kept_and_hidden() {
        let variables = [("WEIR_REDIS_PORT", "true"), ("WEIR_REDIS_AUTH", "me:s3cret")];
        let settings = port(&variables).expect("it is on");
        assert_eq!(settings.service.auth, Auth::parse("me:s3cret"));
        assert!(!format!("{settings:?}").contains("s3cret"));
        let error =
            resolve(&[("WEIR_REDIS_PORT", "true"), ("WEIR_REDIS_AUTH", "me:")]).expect_err("no password");
        assert_eq!(error.to_string(), "WEIR_REDIS_AUTH must be a password, or user:password");
    }

    #[test]
    fn tls_is_that_of_grpc_unless_it_is_switched() {
        let files =
            [("GRPC_SERVER_TLS_CERT", "/c"), ("GRPC_SERVER_TLS_KEY", "/k"), ("WEIR_REDIS_PORT", "true")];
        let with = |more: &[(&'static str, &'static str)]| {
            let settings = resolve(&[&files[..], more].concat()).expect("valid settings");
            (settings.grpc.tls.is_some(), settings.redis_port.expect("it is on").tls.is_some())
        };
        assert_eq!(with(&[]), (false, false));
        assert_eq!(with(&[("GRPC_SERVER_USE_TLS", "true")]), (true, true));
        assert_eq!(with(&[("GRPC_SERVER_USE_TLS", "true"), ("WEIR_REDIS_TLS", "false")]), (true, false));
        assert_eq!(with(&[("WEIR_REDIS_TLS", "true")]), (false, true));
        let error =
            resolve(&[("WEIR_REDIS_PORT", "true"), ("WEIR_REDIS_TLS", "true")]).expect_err("no files");
        assert_eq!(error.0.len(), 2, "{error}");
    }

    #[test]
    fn settings_of_a_server_that_is_off_are_warned_of() {
        let settings =
            resolve(&[("WEIR_REDIS_AUTH", "x"), ("WEIR_REDIS_RESET", "true")]).expect("valid settings");
        assert_eq!(
            settings.warnings,
            ["WEIR_REDIS_AUTH", "WEIR_REDIS_RESET"]
                .map(|name| format!("{name} is set, but has no effect: WEIR_REDIS_PORT is not set"))
        );
    }
}
