use std::{path::PathBuf, time::Duration};

use super::*;
use crate::settings::resolve::tests::resolve;

fn redis_of(variables: &[(&str, &str)]) -> RedisSettings {
    match resolve(variables).expect("valid settings").shared {
        Some(RemoteSettings::Redis(settings)) => *settings,
        shared => panic!("{shared:?}"),
    }
}

fn rejected(variables: &[(&str, &str)]) -> String {
    resolve(variables).expect_err("invalid settings").to_string()
}

fn secret(user: Option<&str>, password: &str) -> Auth {
    Auth { user: user.map(str::to_owned), password: password.to_owned() }
}

#[test]
fn a_url_alone_enables_redis_with_default_settings() {
    let redis = redis_of(&[("REDIS_URL", "redis:6380")]);
    assert_eq!(redis, RedisSettings::single(Address::tcp("redis", 6380)));
    assert_eq!((redis.keys.jitter_seconds, redis.main.timeout), (300, Duration::from_secs(10)));
    assert!(resolve(&[]).expect("valid settings").shared.is_none());
}

#[test]
fn a_single_server_can_be_written_in_several_forms() {
    for (text, address) in [
        ("redis", Address::tcp("redis", 6379)),
        ("[::1]:7000", Address::tcp("::1", 7000)),
        ("redis://redis", Address::tcp("redis", 6379)),
        ("redis://[::1]:7000/0", Address::tcp("::1", 7000)),
        ("/run/redis.sock", Address::Unix("/run/redis.sock".into())),
        ("unix:///run/redis.sock", Address::Unix("/run/redis.sock".into())),
    ] {
        assert_eq!(redis_of(&[("REDIS_URL", text)]).main.topology, Topology::Single(address), "{text}");
    }
    let unix = redis_of(&[("REDIS_URL", "/run/redis.sock"), ("REDIS_SOCKET_TYPE", "unix")]);
    assert_eq!(unix.main.topology, Topology::Single(Address::Unix("/run/redis.sock".into())));
    assert!(redis_of(&[("REDIS_URL", "redis:1"), ("REDIS_SOCKET_TYPE", "TCP")]).main.tls.is_none());
}

#[test]
fn variables_take_precedence_over_parts_of_the_url() {
    let url = ("REDIS_URL", "rediss://weir:p%40ss@redis:7000/3");
    let main = redis_of(&[url]).main;
    assert_eq!((main.auth, main.database), (Some(secret(Some("weir"), "p@ss")), 3));
    assert_eq!(main.tls, Some(ClientTls::default()));
    let main = redis_of(&[url, ("REDIS_AUTH", "other")]).main;
    assert_eq!(main.auth, Some(secret(Some("weir"), "other")));
    let main = redis_of(&[("REDIS_URL", "redis://weir@redis:1"), ("REDIS_AUTH", "other")]).main;
    assert_eq!(main.auth, Some(secret(Some("weir"), "other")));
    let main = redis_of(&[("REDIS_URL", "redis:1"), ("REDIS_AUTH", "me:a:b")]).main;
    assert_eq!(main.auth, Some(secret(Some("me"), "a:b")));
}

#[test]
fn a_query_has_parts_of_the_url() {
    for (query, login, database) in [
        ("?db=3", None, 3),
        ("/2?db=3&x=y#z", None, 3),
        ("/2?password=p%40ss&username=weir", Some(secret(Some("weir"), "p@ss")), 2),
        ("?password=a#db=4", Some(secret(None, "a")), 0),
    ] {
        let main = redis_of(&[("REDIS_URL", &format!("redis://redis:7000{query}"))]).main;
        assert_eq!((main.auth, main.database), (login, database), "{query}");
        assert_eq!(main.topology, Topology::Single(Address::tcp("redis", 7000)), "{query}");
    }
}

#[test]
fn sentinels_and_clusters_are_lists() {
    let sentinel = redis_of(&[
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", "mymaster,one:1, two"),
        ("REDIS_SENTINEL_AUTH", "s3cret"),
        ("REDIS_AUTH", "other"),
    ]);
    let sentinels = vec![Address::tcp("one", 1), Address::tcp("two", 26379)];
    let auth = Some(secret(None, "s3cret"));
    assert_eq!(sentinel.main.topology, Topology::Sentinel { master: "mymaster".into(), sentinels, auth });
    assert_eq!(sentinel.main.auth, Some(secret(None, "other")));
    let cluster = redis_of(&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "one:1,two:2")]);
    assert_eq!(
        cluster.main.topology,
        Topology::Cluster(vec![Address::tcp("one", 1), Address::tcp("two", 2)])
    );
}

#[test]
fn lists_have_credentials_for_all_of_their_servers() {
    let (sentinel, cluster) = (("REDIS_TYPE", "SENTINEL"), ("REDIS_TYPE", "CLUSTER"));
    let (one, two) = (Address::tcp("one", 1), Address::tcp("two", 26379));
    for (url, login) in [
        ("mymaster,redis://:p%40ss@one:1,redis://:p%40ss@two", secret(None, "p@ss")),
        ("mymaster, one:1, redis://weir:s3cret@two/", secret(Some("weir"), "s3cret")),
        ("mymaster,redis://one:1?password=s3cret&username=weir,two", secret(Some("weir"), "s3cret")),
    ] {
        let main = redis_of(&[sentinel, ("REDIS_URL", url)]).main;
        let sentinels = vec![one.clone(), two.clone()];
        let auth = Some(login.clone());
        assert_eq!(main.topology, Topology::Sentinel { master: "mymaster".into(), sentinels, auth }, "{url}");
        assert_eq!((main.auth, main.tls), (None, None), "the servers have others");
    }
    let given = [sentinel, ("REDIS_URL", "m,redis://weir:old@one:1"), ("REDIS_SENTINEL_AUTH", "new")];
    let Topology::Sentinel { auth, .. } = redis_of(&given).main.topology else { panic!("no sentinels") };
    assert_eq!(auth, Some(secret(Some("weir"), "new")), "the variable takes precedence");

    let two = Address::tcp("two", 6379);
    for url in ["redis://weir:s3cret@one:1,two", "one:1,redis://weir:s3cret@two"] {
        let per_second = [
            ("REDIS_URL", "redis"),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_TYPE", "cluster"),
            ("REDIS_PERSECOND_URL", url),
        ];
        let per_second = redis_of(&per_second).per_second.expect("a per-second redis");
        for main in [redis_of(&[cluster, ("REDIS_URL", url)]).main, per_second] {
            assert_eq!(main.topology, Topology::Cluster(vec![one.clone(), two.clone()]), "{url}");
            assert_eq!(main.auth, Some(secret(Some("weir"), "s3cret")), "{url}");
        }
    }
    let main = redis_of(&[cluster, ("REDIS_URL", "rediss://one:1,rediss://[::1]:2")]).main;
    assert_eq!(main.topology, Topology::Cluster(vec![one, Address::tcp("::1", 2)]));
    assert!(main.tls.is_some() && main.auth.is_none());

    for (kind, url, expected) in [
        (cluster, "redis://:s3cret@one,redis://:0ther@two", "all servers have the same user and password"),
        (cluster, "redis://:s3cret@one/1,two", "a list without databases"),
        (cluster, "redis://:s3cret@one,rediss://two", "every server begins with rediss://"),
        (sentinel, "mymaster,http://:s3cret@one", "redis://:password@one:26379"),
        (("REDIS_TYPE", "SINGLE"), "mymaster,redis://:s3cret@one", "a list needs SENTINEL or CLUSTER"),
        (("REDIS_TYPE", "SINGLE"), "redis://:s3cret@one:1,redis://:s3cret@two:2", "a list needs SENTINEL"),
    ] {
        let error = rejected(&[kind, ("REDIS_URL", url)]);
        assert!(error.contains(expected) && !error.contains("s3cret"), "{url}: {error}");
    }
}

#[test]
fn an_unknown_variable_of_a_store_says_what_would_be_right() {
    for (name, meant) in [
        ("REDIS_PASSWORD", "REDIS_AUTH, which is the password or user:password"),
        ("REDIS_USERNAME", "REDIS_AUTH, which is the password or user:password"),
        ("REDIS_PERSECOND_PASSWORD", "REDIS_PERSECOND_AUTH, which is the password or user:password"),
        ("REDIS_SENTINEL_PASSWORD", "REDIS_SENTINEL_AUTH, which is the password or user:password"),
        ("REDIS_HOST", "REDIS_URL, which is host:port"),
        ("REDIS_DB", "REDIS_URL, such as redis://host:port/1"),
        ("REDIS_SSL", "REDIS_TLS"),
        ("REDIS_URI", "REDIS_URL"),
        ("REDIS_TIMEOUTS", "REDIS_TIMEOUT"),
        ("REDIS_PERSECOND_TIMEOT", "REDIS_PERSECOND_TIMEOUT"),
        ("MEMCACHED_HOST_PORT", "MEMCACHE_HOST_PORT"),
        ("MEMCACHED_HOST", "MEMCACHE_HOST_PORT, which is host:port"),
    ] {
        let warning =
            format!("{name} is set, but has no effect: there is no such variable; did you mean {meant}?");
        let warnings = resolve(&[(name, "s3cret")]).expect("a warning is enough").warnings;
        assert_eq!(warnings, [warning]);
    }
    // parts of other variables, what Kubernetes sets, other programs' variables, and what is known but not used now
    let complete = [
        ("REDIS_URL", "redis://:s3cret@redis:6379/1"),
        ("REDIS_PASSWORD", "s3cret"),
        ("REDIS_HOST", "redis"),
        ("REDIS_PORT", "6379"),
        ("REDIS_DB", "1"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("REDIS_SERVICE_HOST", "10.0.0.1"),
        ("REDIS_VERSION", "8"),
        ("REDIS_PERSECOND_AUTH", "s3cret"),
        ("REDIS_PERSECOND_TYPE", "SINGLE"),
        ("MEMCACHED_VERSION", "1"),
    ];
    assert_eq!(resolve(&complete).expect("valid settings").warnings, [""; 0]);
    assert_eq!(resolve(&[("REDIS_PORT", "tcp://10.0.0.1:6379")]).expect("valid").warnings, [""; 0]);
    let unused = resolve(&[("REDIS_URL", "redis"), ("REDIS_SENTINEL_AUTH", "s3cret")]).expect("valid");
    assert_eq!(
        unused.warnings,
        ["REDIS_SENTINEL_AUTH is set, but has no effect: REDIS_TYPE is not SENTINEL"]
    );
    let error = rejected(&[("WEIR_REDIS_PASSWORD", "s3cret")]);
    assert!(error.contains("did you mean WEIR_REDIS_AUTH, which is the password"), "{error}");
}

#[test]
fn the_per_second_redis_has_its_own_variables() {
    let redis = redis_of(&[
        ("REDIS_URL", "redis:1"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "fast:2"),
        ("REDIS_PERSECOND_AUTH", "s3cret"),
        ("REDIS_PERSECOND_TIMEOUT", "2s"),
        ("REDIS_PERSECOND_TLS", "true"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
    ]);
    let per_second = redis.per_second.expect("a per-second redis");
    assert_eq!(per_second.topology, Topology::Single(Address::tcp("fast", 2)));
    assert_eq!((per_second.auth, per_second.timeout), (Some(secret(None, "s3cret")), Duration::from_secs(2)));
    assert!(per_second.tls.is_some_and(|tls| tls.any_name) && redis.main.tls.is_none());
    assert!(rejected(&[("REDIS_URL", "redis:1"), ("REDIS_PERSECOND", "1")]).contains("REDIS_PERSECOND_URL"));
    let unused = [("REDIS_URL", "redis:1"), ("REDIS_PERSECOND_URL", "fast:2")];
    assert!(redis_of(&unused).per_second.is_none());
    assert_eq!(
        resolve(&unused).expect("a warning is enough").warnings,
        ["REDIS_PERSECOND_URL is set, but has no effect: REDIS_PERSECOND is not true"]
    );
}

#[test]
fn all_other_variables_are_read() {
    let variables = [
        ("REDIS_URL", "redis:1"),
        ("CACHE_KEY_PREFIX", "eu:"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "7"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/ca.pem"),
        ("REDIS_TLS_CLIENT_CERT", "/cert.pem"),
        ("REDIS_TLS_CLIENT_KEY", "/key.pem"),
        ("REDIS_TIMEOUT", "250ms"),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
        ("REDIS_STARTUP_MAX_ELAPSED_TIME", "5m"),
        ("REDIS_STARTUP_INITIAL_INTERVAL", "2s"),
        ("REDIS_STARTUP_MAX_INTERVAL", "20s"),
    ];
    let redis = redis_of(&variables);
    assert_eq!((&*redis.keys.prefix, redis.keys.jitter_seconds), ("eu:", 7));
    assert!(resolve(&variables).expect("valid settings").health_needs_store);
    assert_eq!(redis.connect_within, Some(Duration::from_mins(5)));
    let backoff = Backoff { initial: Duration::from_secs(2), max: Duration::from_secs(20) };
    assert_eq!((redis.backoff, redis.main.timeout), (backoff, Duration::from_millis(250)));
    let client = Some((PathBuf::from("/cert.pem"), PathBuf::from("/key.pem")));
    assert_eq!(redis.main.tls, Some(ClientTls { ca: Some("/ca.pem".into()), client, any_name: false }));
}

#[test]
fn variables_without_effect_cause_warnings() {
    let settings = resolve(&[
        ("REDIS_URL", "redis:1"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_PIPELINE_WINDOW", "150us"),
        ("REDIS_PIPELINE_LIMIT", "0"),
    ]);
    let warnings = settings.expect("valid settings").warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.contains("has no effect")), "{warnings:?}");
}

#[test]
fn an_error_describes_a_valid_value() {
    for (variables, expected) in [
        (&[("REDIS_URL", "redis:port")][..], "must be host:port, a URL such as"),
        (&[("REDIS_URL", "http://redis")], "must be host:port, a URL such as"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_SOCKET_TYPE", "unix")], "path of a unix socket"),
        (&[("REDIS_URL", "/redis.sock"), ("REDIS_SOCKET_TYPE", "tcp")], "host:port"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_SOCKET_TYPE", "udp")], "tcp or unix"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_TYPE", "DOUBLE")], "SINGLE, SENTINEL or CLUSTER"),
        (&[("REDIS_URL", "one:1"), ("REDIS_TYPE", "SENTINEL")], "mymaster,one:26379"),
        (&[("REDIS_URL", "one:1,two:2"), ("REDIS_TYPE", "SENTINEL")], "mymaster,one:26379"),
        (&[("REDIS_URL", "one:1,,two:2"), ("REDIS_TYPE", "CLUSTER")], "some nodes of the cluster"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_TIMEOUT", "10")], "a duration such as"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_TLS_CLIENT_CERT", "/c")], "together with REDIS_TLS_CLIENT_KEY"),
        (&[("REDIS_URL", "redis:1"), ("REDIS_TLS_CLIENT_KEY", "/k")], "together with REDIS_TLS_CLIENT_CERT"),
        (&[("EXPIRATION_JITTER_MAX_SECONDS", "5m")], "a number of seconds"),
    ] {
        let error = rejected(variables);
        assert!(error.contains(expected) && error.lines().count() == 1, "{variables:?}: {error}");
    }
}

#[test]
fn no_message_contains_a_password() {
    for url in [
        "redis://u:s3cret@:port",
        "http://u:s3cret@redis",
        "s3cret@redis:1",
        "unknown://s3cret@x",
        "redis://:s3cret",
        "redis:1:s3cret",
        "unix:///redis.sock?pass=s3cret",
    ] {
        let error = rejected(&[("REDIS_URL", url)]);
        assert!(!error.contains("s3cret") && error.starts_with("REDIS_URL must be "), "{error}");
    }
    let printed =
        format!("{:?}", redis_of(&[("REDIS_URL", "redis://u:s3cret@redis"), ("REDIS_AUTH", "h1dden")]));
    assert!(!printed.contains("s3cret") && !printed.contains("h1dden"), "{printed}");
}
