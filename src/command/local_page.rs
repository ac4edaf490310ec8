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

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

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
    /// A further header, and its value.
    pub(super) header: Option<(&'static str, &'a str)>,
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
        Self { path, port, accept, body: None, token: None, header: None, most: MAX_TEXT }
    }

    fn request(&self, host: &str) -> String {
        let Self { path, accept, body, token, header, .. } = self;
        let method = if body.is_some() { "POST" } else { "GET" };
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let header = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
        let length =
            body.map(|body| format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        format!(
            // older than chunks, so that the answer has none
            "{method} {path} HTTP/1.0\r\nhost: {host}\r\naccept: {accept}\r\n{token}{header}{}connection: close\r\n\r\n{}",
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
    let (head, body) = get_bytes(page, place, listening)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

/// The same for what is not text.
pub(super) fn get_bytes(
    page: LocalPage<'_>,
    place: PagePlace<'_>,
    listening: impl FnOnce() -> Result<ListenAddress, SettingErrors>,
) -> CommandResult<(String, Vec<u8>)> {
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
    let end = reply.windows(END.len()).position(|bytes| bytes == END).unwrap_or(reply.len());
    let head = String::from_utf8_lossy(&reply[..end]).into_owned();
    let body = reply.get(end + END.len()..).unwrap_or_default().to_vec();
    if status(&head) == Some("404") && body.trim_ascii().is_empty() {
        let LocalPage { path, port, .. } = page;
        return Err(format!("there is no page {path} at {address}: name weir's {port}").into());
    }
    Ok((head, body))
}

pub(super) fn is_ok(head: &str) -> bool {
    status(head) == Some("200")
}

fn status(head: &str) -> Option<&str> {
    head.split(' ').nth(1)
}

/// Addresses of this host at which a server may be that listens on `host`.
fn reachable(host: IpAddr) -> Vec<IpAddr> {
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
) -> CommandResult<(SocketAddr, Vec<u8>)> {
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
async fn get(page: LocalPage<'_>, place: PagePlace<'_>, address: SocketAddr) -> CommandResult<Vec<u8>> {
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
    Ok(reply)
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
