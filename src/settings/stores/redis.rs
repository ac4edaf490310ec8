//! Reads the Redis variables of envoyproxy/ratelimit. Most have a `REDIS_PERSECOND_` counterpart for the Redis of
//! per-second limits; both use the same TLS files.

use redis::IntoConnectionInfo as _;
use weir_limit::SharedStore;
use weir_net::tls::ClientTls;
use weir_observe::spelling;
use weir_remotes::{
    RemoteSettings,
    redis::{Address, Auth, Backoff, RedisEndpoint, RedisSettings, Topology},
};
use weir_store::name::KeySettings;

use super::StoreVariables;
use crate::settings::{
    parse,
    reader::SettingReader,
    table::{self, Setting, hidden, shown, switch},
    tls,
    unknown::{ADDRESSES, PASSWORDS, is_one_of},
};

pub(super) const STORE: StoreVariables = StoreVariables {
    store: SharedStore::REDIS,
    backend: "redis",
    addresses: &["REDIS_URL"],
    span: "Redis Pipeline Execution",
    settings: SETTINGS,
    read,
    meant,
};

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    hidden("REDIS_[PERSECOND_]URL", ""),
    shown("REDIS_[PERSECOND_]TYPE", "SINGLE").means("or `SENTINEL`, `CLUSTER`"),
    shown("REDIS_[PERSECOND_]SOCKET_TYPE", ""),
    hidden("REDIS_[PERSECOND_]AUTH", ""),
    hidden("REDIS_[PERSECOND_]SENTINEL_AUTH", ""),
    shown("REDIS_[PERSECOND_]TIMEOUT", "10s"),
    switch("REDIS_[PERSECOND_]TLS"),
    switch("REDIS_PERSECOND").means("limits per second have a Redis of their own"),
    hidden("REDIS_TLS_CACERT", ""),
    hidden("REDIS_TLS_CLIENT_CERT", ""),
    hidden("REDIS_TLS_CLIENT_KEY", ""),
    switch("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
    shown("REDIS_STARTUP_INITIAL_INTERVAL", "50ms"),
    shown("REDIS_STARTUP_MAX_INTERVAL", "1s"),
    shown("REDIS_STARTUP_MAX_ELAPSED_TIME", "0")
        .means("0 starts without Redis; else weir exits if there is no connection within this time"),
];

/// What other programs call settings of Redis, all without a prefix.
const SENTINEL_PASSWORDS: &str = "SENTINEL_PASSWORD SENTINEL_PASS SENTINEL_USERNAME SENTINEL_USER";
const DATABASES: &str = "DB DATABASE";
const TLS_SWITCHES: &str = "SSL USE_TLS USE_SSL TLS_ENABLED SSL_ENABLED";

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const TLS_FILES: [&str; 3] = ["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];

#[derive(Clone, Copy)]
enum RedisType {
    Single,
    Sentinel,
    Cluster,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketType {
    Tcp,
    Unix,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct Url {
    user: Option<String>,
    password: Option<String>,
    tls: bool,
    database: i64,
}

fn read(
    read: &mut SettingReader<'_>,
    is_selected: bool,
    keys: &KeySettings,
    warnings: &mut Vec<String>,
) -> Option<RemoteSettings> {
    let has_per_second = read.bool("REDIS_PERSECOND");
    let mut about_redis = Vec::new();
    let backoff = backoff(read, &mut about_redis);
    let connect_within = read.duration("REDIS_STARTUP_MAX_ELAPSED_TIME");
    let connect_within = Some(connect_within).filter(|within| !within.is_zero());
    if !is_selected {
        return None;
    }
    warnings.append(&mut about_redis);
    let main = endpoint(read, "REDIS_", warnings);
    let per_second = if has_per_second {
        endpoint(read, "REDIS_PERSECOND_", warnings)
    } else {
        if read.is_given("REDIS_PERSECOND_URL") {
            warnings
                .push("REDIS_PERSECOND_URL is set, but has no effect: REDIS_PERSECOND is not true".into());
        }
        None
    };
    let settings = RedisSettings { main: main?, per_second, keys: keys.clone(), backoff, connect_within };
    Some(RemoteSettings::Redis(settings.into()))
}

fn backoff(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Backoff {
    let initial = read.duration_above_0("REDIS_STARTUP_INITIAL_INTERVAL", warnings);
    let max = read.duration_above_0("REDIS_STARTUP_MAX_INTERVAL", warnings);
    Backoff { initial, max: max.max(initial) }
}

fn endpoint(
    read: &mut SettingReader<'_>,
    prefix: &'static str,
    warnings: &mut Vec<String>,
) -> Option<RedisEndpoint> {
    const KINDS: [(&str, RedisType); 3] =
        [("SINGLE", RedisType::Single), ("SENTINEL", RedisType::Sentinel), ("CLUSTER", RedisType::Cluster)];
    let of = |name: &str| format!("{prefix}{name}");
    let kind = read.choice(&of("TYPE"), &KINDS);
    let sockets = [("tcp", SocketType::Tcp), ("unix", SocketType::Unix)];
    let socket = read.optional(&of("SOCKET_TYPE"), |text| parse::choice(text, &sockets));
    let timeout = read.duration_above_0(&of("TIMEOUT"), warnings);
    let tls = read.bool(&of("TLS"));
    let files = tls_files(read);
    let variable = of("URL");
    let Some(given) = read.given(&variable) else {
        read.missing(&variable, "the address of Redis, such as redis:6379");
        return None;
    };
    let (topology, url) = match topology(&given.value, kind, socket) {
        Ok(topology) => topology,
        Err(expected) => {
            read.reject(given, expected);
            return None;
        }
    };
    let mut auth = auth_of(read, &of("AUTH"));
    let sentinel_auth = auth_of(read, &of("SENTINEL_AUTH"));
    let topology = match topology {
        // the URLs are those of the sentinels
        Topology::Sentinel { master, sentinels, .. } => {
            Topology::Sentinel { master, sentinels, auth: login(sentinel_auth, url.user, url.password) }
        }
        topology => {
            if sentinel_auth.is_some() {
                let (variable, kind) = (of("SENTINEL_AUTH"), of("TYPE"));
                warnings.push(format!("{variable} is set, but has no effect: {kind} is not SENTINEL"));
            }
            auth = login(auth, url.user, url.password);
            topology
        }
    };
    if !tls && !url.tls {
        let switch = of("TLS");
        let not_encrypted = format!(
            "connections to the Redis of {variable} are in plain text: {switch} is not true, and {variable} does not \
             begin with rediss://"
        );
        warnings.extend(tls::in_plain_text(read, &TLS_FILES, &not_encrypted));
    }
    Some(RedisEndpoint {
        topology,
        auth,
        tls: (tls || url.tls).then_some(files),
        database: url.database,
        timeout,
        variables: prefix,
    })
}

fn login(given: Option<Auth>, user: Option<String>, password: Option<String>) -> Option<Auth> {
    match given {
        Some(given) => Some(Auth { user: given.user.or(user), ..given }),
        None => password.map(|password| Auth { user, password }),
    }
}

fn auth_of(read: &SettingReader<'_>, variable: &str) -> Option<Auth> {
    let given = read.given(variable)?.value;
    Some(match given.split_once(':') {
        Some((user, password)) => Auth {
            user: Some(user.to_owned()).filter(|user| !user.is_empty()),
            password: password.to_owned(),
        },
        None => Auth { user: None, password: given },
    })
}

fn tls_files(read: &mut SettingReader<'_>) -> ClientTls {
    let ca = read.path("REDIS_TLS_CACERT");
    let any_name = read.bool("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION");
    let client = tls::client_files(read, "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY");
    ClientTls { ca, client, any_name }
}

fn topology(
    text: &str,
    kind: RedisType,
    socket: Option<SocketType>,
) -> Result<(Topology, Url), &'static str> {
    const SENTINEL: &str = "the name of the master and the sentinels, such as mymaster,one:26379,two:26379; a sentinel \
                            with a password is redis://:password@one:26379";
    const CLUSTER: &str =
        "some nodes of the cluster, such as one:6379,two:6379 or redis://user:password@one:6379";
    match kind {
        RedisType::Single => single(text, socket),
        RedisType::Sentinel => {
            let (master, sentinels) = text.split_once(',').ok_or(SENTINEL)?;
            let (sentinels, url) = list(sentinels, SENTINEL_PORT, SENTINEL)?;
            let master = master.trim().to_owned();
            // what Redis accepts as a name; anything else may be a password
            let is_named = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            if master.is_empty() || !master.chars().all(is_named) {
                return Err(SENTINEL);
            }
            Ok((Topology::Sentinel { master, sentinels, auth: None }, url))
        }
        RedisType::Cluster => {
            let (nodes, url) = list(text, PORT, CLUSTER)?;
            Ok((Topology::Cluster(nodes), url))
        }
    }
}

/// Servers with commas between them. Some may lack credentials, since the servers of a list share their users.
fn list(text: &str, port: u16, expected: &'static str) -> Result<(Vec<Address>, Url), &'static str> {
    let (mut addresses, mut common) = (Vec::new(), None::<Url>);
    for text in text.split(',') {
        let (address, url) = server(text.trim(), port).ok_or(expected)?;
        addresses.push(address);
        if url.database != 0 {
            return Err("a list without databases: sentinels have none, and a cluster has only database 0");
        }
        let Some(common) = &mut common else {
            common = Some(url);
            continue;
        };
        if url.tls != common.tls {
            return Err("a list in which every server begins with rediss://, or none does");
        }
        if (&url.user, &url.password) == (&None, &None) {
            continue;
        }
        if (&common.user, &common.password) == (&None, &None) {
            *common = url;
        } else if *common != url {
            return Err("a list in which all servers have the same user and password");
        }
    }
    common.map(|common| (addresses, common)).ok_or(expected)
}

fn single(text: &str, socket: Option<SocketType>) -> Result<(Topology, Url), &'static str> {
    const EXPECTED: &str =
        "host:port, a URL such as rediss://user:password@host:6379/0, or the path of a unix socket";
    const ONE: &str = "the address of one server; a list needs SENTINEL or CLUSTER as the type";
    let is_path = text.starts_with('/');
    match text.strip_prefix("unix://") {
        // a query would be part of the path, and it may be a password
        Some(path) if path.starts_with('/') && !path.contains('?') => {
            return Ok((Topology::Single(Address::Unix(path.into())), Url::default()));
        }
        Some(_) => return Err(EXPECTED),
        None => {}
    }
    if !text.contains("://") {
        match socket.unwrap_or(if is_path { SocketType::Unix } else { SocketType::Tcp }) {
            SocketType::Unix if is_path => {
                return Ok((Topology::Single(Address::Unix(text.into())), Url::default()));
            }
            SocketType::Unix => return Err("the path of a unix socket, because the socket type is unix"),
            SocketType::Tcp if is_path => return Err("host:port, because the socket type is tcp"),
            SocketType::Tcp => {}
        }
    }
    match server(text, PORT) {
        Some((address, url)) => Ok((Topology::Single(address), url)),
        None if text.contains(',') => Err(ONE),
        None => Err(EXPECTED),
    }
}

/// `host`, `host:port`, `[::1]:port`, or a `redis://` or `rediss://` URL. `port` is the default.
fn server(text: &str, port: u16) -> Option<(Address, Url)> {
    match text.split_once("://") {
        None => Some((Address::parse(text, port)?, Url::default())),
        Some(("redis", rest)) => url(rest, false, port),
        Some(("rediss", rest)) => url(rest, true, port),
        Some(_) => None,
    }
}

/// The part after the scheme. As in envoyproxy/ratelimit, a query may have `username`, `password` and `db`.
fn url(rest: &str, tls: bool, port: u16) -> Option<(Address, Url)> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let in_query = |key: &str| {
        let parts = query.split('#').next().unwrap_or_default().split('&');
        parts.filter_map(|part| part.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let info = format!("redis://{place}").into_connection_info().ok()?;
    let login = info.redis_settings();
    let of_query = |key, of_place: Option<&str>| match in_query(key) {
        // the text is encoded as it would be before the host
        Some(text) => unescaped(text).map(Some),
        None => Some(of_place.map(str::to_owned)),
    };
    let database = match in_query("db") {
        Some(number) => number.parse().ok()?,
        None => login.db(),
    };
    let (user, password) = (of_query("username", login.username())?, of_query("password", login.password())?);
    let authority = place.split(['/', '#']).next()?;
    let address = Address::parse(authority.rsplit('@').next()?, port)?;
    Some((address, Url { user, password, tls, database }))
}

/// `%` and two digits stand for a byte.
fn unescaped(text: &str) -> Option<String> {
    let url = format!("redis://:{text}@localhost").into_connection_info().ok()?;
    Some(url.redis_settings().password().unwrap_or_default().to_owned())
}

fn meant(name: &str, reader: &SettingReader<'_>, shared: Option<&RemoteSettings>) -> Option<String> {
    let (prefix, rest) = ["REDIS_PERSECOND_", "REDIS_"]
        .into_iter()
        .find_map(|prefix| Some((prefix, name.strip_prefix(prefix)?)))?;
    let endpoint = match shared {
        Some(RemoteSettings::Redis(redis)) if prefix == "REDIS_" => Some(&redis.main),
        Some(RemoteSettings::Redis(redis)) => redis.per_second.as_ref(),
        _ => None,
    };
    let is_given = |name| reader.is_given(&format!("{prefix}{name}"));
    let (has_value, right) = if is_one_of(PASSWORDS, rest) {
        let has_auth = endpoint.is_some_and(|endpoint| endpoint.auth.is_some());
        (has_auth, "AUTH, which is the password or user:password")
    } else if is_one_of(SENTINEL_PASSWORDS, rest) {
        (is_given("SENTINEL_AUTH"), "SENTINEL_AUTH, which is the password or user:password")
    } else if is_one_of(ADDRESSES, rest) {
        (is_given("URL"), "URL, which is host:port")
    } else if is_one_of(DATABASES, rest) {
        (endpoint.is_some_and(|endpoint| endpoint.database != 0), "URL, such as redis://host:port/1")
    } else if is_one_of(TLS_SWITCHES, rest) {
        (endpoint.is_some_and(|endpoint| endpoint.tls.is_some()), "TLS")
    } else {
        (false, spelling::nearest(rest, table::names_after(prefix))?)
    };
    (!has_value).then(|| format!("{prefix}{right}"))
}

#[cfg(test)]
mod tests;
