//! `Host` and `Origin`: a page of another site must not use the API through somebody's browser.

use std::net::IpAddr;

use axum::http::{
    HeaderMap, Method, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};

use super::problem::Problem;

/// Begin the names of headers of proxies.
const PROXY_PREFIXES: [&str; 2] = ["x-forwarded-", "x-envoy-"];
const PROXY_HEADERS: [&str; 2] = ["forwarded", "via"];

/// The name by which a caller knows this port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedHost {
    /// In lower case, without brackets.
    name: String,
    port: Option<u16>,
}

// === impl AskedHost ===

impl AskedHost {
    fn parse(text: &str) -> Option<Self> {
        let authority: Authority = text.parse().ok()?;
        let host = authority.host();
        // a name of a user is no part of a host, and a port has a number
        if !text.starts_with(host) || (text.len() > host.len() && authority.port_u16().is_none()) {
            return None;
        }
        let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (!name.is_empty()).then(|| Self { name: name.to_ascii_lowercase(), port: authority.port_u16() })
    }

    fn address(&self) -> Option<IpAddr> {
        self.name.parse().ok()
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.address().is_some_and(is_loopback)
    }

    /// An entry without a port stands for all ports.
    fn is_among(&self, hosts: &[Box<str>]) -> bool {
        hosts
            .iter()
            .filter_map(|host| Self::parse(host))
            .any(|host| host.name == self.name && (host.port.is_none() || host.port == self.port))
    }
}

/// 127.0.0.1 or `::1`, and not the whole network: in a mesh, requests of everybody come from 127.0.0.6.
pub(super) fn is_loopback(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == IpAddr::from([127, 0, 0, 1]) || address == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
}

/// Whether a proxy has passed the request on, so that its peer says nothing about the caller.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.keys().map(axum::http::HeaderName::as_str).any(|name| {
        PROXY_HEADERS.contains(&name) || PROXY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// A name that this port does not have may be one whose DNS was pointed here.
pub(super) fn check_host(uri: &Uri, headers: &HeaderMap, hosts: &[Box<str>]) -> Result<AskedHost, Problem> {
    let mut named = headers.get_all(HOST).iter();
    let host = named.next().and_then(|host| host.to_str().ok());
    let host = host.and_then(AskedHost::parse).filter(|_| named.next().is_none());
    let of_uri = uri.authority().map(|authority| AskedHost::parse(authority.as_str()));
    let is_known =
        |host: &AskedHost| host.name == "localhost" || host.address().is_some() || host.is_among(hosts);
    match (host, of_uri) {
        (Some(host), None) if is_known(&host) => Ok(host),
        (Some(host), Some(Some(same))) if same == host && is_known(&host) => Ok(host),
        _ => Err(Problem::forbidden(
            "The request's Host is no address, nor localhost; WEIR_ADMIN_HOSTS lists further names.",
        )),
    }
}

/// A page of another site may send requests, although it cannot read the answers. Returns whether there is an origin.
pub(super) fn check_origin(
    method: &Method,
    headers: &HeaderMap,
    host: &AskedHost,
    hosts: &[Box<str>],
) -> Result<bool, Problem> {
    const FOREIGN: &str =
        "The request comes from a page of another site (its Origin); WEIR_ADMIN_HOSTS lists further names.";
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else {
        // older browsers do not send it, and those that do send an origin with all that changes something
        let site = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let is_foreign = site("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
        let is_link = method == Method::GET && site("sec-fetch-mode") == Some("navigate");
        return if is_foreign && !is_link { Err(Problem::forbidden(FOREIGN)) } else { Ok(false) };
    };
    let origin =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).filter(|_| origins.next().is_none());
    let default_port = match origin {
        Some(("http", _)) => 80,
        Some(("https", _)) => 443,
        _ => return Err(Problem::forbidden(FOREIGN)),
    };
    let origin = origin.and_then(|(_, authority)| AskedHost::parse(authority));
    let is_own = |origin: &AskedHost| {
        let port = |of: &AskedHost| of.port.unwrap_or(default_port);
        origin.name == host.name && port(origin) == port(host) || origin.is_among(hosts)
    };
    if origin.as_ref().is_some_and(is_own) { Ok(true) } else { Err(Problem::forbidden(FOREIGN)) }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (axum::http::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
            })
            .collect()
    }

    fn hosts() -> Vec<Box<str>> {
        vec!["console.example".into(), "weir.example:8443".into()]
    }

    #[test]
    fn a_host_is_an_address_localhost_or_listed() {
        for (host, expected) in [
            ("127.0.0.1:6070", true),
            ("[::1]:6070", true),
            ("10.1.2.3", true),
            ("LocalHost:6070", true),
            ("console.example:1", true),
            ("Console.Example", true),
            ("weir.example:8443", true),
            ("weir.example", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("evil@localhost", false),
            ("localhost:99999", false),
            ("", false),
        ] {
            let found = check_host(&Uri::from_static("/v1/hot"), &headers(&[("host", host)]), &hosts());
            assert_eq!(found.is_ok(), expected, "{host}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")].map(|(_, value)| value);
        let mut both = HeaderMap::new();
        for value in twice {
            both.append(HOST, HeaderValue::from_static(value));
        }
        assert!(check_host(&Uri::from_static("/v1/hot"), &both, &hosts()).is_err());
        assert!(check_host(&Uri::from_static("/v1/hot"), &HeaderMap::new(), &hosts()).is_err());
        let absolute = Uri::from_static("http://evil.example/v1/hot");
        assert!(check_host(&absolute, &headers(&[("host", "localhost")]), &hosts()).is_err());
    }

    #[test]
    fn an_origin_is_that_of_the_host_or_listed() {
        let host = AskedHost::parse("localhost:6070").expect("a host");
        for (origin, expected) in [
            ("http://localhost:6070", Some(true)),
            ("https://console.example", Some(true)),
            ("https://weir.example:8443", Some(true)),
            ("http://localhost:3000", None),
            ("http://localhost", None),
            ("http://evil.example", None),
            ("http://localhost:6070.evil.example", None),
            ("file://localhost:6070", None),
            ("null", None),
            ("", None),
        ] {
            let found = check_origin(&Method::POST, &headers(&[("origin", origin)]), &host, &hosts());
            assert_eq!(found.ok(), expected, "{origin}");
        }
    }

    #[test]
    fn without_an_origin_a_browser_says_where_a_request_is_from() {
        let host = AskedHost::parse("localhost:6070").expect("a host");
        let check = |method: Method, pairs: &[(&'static str, &str)]| {
            check_origin(&method, &headers(pairs), &host, &[]).is_ok()
        };
        assert!(check(Method::GET, &[]));
        assert!(check(Method::GET, &[("sec-fetch-site", "same-origin")]));
        assert!(check(Method::GET, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
        assert!(!check(Method::GET, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(!check(Method::POST, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
    }

    #[test]
    fn only_the_one_address_of_a_family_is_loopback() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.6", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(address.parse().expect("an address")), expected, "{address}");
        }
        for name in ["forwarded", "via", "x-forwarded-for", "x-envoy-peer-metadata"] {
            assert!(is_forwarded(&headers(&[(name, "x")])), "{name}");
        }
        assert!(!is_forwarded(&headers(&[("accept", "x"), ("x-request-id", "1")])));
    }
}
