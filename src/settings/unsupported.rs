//! The reference's variables for what weir has not. Where to go on without it would be dangerous, weir does not start;
//! everything else is a warning.

use super::{read::Reader, value};

/// Variables of a Redis or Memcached that counts are to be kept in.
const SHARED_STORES: [&str; 4] = ["REDIS_URL", "REDIS_PERSECOND_URL", "MEMCACHE_HOST_PORT", "MEMCACHE_SRV"];

/// The other variables of theirs. Sizes and times are left out: to have none of what they bound is no surprise.
const OF_SHARED_STORES: [&str; 9] = [
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
const WITHOUT_EFFECT: [(&str, &str); 8] = [
    ("CACHE_KEY_PREFIX", "counts are kept in memory, where no other service could see them"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "counts are kept in memory, where a cache would save nothing"),
    ("PROMETHEUS_MAPPER_YAML", "metrics carry the reference's own names and labels"),
    ("USE_DOG_STATSD_MOGRIFIERS", "metrics carry the reference's own names"),
    ("WEIR_COORDINATION", "counts are kept in memory, by each instance for itself"),
    ("WEIR_SYNC_INTERVAL", "counts are kept in memory, by each instance for itself"),
    ("WEIR_DECISION_BUDGET", "counts are kept in memory, which is never waited for"),
    ("WEIR_ON_STORE_FAILURE", "counts are kept in memory, which does not fail"),
];

/// Refuses what must not be ignored, and warns of the rest.
pub(super) fn look(reader: &mut Reader<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    store(reader, &mut warnings);
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
fn store(reader: &mut Reader<'_>, warnings: &mut Vec<String>) {
    const IN_MEMORY: &str = "this build counts in memory only, each instance for itself";
    if let Some(given) = reader.given("BACKEND_TYPE") {
        if given.value != "memory" {
            return reader.refuse(given, format!("memory: {IN_MEMORY}"));
        }
    } else {
        for variable in SHARED_STORES {
            if let Some(given) = reader.given(variable) {
                reader.refuse(given, format!("unset, or BACKEND_TYPE set to memory: {IN_MEMORY}"));
            }
        }
    }
    for variable in SHARED_STORES.iter().chain(&OF_SHARED_STORES) {
        if is_on(reader, variable) {
            warnings.push(format!("{variable} is set, but has no effect: counts are kept in memory"));
        }
    }
}

/// Whether a variable is set to more than a word for no.
fn is_on(reader: &Reader<'_>, variable: &str) -> bool {
    reader.given(variable).is_some_and(|given| value::bool(&given.value) != Ok(false))
}
