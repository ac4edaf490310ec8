//! `weir health`: asks a running weir for its health, for the health check of a container without a shell.

use std::{
    io::{self, Read as _, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use clap::Args;

use crate::settings::{self, Environment, SettingErrors};

/// The most bytes of a response that are read.
const MAX_RESPONSE: usize = 64 * 1024;

/// The arguments of `weir health`.
#[derive(Args, Clone, Debug)]
pub struct HealthCheck {
    /// Address of the HTTP server, IP:PORT [default: this host and PORT, or 8080]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<SocketAddr>,
    /// How long to wait for the reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

/// The reason why the health is unknown.
#[derive(Debug, thiserror::Error)]
pub enum HealthCheckError {
    /// The variables of the server's address are invalid.
    #[error(transparent)]
    Settings(#[from] SettingErrors),
    /// The server does not reply.
    #[error("no reply from {address}")]
    NoReply {
        /// Its address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The result cannot be printed.
    #[error("cannot print the result")]
    Print(#[source] io::Error),
}

/// Asks the server for its health, prints its reply to `out`, and returns whether it is healthy.
pub fn health(
    check: &HealthCheck,
    environment: &dyn Environment,
    out: &mut impl Write,
) -> Result<bool, HealthCheckError> {
    let addresses = if let Some(address) = check.address {
        vec![address]
    } else {
        let listening = settings::http_address(environment)?;
        let to_address = |host| SocketAddr::new(host, listening.port);
        reachable(listening.host).into_iter().map(to_address).collect()
    };
    let reply = get_first(&addresses, Duration::from_millis(check.timeout))?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    writeln!(out, "{}", body.trim()).map_err(HealthCheckError::Print)?;
    Ok(head.split(' ').nth(1) == Some("200"))
}

/// Returns the addresses of this host at which a server may be that listens on `host`.
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

/// Gets the health page from the first address that replies, or returns the error of the first one.
fn get_first(addresses: &[SocketAddr], timeout: Duration) -> Result<String, HealthCheckError> {
    let mut failed = None;
    for &address in addresses {
        match get(address, timeout) {
            Ok(reply) => return Ok(reply),
            Err(source) => {
                failed.get_or_insert(HealthCheckError::NoReply { address, source });
            }
        }
    }
    Err(failed.unwrap_or_else(|| unreachable!("there is an address")))
}

/// Gets the health page. The response is not chunked, and ends with the connection.
fn get(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let left = || -> io::Result<Duration> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    };
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET /healthcheck HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
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
