//! Finds variables of envoyproxy/ratelimit that weir does not support, and variables without effect. A variable that is
//! dangerous to ignore causes an error, any other a warning.

use super::{parse, reader::Reader};

/// Variables that select Memcached for the counts.
const MEMCACHE: [&str; 2] = ["MEMCACHE_HOST_PORT", "MEMCACHE_SRV"];

/// Variables of shared stores, which have no effect on counts in memory. Sizes and timeouts give no warning.
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

/// Variables without effect on counts in memory, with the reason.
const WITHOUT_EFFECT_IN_MEMORY: [(&str, &str); 6] = [
    ("CACHE_KEY_PREFIX", "counts are kept in memory, not under Redis keys"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "counts are kept in memory, which needs no cache"),
    ("WEIR_COORDINATION", "counts are kept in memory, by each instance separately"),
    ("WEIR_SYNC_INTERVAL", "counts are kept in memory, by each instance separately"),
    ("WEIR_DECISION_BUDGET", "counts are kept in memory, so no decision waits"),
    ("WEIR_ON_STORE_FAILURE", "counts are kept in memory, which does not fail"),
];

/// Reports variables that must not be ignored, and returns warnings about the rest. `shared` means that counts are kept in
/// Redis.
pub(super) fn check(reader: &mut Reader<'_>, shared: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    store(reader, shared, &mut warnings);
    if reader.bool("TRACING_ENABLED") {
        warnings.push("TRACING_ENABLED is set, but has no effect: tracing is not supported yet".into());
    }
    let milliseconds = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS";
    if is_on(reader, milliseconds) && reader.given("PROMETHEUS_MAPPER_YAML").is_some() {
        warnings.push(format!(
            "{milliseconds} is set, but has no effect if PROMETHEUS_MAPPER_YAML is valid: its mappings scale response times"
        ));
    }
    warnings
}

/// Checks the variables of the store: counts that are meant to be shared must not silently be counted per instance.
fn store(reader: &mut Reader<'_>, shared: bool, warnings: &mut Vec<String>) {
    const NO_MEMCACHE: &str = "Memcached is not supported";
    match reader.given("BACKEND_TYPE") {
        Some(given) if !["memory", "redis"].contains(&given.value.as_str()) => {
            let reason = if given.value == "memcache" { format!(": {NO_MEMCACHE}") } else { String::new() };
            return reader.reject(given, format!("memory or redis{reason}"));
        }
        Some(_) => {}
        None => {
            for variable in MEMCACHE.into_iter().filter(|_| !shared) {
                if let Some(given) = reader.given(variable) {
                    reader.reject(
                        given,
                        format!("unset, or BACKEND_TYPE set to memory or redis: {NO_MEMCACHE}"),
                    );
                }
            }
            // has no effect without REDIS_URL, so counts that are meant to be shared would not be
            if let Some(given) = reader.given("REDIS_PERSECOND_URL").filter(|_| !shared) {
                reader.reject(given, "set together with REDIS_URL, or BACKEND_TYPE set to memory");
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

/// Returns whether a variable is set to anything but false.
fn is_on(reader: &Reader<'_>, variable: &str) -> bool {
    reader.given(variable).is_some_and(|given| parse::bool(&given.value) != Ok(false))
}
