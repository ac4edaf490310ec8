//! Reads the Memcached variables of envoyproxy/ratelimit.

use std::time::Duration;

use weir_net::tls::ClientTls;
use weir_remotes::{
    RemoteSettings,
    memcached::{self, Address, DnsName, MemcachedSettings, NameServers, ServerSource},
};
use weir_store::name::KeySettings;

use super::StoreVariables;
use crate::settings::{
    reader::SettingReader,
    table::{self, Setting, hidden, shown, switch},
    tls,
    unknown::{ADDRESSES, is_one_of},
};

pub(super) const STORE: StoreVariables = StoreVariables {
    store: memcached::STORE,
    backend: "memcache",
    addresses: &["MEMCACHE_HOST_PORT", "MEMCACHE_SRV"],
    span: "Memcached Fetch Execution",
    settings: SETTINGS,
    read,
    meant,
};

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    hidden("MEMCACHE_HOST_PORT", "").means("one:11211,two:11211"),
    hidden("MEMCACHE_SRV", ""),
    shown("MEMCACHE_SRV_REFRESH", "0").means("0 is never"),
    switch("MEMCACHE_TLS"),
    hidden("MEMCACHE_TLS_CACERT", ""),
    hidden("MEMCACHE_TLS_CLIENT_CERT", ""),
    hidden("MEMCACHE_TLS_CLIENT_KEY", ""),
    switch("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION"),
];

/// Begins its variables, and their usual misspelling.
const PREFIXES: [&str; 2] = ["MEMCACHE_", "MEMCACHED_"];

const PORT: u16 = 11_211;

const TLS_FILES: [&str; 3] = ["MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY"];

fn read(
    read: &mut SettingReader<'_>,
    is_selected: bool,
    keys: &KeySettings,
    warnings: &mut Vec<String>,
) -> Option<RemoteSettings> {
    let uses_tls = read.bool("MEMCACHE_TLS");
    let any_name = read.bool("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION");
    let refresh = read.duration("MEMCACHE_SRV_REFRESH");
    if !is_selected {
        return None;
    }
    let ca = read.path("MEMCACHE_TLS_CACERT");
    let client = tls::client_files(read, "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY");
    if !uses_tls {
        let not_encrypted = "connections to Memcached are in plain text: MEMCACHE_TLS is not true";
        warnings.extend(tls::in_plain_text(read, &TLS_FILES, not_encrypted));
    }
    let settings = MemcachedSettings {
        tls: uses_tls.then_some(ClientTls { ca, client, any_name }),
        keys: keys.clone(),
        ..MemcachedSettings::new(servers(read, refresh)?)
    };
    Some(RemoteSettings::Memcached(settings.into()))
}

fn servers(read: &mut SettingReader<'_>, refresh: Duration) -> Option<ServerSource> {
    const HOSTS: &str = "the addresses of Memcached, such as one:11211,two:11211, or paths of unix sockets";
    const NAME: &str = "a name with SRV records, such as _memcache._tcp.example.org";
    match (read.given("MEMCACHE_HOST_PORT"), read.given("MEMCACHE_SRV")) {
        (Some(_), Some(srv)) => {
            read.reject(srv, "unset, because MEMCACHE_HOST_PORT is set");
            None
        }
        (Some(_), None) => {
            let addresses = |text: &str| text.split(',').map(address).collect::<Option<_>>().ok_or(HOSTS);
            read.optional("MEMCACHE_HOST_PORT", addresses).map(ServerSource::List)
        }
        (None, Some(_)) => {
            let name = read.optional("MEMCACHE_SRV", |text| DnsName::parse_service(text).ok_or(NAME));
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

fn meant(name: &str, reader: &SettingReader<'_>, _: Option<&RemoteSettings>) -> Option<String> {
    let rest = PREFIXES.into_iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let right = format!("MEMCACHE_{rest}");
    if table::find(&right).is_some() {
        return Some(right);
    }
    let is_missing = STORE.addresses.iter().all(|name| !reader.is_given(name));
    let is_address = rest == "URL" || is_one_of(ADDRESSES, rest);
    (is_missing && is_address).then(|| "MEMCACHE_HOST_PORT, which is host:port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::resolve::tests::resolve;

    fn memcached_of(variables: &[(&str, &str)]) -> MemcachedSettings {
        match resolve(variables).expect("valid settings").shared {
            Some(RemoteSettings::Memcached(settings)) => *settings,
            shared => panic!("{shared:?}"),
        }
    }

    fn rejected(variables: &[(&str, &str)]) -> String {
        resolve(variables).expect_err("invalid settings").to_string()
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
        let variables = [
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
        ];
        let settings = memcached_of(&variables);
        assert_eq!((&*settings.keys.prefix, settings.keys.jitter_seconds), ("eu:", 0));
        assert!(settings.keys.unambiguous && resolve(&variables).expect("valid settings").health_needs_store);
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
        let both = resolve(&[HOST, ("REDIS_URL", "redis:6379")]).expect("valid settings");
        assert!(matches!(both.shared, Some(RemoteSettings::Redis(_))));
        memcached_of(&[HOST, ("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memcache")]);
    }
}
