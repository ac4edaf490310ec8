//! Finds variables of weir that do not exist. A misspelled one is an error, because its setting would silently have no
//! effect.

use weir_observe::spelling;
use weir_remotes::RemoteSettings;

use super::{
    reader::{Given, SettingReader},
    stores::STORES,
    table,
};

const PREFIX: &str = "WEIR_";

/// What other programs call a password of a store.
pub(super) const PASSWORDS: &str = "PASSWORD PASSWD PASS USERNAME USER AUTH_PASSWORD AUTH_USER";

/// What other programs call the address of a store.
pub(super) const ADDRESSES: &str = "ADDR ADDRESS ADDRESSES ADDRS CLUSTER_NODES ENDPOINT ENDPOINTS HOST HOSTNAME HOSTS \
                                    NODES PORT SENTINELS SERVER SERVERS URLS";

/// A misspelling of weir's own is an error. Other variables that do not exist are warnings: one may be there for another
/// program, or as a part of another's value. Call it after all settings were read.
pub(super) fn check(reader: &mut SettingReader<'_>, shared: Option<&RemoteSettings>) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in reader.names().into_iter().filter(|name| table::find(name).is_none()) {
        let Some(value) = reader.unlisted(&name).filter(|value| !is_service_link(&name, value)) else {
            continue;
        };
        if let Some(rest) = name.strip_prefix(PREFIX) {
            match meant(rest) {
                Some(meant) => {
                    let expected = format!("unset: there is no such variable; did you mean {meant}?");
                    reader.reject(Given { name, value }, expected);
                }
                None => warnings.push(format!("{name} is set, but has no effect: there is no such variable")),
            }
        } else if let Some(meant) = STORES.iter().find_map(|store| (store.meant)(&name, reader, shared)) {
            warnings.push(format!(
                "{name} is set, but has no effect: there is no such variable; did you mean {meant}?"
            ));
        }
    }
    let unused = reader.credentials().into_iter().filter(|name| !reader.was_read(name));
    warnings
        .extend(unused.map(|name| format!("the credential weir_{name} has no effect with these settings")));
    warnings
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

pub(super) fn is_one_of(names: &str, name: &str) -> bool {
    names.split(' ').any(|one| one == name)
}

/// Kubernetes and Docker set such variables for services called `weir…`: `WEIR_SERVICE_HOST`, `WEIR_PORT_8081_TCP`.
fn is_service_link(rest: &str, value: &str) -> bool {
    let rest = format!("_{rest}");
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| rest.contains(part))
        || rest.ends_with("_PORT") && value.contains("://")
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| rest.contains("_PORT_") && rest.contains(protocol))
}
