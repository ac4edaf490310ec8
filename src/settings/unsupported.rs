//! Finds variables of envoyproxy/ratelimit that weir does not support, and variables without effect. A variable that is
//! dangerous to ignore causes an error, any other a warning.

use super::{
    reader::SettingReader,
    stores::{Backend, STORES},
    table,
};

const WITHOUT_EFFECT_UNSHARED: [(&str, &str); 4] = [
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "counts are kept in memory"),
    ("CACHE_KEY_PREFIX", "counts are kept in memory, not under keys of a shared store"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "counts are kept in memory, which needs no cache"),
    ("WEIR_COORDINATION", "counts are kept in memory, by each instance separately"),
];

const WITHOUT_EFFECT_IN_MEMORY: [(&str, &str); 3] = [
    ("WEIR_SYNC_INTERVAL", "counts are kept in memory, by each instance separately"),
    ("WEIR_DECISION_BUDGET", "counts are kept in memory, so no decision waits"),
    ("WEIR_ON_STORE_FAILURE", "counts are kept in memory, which does not fail"),
];

pub(super) fn check(reader: &mut SettingReader<'_>, backend: Backend) -> Vec<String> {
    let mut warnings = Vec::new();
    store(reader, backend, &mut warnings);
    let set = table::section(table::WITHOUT_EFFECT).filter(|(variable, _)| reader.is_on(variable));
    warnings
        .extend(set.map(|(name, setting)| format!("{name} is set, but has no effect: {}", setting.meaning)));
    let milliseconds = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS";
    if reader.is_on(milliseconds) && reader.is_given("PROMETHEUS_MAPPER_YAML") {
        warnings.push(format!(
            "{milliseconds} is set, but has no effect if PROMETHEUS_MAPPER_YAML is valid: its mappings scale response times"
        ));
    }
    warnings
}

/// Counts that are meant to be shared must not silently be counted per instance.
fn store(reader: &mut SettingReader<'_>, backend: Backend, warnings: &mut Vec<String>) {
    let given = reader.given("BACKEND_TYPE");
    if given.as_ref().is_some_and(|given| Backend::named(&given.value).is_err()) {
        // which is an error
        return;
    }
    // has no effect without REDIS_URL, so counts that are meant to be shared would not be
    let is_unused = given.is_none() && backend.store().is_none();
    if let Some(given) = reader.given("REDIS_PERSECOND_URL").filter(|_| is_unused) {
        reader.reject(given, "set together with REDIS_URL, or BACKEND_TYPE set to memory");
    }
    let (own, place) = backend.section();
    let sections = STORES.iter().map(|shared| shared.store.name).chain(["Disk"]);
    let reason = format!("counts are kept in {place}");
    let others = sections.filter(|section| Some(*section) != own);
    warnings.extend(others.flat_map(|section| reader.without_effect(section, &reason)));
    let unshared = WITHOUT_EFFECT_UNSHARED.iter().filter(|_| backend.store().is_none());
    let in_memory = WITHOUT_EFFECT_IN_MEMORY.iter().filter(|_| matches!(backend, Backend::Memory));
    let set = unshared.chain(in_memory).filter(|(variable, _)| reader.is_on(variable));
    warnings.extend(set.map(|(variable, reason)| format!("{variable} is set, but has no effect: {reason}")));
}
