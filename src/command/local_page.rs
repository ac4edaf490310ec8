//! Reads a page of a running weir on this host, without a client of HTTP: for commands in a container without a shell.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    time::{Duration, Instant},
};

use super::error::{CommandResult, failed};
use crate::settings::{ListenAddress, SettingErrors};

const MAX_RESPONSE: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPage<'a> {
    pub(super) path: &'a str,
    /// The port that has it, in words.
    pub(super) port: &'static str,
    pub(super) accept: &'static str,
}

pub(super) fn parse_address(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("write it as HOST:PORT, such as localhost:8080 or [::1]:8080"),
    }
}

/// Asks `address`, or else the first reachable one of `listening`. Returns the head and the body.
pub(super) fn get_page(
    page: LocalPage<'_>,
    address: Option<&str>,
    listening: impl FnOnce() -> Result<ListenAddress, SettingErrors>,
    timeout: Duration,
) -> CommandResult<(String, String)> {
    let addresses: Vec<SocketAddr> = if let Some(address) = address {
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
    let (address, reply) = get_first(page, &addresses, timeout)?;
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

fn get_first(
    page: LocalPage<'_>,
    addresses: &[SocketAddr],
    timeout: Duration,
) -> CommandResult<(SocketAddr, String)> {
    let mut first = None;
    for &address in addresses {
        match get(page, address, timeout) {
            Ok(reply) => return Ok((address, reply)),
            Err(error) => first = first.or(Some(failed(format!("no reply from {address}"))(error))),
        }
    }
    Err(first.unwrap_or_else(|| "there is no address".into()))
}

/// The response is not chunked, and ends with the connection.
fn get(
    LocalPage { path, accept, .. }: LocalPage<'_>,
    address: SocketAddr,
    timeout: Duration,
) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let left = || -> io::Result<Duration> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    };
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    )?;
    let mut reply = Vec::new();
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let mut part = [0; 1024];
        let read = stream.read(&mut part).map_err(|error| match error.kind() {
            // what a read timeout is called on Linux
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        reply.extend_from_slice(&part[..read]);
        if read == 0 || reply.len() > MAX_RESPONSE {
            return Ok(String::from_utf8_lossy(&reply).into_owned());
        }
    }
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
