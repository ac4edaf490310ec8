//! Finds variables of envoyproxy/ratelimit that weir does not support, and variables without effect. A variable that is
//! dangerous to ignore causes an error, any other a warning.

use super::{backend::Backend, parse, reader::SettingReader};

/// Have no effect on counts elsewhere; neither have sizes and timeouts, which give no warning.
const OF_MEMCACHED: [&str; 3] = ["MEMCACHE_HOST_PORT", "MEMCACHE_SRV", "MEMCACHE_TLS"];

const OF_REDIS: [&str; 9] = [
    "REDIS_URL",
    "REDIS_PERSECOND_URL",
    "REDIS_TYPE",
    "REDIS_SOCKET_TYPE",
    "REDIS_AUTH",
    "REDIS_TLS",
    "REDIS_PERSECOND",
    "REDIS_SENTINEL_AUTH",
    "REDIS_TLS_CACERT",
];

const OF_DISK: [&str; 4] = ["WEIR_DATA_DIR", "WEIR_DISK_SYNC", "WEIR_DISK_DAMAGE", "WEIR_DISK_MAX_BYTES"];

const WITHOUT_EFFECT_UNSHARED: [(&str, &str); 4] = [
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "counts are kept in memory"),
    ("CACHE_KEY_PREFIX", "counts are kept in memory, not under keys of a shared store"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "counts are kept in memory, which needs no cache"),
    ("WEIR_COORDINATION", "counts are kept in memory, by each instance separately"),
];

/// Variables of later versions of envoyproxy/ratelimit, and of changes that are proposed there, with what weir does.
const NEWER: [(&str, &str); 12] = [
    (
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        "weir always replaces the connection to a server that has become a replica",
    ),
    (
        "REDIS_PERSECOND_CLOSE_CONNECTION_ON_READONLY_ERROR",
        "weir always replaces the connection to a server that has become a replica",
    ),
    (
        "REDIS_OP_TIMEOUT",
        "WEIR_DECISION_BUDGET bounds the wait of a decision, and REDIS_TIMEOUT every command",
    ),
    (
        "REDIS_PERSECOND_OP_TIMEOUT",
        "WEIR_DECISION_BUDGET bounds the wait of a decision, and REDIS_PERSECOND_TIMEOUT every command",
    ),
    ("REDIS_AUTH_FILE", "set REDIS_AUTH, or give it as a credential of systemd"),
    ("REDIS_AWS_IAM_AUTH", "weir has no login by AWS; set REDIS_AUTH to the password of a user"),
    ("GRPC_MAX_CONCURRENT_STREAMS", "a connection has at most 4096 calls at once"),
    ("MAX_CONCURRENT_REQUESTS", "set WEIR_MAX_CONNECTIONS and WEIR_MAX_BUFFERED_BYTES"),
    ("REQUEST_TIMEOUT", "set WEIR_DECISION_BUDGET, which bounds the wait of a decision for the store"),
    (
        "LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED",
        "WEIR_RESPONSE_HEADERS=ietf reports the limits of all descriptors",
    ),
    ("LIMIT_PER_UNIT_HEADERS_ENABLED", "WEIR_RESPONSE_HEADERS=ietf reports the limits of all descriptors"),
    ("ENABLE_NEGATIVE_HITS", "hits can be given back"),
];

const WITHOUT_EFFECT_IN_MEMORY: [(&str, &str); 3] = [
    ("WEIR_SYNC_INTERVAL", "counts are kept in memory, by each instance separately"),
    ("WEIR_DECISION_BUDGET", "counts are kept in memory, so no decision waits"),
    ("WEIR_ON_STORE_FAILURE", "counts are kept in memory, which does not fail"),
];

pub(super) fn check(reader: &mut SettingReader<'_>, backend: Backend) -> Vec<String> {
    let mut warnings = Vec::new();
    store(reader, backend, &mut warnings);
    for (variable, instead) in NEWER {
        if is_on(reader, variable) {
            warnings.push(format!("{variable} is set, but has no effect: {instead}"));
        }
    }
    let milliseconds = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS";
    if is_on(reader, milliseconds) && reader.given("PROMETHEUS_MAPPER_YAML").is_some() {
        warnings.push(format!(
            "{milliseconds} is set, but has no effect if PROMETHEUS_MAPPER_YAML is valid: its mappings scale response times"
        ));
    }
    warnings
}

/// Counts that are meant to be shared must not silently be counted per instance.
fn store(reader: &mut SettingReader<'_>, backend: Backend, warnings: &mut Vec<String>) {
    match reader.given("BACKEND_TYPE") {
        // which is an error
        Some(given) if Backend::named(&given.value).is_none() => return,
        Some(_) => {}
        None => {
            // has no effect without REDIS_URL, so counts that are meant to be shared would not be
            let unused = reader.given("REDIS_PERSECOND_URL").filter(|_| !backend.is_shared());
            if let Some(given) = unused {
                reader.reject(given, "set together with REDIS_URL, or BACKEND_TYPE set to memory");
            }
        }
    }
    let of_memcached = OF_MEMCACHED.iter().filter(|_| backend != Backend::Memcached);
    let of_redis = OF_REDIS.iter().filter(|_| backend != Backend::Redis);
    let of_disk = OF_DISK.iter().filter(|_| backend != Backend::Disk);
    for variable in of_memcached.chain(of_redis).chain(of_disk).filter(|variable| is_on(reader, variable)) {
        warnings
            .push(format!("{variable} is set, but has no effect: counts are kept in {}", backend.place()));
    }
    let unshared = WITHOUT_EFFECT_UNSHARED.iter().filter(|_| !backend.is_shared());
    let in_memory = WITHOUT_EFFECT_IN_MEMORY.iter().filter(|_| backend == Backend::Memory);
    for (variable, reason) in unshared.chain(in_memory) {
        if is_on(reader, variable) {
            warnings.push(format!("{variable} is set, but has no effect: {reason}"));
        }
    }
}

fn is_on(reader: &SettingReader<'_>, variable: &str) -> bool {
    reader.given(variable).is_some_and(|given| parse::bool(&given.value) != Ok(false))
}
