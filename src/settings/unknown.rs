//! Finds variables of weir that do not exist. A misspelled one is an error, because its setting would silently have no
//! effect.

use super::reader::{Given, Reader};
use crate::spelling;

/// Begins the variables that only weir has.
const PREFIX: &str = "WEIR_";

/// The variables that only weir has, without [`PREFIX`].
const OWN: [&str; 38] = [
    "COORDINATION",
    "DATA_DIR",
    "DECISION_BUDGET",
    "DISK_DAMAGE",
    "DISK_MAX_BYTES",
    "DISK_SYNC",
    "HOT_KEYS",
    "JSON",
    "LOG_REJECTIONS",
    "LOG_VALUES",
    "MAX_BUFFERED_BYTES",
    "MAX_CONNECTIONS",
    "MAX_COUNTERS",
    "MAX_COUNTER_BYTES",
    "MAX_DESCRIPTORS",
    "MAX_ENTRIES",
    "MAX_WAIT",
    "MAX_WAITERS",
    "MAX_WAITERS_PER_KEY",
    "ON_STORE_FAILURE",
    "REDIS_AUTH",
    "REDIS_HOST",
    "REDIS_PORT",
    "REDIS_RESET",
    "REDIS_TLS",
    "REQUEST_TIMEOUT",
    "RESPONSE_HEADERS",
    "RULE_METADATA",
    "SEND_TIMEOUT",
    "STOP_DELAY",
    "STOP_TIMEOUT",
    "SYNC_INTERVAL",
    "TRACING_DESCRIPTOR_VALUES",
    "UNAMBIGUOUS_KEYS",
    "WORKERS",
    "XDS_ALGORITHM",
    "XDS_DEFAULTS",
    "XDS_RESPONSE_TIMEOUT",
];

/// Reports variables that look misspelled, and returns warnings about others that do not exist. Call it after all
/// settings were read.
pub(super) fn check(reader: &mut Reader<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in reader.names() {
        let Some(rest) = name.strip_prefix(PREFIX).filter(|rest| !OWN.contains(rest)) else {
            continue;
        };
        let Some(Given { value, .. }) =
            reader.given(&name).filter(|given| !is_service_link(rest, &given.value))
        else {
            continue;
        };
        match meant(rest, reader) {
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

/// Returns the existing variable that `rest`, without [`PREFIX`], probably stands for.
fn meant(rest: &str, reader: &Reader<'_>) -> Option<String> {
    // a variable of envoyproxy/ratelimit with the prefix, such as WEIR_REDIS_URL
    if reader.was_read(rest) {
        return Some(rest.to_owned());
    }
    let part = || OWN.into_iter().find(|own| own.contains(rest) || rest.contains(own));
    let own = spelling::nearest(rest, OWN).or_else(|| if rest.len() < 4 { None } else { part() });
    own.map(|own| format!("{PREFIX}{own}"))
}

/// Returns whether Kubernetes or Docker sets the variable for a service whose name begins with `weir`, such as
/// `WEIR_SERVICE_HOST` or `WEIR_PORT_8081_TCP`.
fn is_service_link(rest: &str, value: &str) -> bool {
    let rest = format!("_{rest}");
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| rest.contains(part))
        || rest.ends_with("_PORT") && value.contains("://")
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| rest.contains("_PORT_") && rest.contains(protocol))
}
