//! The reference's variables for what weir has not. Where to go on without it would be dangerous, weir does not start;
//! everything else is a warning.

use super::{parse, reader::Reader};

/// Variables of a Memcached that counts are to be kept in.
const MEMCACHE: [&str; 2] = ["MEMCACHE_HOST_PORT", "MEMCACHE_SRV"];

/// Variables of shared stores, where counts are kept in memory. Sizes and times are left out: to have none of what they
/// bound is no surprise.
const OF_SHARED_STORES: [&str; 11] = [
    "REDIS_URL",
    "REDIS_PERSECOND_URL",
    "REDIS_TYPE",
    "REDIS_SOCKET_TYPE",
    "REDIS_AUTH",
    "REDIS_TLS",
    "REDIS_PERSECOND",
    "REDIS_SENTINEL_AUTH",
    "REDIS_TLS_CACERT",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "MEMCACHE_TLS",
];

/// Variables that change nothing, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    ("PROMETHEUS_MAPPER_YAML", "metrics carry the reference's own names and labels"),
    ("USE_DOG_STATSD_MOGRIFIERS", "metrics carry the reference's own names"),
];

/// Variables that change nothing where counts are kept in memory, with the reason.
const WITHOUT_EFFECT_IN_MEMORY: [(&str, &str); 6] = [
    ("CACHE_KEY_PREFIX", "counts are kept in memory, where no other service could see them"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "counts are kept in memory, where a cache would save nothing"),
    ("WEIR_COORDINATION", "counts are kept in memory, by each instance for itself"),
    ("WEIR_SYNC_INTERVAL", "counts are kept in memory, by each instance for itself"),
    ("WEIR_DECISION_BUDGET", "counts are kept in memory, which is never waited for"),
    ("WEIR_ON_STORE_FAILURE", "counts are kept in memory, which does not fail"),
];

/// Refuses what must not be ignored, and warns of the rest. `shared` tells whether counts are kept in Redis.
pub(super) fn check(reader: &mut Reader<'_>, shared: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    store(reader, shared, &mut warnings);
    if let Some(given) = reader.given("CONFIG_TYPE").filter(|given| given.value != "FILE") {
        let expected = match given.value.as_str() {
            "GRPC_XDS_SOTW" => "FILE: this build reads rules from files only",
            _ => "FILE",
        };
        reader.refuse(given, expected);
    }
    if reader.bool("GRPC_SERVER_USE_TLS")
        && let Some(given) = reader.given("GRPC_SERVER_USE_TLS")
    {
        reader.refuse(
            given,
            "false: this build serves gRPC without TLS only; put a proxy that speaks it in front",
        );
    }
    if reader.bool("TRACING_ENABLED") {
        warnings.push("TRACING_ENABLED is set, but this build sends no traces".into());
    }
    for (variable, reason) in WITHOUT_EFFECT {
        if is_on(reader, variable) {
            warnings.push(format!("{variable} is set, but has no effect: {reason}"));
        }
    }
    warnings
}

/// Counts that are meant to be shared must not silently become each instance's own.
fn store(reader: &mut Reader<'_>, shared: bool, warnings: &mut Vec<String>) {
    const NO_MEMCACHE: &str = "this build knows no Memcached";
    match reader.given("BACKEND_TYPE") {
        Some(given) if !["memory", "redis"].contains(&given.value.as_str()) => {
            let reason = if given.value == "memcache" { NO_MEMCACHE } else { "there is nothing else" };
            return reader.refuse(given, format!("memory or redis: {reason}"));
        }
        Some(_) => {}
        None => {
            for variable in MEMCACHE.into_iter().filter(|_| !shared) {
                if let Some(given) = reader.given(variable) {
                    reader.refuse(
                        given,
                        format!("unset, or BACKEND_TYPE set to memory or redis: {NO_MEMCACHE}"),
                    );
                }
            }
            // it would be used by nobody, and the counts not be shared
            if let Some(given) = reader.given("REDIS_PERSECOND_URL").filter(|_| !shared) {
                reader.refuse(given, "set together with REDIS_URL, or BACKEND_TYPE set to memory");
            }
        }
    }
    let ignored = MEMCACHE.iter().chain(OF_SHARED_STORES.iter().filter(|_| !shared));
    for variable in ignored.filter(|variable| is_on(reader, variable)) {
        let reason = if shared { "counts are kept in Redis" } else { "counts are kept in memory" };
        warnings.push(format!("{variable} is set, but has no effect: {reason}"));
    }
    for (variable, reason) in WITHOUT_EFFECT_IN_MEMORY.iter().filter(|_| !shared) {
        if is_on(reader, variable) {
            warnings.push(format!("{variable} is set, but has no effect: {reason}"));
        }
    }
}

/// Whether a variable is set to more than a word for no.
fn is_on(reader: &Reader<'_>, variable: &str) -> bool {
    reader.given(variable).is_some_and(|given| parse::bool(&given.value) != Ok(false))
}
