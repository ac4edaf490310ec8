//! The tokens that end requests in flight: a request's name, and the domain whose rules it is for.

use weir_limit::RequestName;

/// Returns the token of the request of `name`.
pub(crate) fn write(domain: &str, name: &str) -> String {
    format!("{name}/{domain}")
}

/// Returns the domain and the name. None if `token` is no such token.
pub(crate) fn read(token: &str) -> Option<(&str, &str)> {
    let (name, domain) = token.split_once('/')?;
    (!domain.is_empty() && RequestName::read(name).is_some()).then_some((domain, name))
}
