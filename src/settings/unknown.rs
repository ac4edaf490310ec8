//! Finds variables of weir that do not exist. A misspelled one is an error, because its setting would silently have no
//! effect.

use weir_observe::spelling;
use weir_remotes::redis::RedisSettings;

use super::{
    reader::{Given, SettingReader},
    table,
};

const PREFIX: &str = "WEIR_";

/// Begins the variables of Memcached, and their usual misspelling.
const MEMCACHED: [&str; 2] = ["MEMCACHE_", "MEMCACHED_"];

/// What other programs call a setting of a store, all without a prefix.
const PASSWORDS: &str = "PASSWORD PASSWD PASS USERNAME USER AUTH_PASSWORD AUTH_USER";
const SENTINEL_PASSWORDS: &str = "SENTINEL_PASSWORD SENTINEL_PASS SENTINEL_USERNAME SENTINEL_USER";
const ADDRESSES: &str = "ADDR ADDRESS ADDRESSES ADDRS CLUSTER_NODES ENDPOINT ENDPOINTS HOST HOSTNAME HOSTS NODES PORT \
                         SENTINELS SERVER SERVERS URLS";
const DATABASES: &str = "DB DATABASE";
const TLS_SWITCHES: &str = "SSL USE_TLS USE_SSL TLS_ENABLED SSL_ENABLED";

/// A misspelling is an error; other variables that do not exist are warnings. Call it after all settings were read.
pub(super) fn check(reader: &mut SettingReader<'_>, redis: Option<&RedisSettings>) -> Vec<String> {
    let mut warnings = of_stores(reader, redis);
    for name in reader.names() {
        let Some(rest) = name.strip_prefix(PREFIX).filter(|_| table::find(&name).is_none()) else {
            continue;
        };
        let Some(value) = reader.unlisted(&name).filter(|value| !is_service_link(rest, value)) else {
            continue;
        };
        match meant(rest) {
            Some(meant) => {
                let expected = format!("unset: there is no such variable; did you mean {meant}?");
                reader.reject(Given { name, value }, expected);
            }
            None => warnings.push(format!("{name} is set, but has no effect: there is no such variable")),
        }
    }
    let unused = reader.credentials().into_iter().filter(|name| !reader.was_read(name));
    warnings
        .extend(unused.map(|name| format!("the credential weir_{name} has no effect with these settings")));
    warnings
}

/// These are no errors, since a variable may be there for another program, or as a part of another's value.
fn of_stores(reader: &SettingReader<'_>, redis: Option<&RedisSettings>) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in reader.names() {
        if table::find(&name).is_some() {
            continue;
        }
        let Some(meant) = meant_of_redis(&name, reader, redis).or_else(|| meant_of_memcached(&name, reader))
        else {
            continue;
        };
        if reader.unlisted(&name).is_some_and(|value| !is_service_link(&name, &value)) {
            warnings.push(format!(
                "{name} is set, but has no effect: there is no such variable; did you mean {meant}?"
            ));
        }
    }
    warnings
}

/// None if the variable that `name` probably stands for has its value already.
fn meant_of_redis(name: &str, reader: &SettingReader<'_>, redis: Option<&RedisSettings>) -> Option<String> {
    let (prefix, rest) = ["REDIS_PERSECOND_", "REDIS_"]
        .into_iter()
        .find_map(|prefix| Some((prefix, name.strip_prefix(prefix)?)))?;
    let endpoint = redis.and_then(|redis| match prefix {
        "REDIS_" => Some(&redis.main),
        _ => redis.per_second.as_ref(),
    });
    if is_one_of(PASSWORDS, rest) {
        let has_none = endpoint.is_none_or(|endpoint| endpoint.auth.is_none());
        return has_none.then(|| format!("{prefix}AUTH, which is the password or user:password"));
    }
    if is_one_of(SENTINEL_PASSWORDS, rest) {
        let is_missing = !reader.is_given(&format!("{prefix}SENTINEL_AUTH"));
        return is_missing.then(|| format!("{prefix}SENTINEL_AUTH, which is the password or user:password"));
    }
    if is_one_of(ADDRESSES, rest) {
        let is_missing = !reader.is_given(&format!("{prefix}URL"));
        return is_missing.then(|| format!("{prefix}URL, which is host:port"));
    }
    if is_one_of(DATABASES, rest) {
        let has_none = endpoint.is_none_or(|endpoint| endpoint.database == 0);
        return has_none.then(|| format!("{prefix}URL, such as redis://host:port/1"));
    }
    if is_one_of(TLS_SWITCHES, rest) {
        let has_none = endpoint.is_none_or(|endpoint| endpoint.tls.is_none());
        return has_none.then(|| format!("{prefix}TLS"));
    }
    spelling::nearest(rest, table::names_after(prefix)).map(|near| format!("{prefix}{near}"))
}

fn meant_of_memcached(name: &str, reader: &SettingReader<'_>) -> Option<String> {
    let rest = MEMCACHED.into_iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let right = format!("MEMCACHE_{rest}");
    if table::find(&right).is_some() {
        return Some(right);
    }
    let is_missing = ["MEMCACHE_HOST_PORT", "MEMCACHE_SRV"].iter().all(|name| !reader.is_given(name));
    let is_address = rest == "URL" || is_one_of(ADDRESSES, rest);
    (is_missing && is_address).then(|| "MEMCACHE_HOST_PORT, which is host:port".to_owned())
}

fn meant(rest: &str) -> Option<String> {
    // a variable of envoyproxy/ratelimit with the prefix, such as WEIR_REDIS_URL
    if table::find(rest).is_some() {
        return Some(rest.to_owned());
    }
    if rest.strip_prefix("REDIS_").is_some_and(|rest| is_one_of(PASSWORDS, rest)) {
        return Some("WEIR_REDIS_AUTH, which is the password or user:password".to_owned());
    }
    let own = || table::names_after(PREFIX);
    let part = || own().find(|own| own.contains(rest) || rest.contains(own));
    let own = spelling::nearest(rest, own()).or_else(|| if rest.len() < 4 { None } else { part() });
    own.map(|own| format!("{PREFIX}{own}"))
}

fn is_one_of(names: &str, name: &str) -> bool {
    names.split(' ').any(|one| one == name)
}

/// Kubernetes and Docker set such variables for services called `weir…`: `WEIR_SERVICE_HOST`, `WEIR_PORT_8081_TCP`.
fn is_service_link(rest: &str, value: &str) -> bool {
    let rest = format!("_{rest}");
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| rest.contains(part))
        || rest.ends_with("_PORT") && value.contains("://")
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| rest.contains("_PORT_") && rest.contains(protocol))
}
