//! Asks a page of a running weir, without a client of HTTP: for commands in a container without a shell.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime,
    time::timeout,
};
use tokio_rustls::rustls::pki_types::ServerName;
use weir_net::{
    Address,
    stream::{StreamTls, open},
};

use super::error::{CommandResult, failed};
use crate::settings::{ListenAddress, SettingErrors};

/// The largest response of a page of text, in bytes.
const MAX_TEXT: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPage<'a> {
    pub(super) path: &'a str,
    /// The port that has it, in words.
    pub(super) port: &'static str,
    pub(super) accept: &'static str,
    /// Sent with POST, as JSON; none for GET.
    pub(super) body: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    /// The largest response, in bytes.
    pub(super) most: usize,
}

/// Where a page is.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagePlace<'a> {
    /// `HOST:PORT`; none for this host.
    pub(super) address: Option<&'a str>,
    pub(super) tls: Option<&'a StreamTls>,
    pub(super) timeout: Duration,
}

// === impl LocalPage ===

impl<'a> LocalPage<'a> {
    pub(super) const fn get(path: &'a str, port: &'static str, accept: &'static str) -> Self {
        Self { path, port, accept, body: None, token: None, most: MAX_TEXT }
    }

    fn request(&self, host: &str) -> String {
        let Self { path, accept, body, token, .. } = self;
        let method = if body.is_some() { "POST" } else { "GET" };
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let length =
            body.map(|body| format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\naccept: {accept}\r\n{token}{}connection: close\r\n\r\n{}",
            length.unwrap_or_default(),
            body.unwrap_or_default()
        )
    }
}

pub(super) fn parse_address(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("write it as HOST:PORT, such as localhost:8080 or [::1]:8080"),
    }
}

/// Asks the address of `place`, or else the first reachable one of `listening`. Returns the head and the body.
pub(super) fn get_page(
    page: LocalPage<'_>,
    place: PagePlace<'_>,
    listening: impl FnOnce() -> Result<ListenAddress, SettingErrors>,
) -> CommandResult<(String, String)> {
    let addresses: Vec<SocketAddr> = if let Some(address) = place.address {
        let no_reply = || failed(format!("no reply from {address}"));
        let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(no_reply())?.collect();
        if found.is_empty() {
            return Err(no_reply()(io::Error::other("the name has no address")));
        }
        found
    } else {
        let listening = listening()?;
        let to_address = |host| SocketAddr::new(host, listening.port);
        reachable(listening.host).into_iter().map(to_address).collect()
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (address, reply) = runtime.block_on(get_first(page, place, &addresses))?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    if status(head) == Some("404") && body.trim().is_empty() {
        let LocalPage { path, port, .. } = page;
        return Err(format!("there is no page {path} at {address}: name weir's {port}").into());
    }
    Ok((head.to_owned(), body.to_owned()))
}

pub(super) fn is_ok(head: &str) -> bool {
    status(head) == Some("200")
}

fn status(head: &str) -> Option<&str> {
    head.split(' ').nth(1)
}

/// Addresses of this host at which a server may be that listens on `host`.
pub(super) fn reachable(host: IpAddr) -> Vec<IpAddr> {
    match host {
        IpAddr::V4(any) if any.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
        // usually both; containers often have no IPv6 address, although they can listen on `::`
        IpAddr::V6(any) if any.is_unspecified() => {
            vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
        }
        one => vec![one],
    }
}

async fn get_first(
    page: LocalPage<'_>,
    place: PagePlace<'_>,
    addresses: &[SocketAddr],
) -> CommandResult<(SocketAddr, String)> {
    let mut first = None;
    for &address in addresses {
        let reply = timeout(place.timeout, get(page, place, address)).await;
        match reply.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
            Ok(reply) => return Ok((address, reply)),
            Err(error) => first = first.or(Some(failed(format!("no reply from {address}"))(error))),
        }
    }
    Err(first.unwrap_or_else(|| "there is no address".into()))
}

/// The response is not chunked, and ends with the connection.
async fn get(page: LocalPage<'_>, place: PagePlace<'_>, address: SocketAddr) -> CommandResult<String> {
    // with TLS, the name counts; otherwise an address needs no name that the server knows
    let named = place.address.filter(|_| place.tls.is_some());
    let host = named.map_or_else(|| address.to_string(), str::to_owned);
    let name = named.and_then(|named| named.rsplit_once(':')).map(|(name, _)| name.trim_matches(['[', ']']));
    let name = name.and_then(|name| ServerName::try_from(name.to_owned()).ok());
    let tls = place
        .tls
        .map(|tls| StreamTls { config: tls.config.clone(), server_name: tls.server_name.clone().or(name) });
    let peer = Address::tcp(&address.ip().to_string(), address.port());
    let mut stream = open(&peer, tls.as_ref()).await?;
    stream.write_all(page.request(&host).as_bytes()).await?;
    stream.flush().await?;
    let mut reply = Vec::new();
    let most = u64::try_from(page.most).unwrap_or(u64::MAX);
    match (&mut stream).take(most).read_to_end(&mut reply).await {
        Ok(_) => {}
        // a server need not say that its side of TLS has ended
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !reply.is_empty() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_is_reached_by_the_loopback_of_its_family() {
        for (listening, expected) in [
            ("0.0.0.0", &["127.0.0.1"][..]),
            ("::", &["127.0.0.1", "::1"]),
            ("10.0.0.7", &["10.0.0.7"]),
            ("::1", &["::1"]),
        ] {
            let reached = reachable(listening.parse().expect("an address"));
            assert_eq!(reached.iter().map(IpAddr::to_string).collect::<Vec<_>>(), expected);
        }
    }
}
