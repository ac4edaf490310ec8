//! Reads the Memcached variables of envoyproxy/ratelimit.

use std::time::Duration;

use weir_net::tls::ClientTls;
use weir_remotes::{
    memcached::{DnsName, MemcachedSettings, NameServers, ServerSource},
    redis::Address,
};

use super::{
    backend::{Backend, SharedKeys},
    reader::SettingReader,
    tls,
};

const PORT: u16 = 11_211;

const TLS_FILES: [&str; 3] = ["MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY"];

pub(super) fn memcached(
    read: &mut SettingReader<'_>,
    backend: Backend,
    shared: SharedKeys,
    warnings: &mut Vec<String>,
) -> Option<MemcachedSettings> {
    // parsed even without effect, so that typing errors are reported
    let uses_tls = read.bool("MEMCACHE_TLS");
    let any_name = read.bool("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION");
    let refresh = read.duration("MEMCACHE_SRV_REFRESH");
    if backend != Backend::Memcached {
        return None;
    }
    let ca = read.path("MEMCACHE_TLS_CACERT");
    let client = tls::client_files(read, "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY");
    if !uses_tls {
        let not_encrypted = "connections to Memcached are in plain text: MEMCACHE_TLS is not true";
        warnings.extend(tls::in_plain_text(read, &TLS_FILES, not_encrypted));
    }
    Some(MemcachedSettings {
        tls: uses_tls.then_some(ClientTls { ca, client, any_name }),
        keys: shared.keys,
        health_needs_connection: shared.health_needs_connection,
        ..MemcachedSettings::new(servers(read, refresh)?)
    })
}

fn servers(read: &mut SettingReader<'_>, refresh: Duration) -> Option<ServerSource> {
    const HOSTS: &str = "the addresses of Memcached, such as one:11211,two:11211, or paths of unix sockets";
    const NAME: &str = "a name with SRV records, such as _memcache._tcp.example.org";
    match (read.given("MEMCACHE_HOST_PORT"), read.given("MEMCACHE_SRV")) {
        (Some(_), Some(srv)) => {
            read.reject(srv, "unset, because MEMCACHE_HOST_PORT is set");
            None
        }
        (Some(hosts), None) => {
            let addresses: Option<Vec<Address>> = hosts.value.split(',').map(address).collect();
            if addresses.is_none() {
                read.reject(hosts, HOSTS);
            }
            addresses.map(ServerSource::List)
        }
        (None, Some(srv)) => {
            let name = DnsName::parse_service(&srv.value);
            if name.is_none() {
                read.reject(srv, NAME);
            }
            let refresh = Some(refresh).filter(|time| !time.is_zero());
            name.map(|name| ServerSource::Srv { name, refresh, name_servers: NameServers::System })
        }
        (None, None) => {
            read.missing("MEMCACHE_HOST_PORT", HOSTS);
            None
        }
    }
}

/// Parses `host`, `host:port`, `[::1]:port` or the path of a unix socket.
fn address(text: &str) -> Option<Address> {
    let text = text.trim();
    if text.contains('/') {
        return text.starts_with('/').then(|| Address::Unix(text.into()));
    }
    Address::parse(text, PORT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::settings::{Flags, Settings};

    fn resolve(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let environment: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Settings::resolve(&Flags::default(), &environment).map_err(|errors| errors.to_string())
    }

    fn memcached_of(variables: &[(&str, &str)]) -> MemcachedSettings {
        resolve(variables).expect("valid settings").memcached.expect("shared counts")
    }

    fn rejected(variables: &[(&str, &str)]) -> String {
        resolve(variables).expect_err("invalid settings")
    }

    const HOST: (&str, &str) = ("MEMCACHE_HOST_PORT", "one");

    #[test]
    fn servers_keep_their_order() {
        let list = "two:1, one ,[::1]:7000,/run/memcached.sock";
        let expected = [
            Address::tcp("two", 1),
            Address::tcp("one", PORT),
            Address::tcp("::1", 7000),
            Address::Unix("/run/memcached.sock".into()),
        ];
        let settings = memcached_of(&[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", list)]);
        assert_eq!(settings, MemcachedSettings::new(ServerSource::List(expected.into())));
        assert_eq!(memcached_of(&[HOST]).keys.jitter_seconds, 300, "the servers alone select Memcached");
    }

    #[test]
    fn a_name_with_srv_records_may_stand_for_the_servers() {
        let srv = ("MEMCACHE_SRV", "_memcache._tcp.example.org");
        let name = DnsName::parse_service(srv.1).expect("it is valid");
        let source =
            |refresh| ServerSource::Srv { name: name.clone(), refresh, name_servers: NameServers::System };
        assert_eq!(memcached_of(&[srv]).servers, source(None));
        let refreshed = memcached_of(&[srv, ("MEMCACHE_SRV_REFRESH", "30s")]).servers;
        assert_eq!(refreshed, source(Some(Duration::from_secs(30))));
        assert!(rejected(&[srv, HOST]).contains("because MEMCACHE_HOST_PORT is set"));
        assert!(rejected(&[("MEMCACHE_SRV", "memcached")]).contains("_memcache._tcp.example.org"));
    }

    #[test]
    fn keys_and_tls_have_the_variables_of_envoyproxy_ratelimit() {
        let settings = memcached_of(&[
            HOST,
            ("CACHE_KEY_PREFIX", "eu:"),
            ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
            ("WEIR_UNAMBIGUOUS_KEYS", "true"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("MEMCACHE_TLS", "true"),
            ("MEMCACHE_TLS_CACERT", "/ca"),
            ("MEMCACHE_TLS_CLIENT_CERT", "/cert"),
            ("MEMCACHE_TLS_CLIENT_KEY", "/key"),
            ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
        ]);
        assert_eq!((&*settings.keys.prefix, settings.keys.jitter_seconds), ("eu:", 0));
        assert!(settings.keys.unambiguous && settings.health_needs_connection);
        let client = Some(("/cert".into(), "/key".into()));
        assert_eq!(settings.tls, Some(ClientTls { ca: Some("/ca".into()), client, any_name: true }));
        assert_eq!(memcached_of(&[HOST, ("MEMCACHE_TLS_CACERT", "/ca")]).tls, None);
        assert!(
            rejected(&[HOST, ("MEMCACHE_TLS_CLIENT_KEY", "/key")]).contains("with MEMCACHE_TLS_CLIENT_CERT")
        );
    }

    #[test]
    fn invalid_variables_are_errors_even_without_effect() {
        for (variable, value) in [("MEMCACHE_TLS", "maybe"), ("MEMCACHE_SRV_REFRESH", "5")] {
            assert!(rejected(&[(variable, value)]).starts_with(variable), "{variable}");
        }
        for hosts in ["", "one,,two", "one:x", "one:0", "run/m.sock", "http://one:1"] {
            let error = rejected(&[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", hosts)]);
            assert!(error.contains("one:11211,two:11211"), "{error}");
        }
    }

    #[test]
    fn variables_without_effect_cause_warnings() {
        let settings =
            resolve(&[HOST, ("MEMCACHE_MAX_IDLE_CONNS", "9"), ("REDIS_AUTH", "x")]).expect("valid settings");
        assert_eq!(
            settings.warnings,
            [
                "REDIS_AUTH is set, but has no effect: counts are kept in Memcached",
                "MEMCACHE_MAX_IDLE_CONNS is set, but has no effect: each server has one multiplexed connection",
            ]
        );
        assert!(settings.redis.is_none());
        let both = resolve(&[HOST, ("REDIS_URL", "redis:6379")]).expect("valid settings");
        assert!(both.memcached.is_none() && both.redis.is_some());
        let chosen = [HOST, ("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memcache")];
        assert!(resolve(&chosen).expect("valid settings").redis.is_none());
    }
}
