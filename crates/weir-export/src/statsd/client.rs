use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UdpSocket, lookup_host},
    time::timeout,
};

use super::{line::StatLine, settings::Protocol};

/// The connect timeout of envoyproxy/ratelimit.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The reference's timeout for a server that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Fits into one packet of a usual network with its headers, in bytes.
const DATAGRAM: usize = 1_432;

const MAX_DATAGRAM: usize = 65_507;

const CHUNK: usize = 64 * 1_024;

#[derive(Debug)]
pub(super) struct StatsdClient {
    host: String,
    port: u16,
    protocol: Protocol,
    socket: Option<StatsdSocket>,
}

#[derive(Debug)]
enum StatsdSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

// === impl StatsdClient ===

impl StatsdClient {
    pub(super) const fn new(host: String, port: u16, protocol: Protocol) -> Self {
        Self { host, port, protocol, socket: None }
    }

    /// Calls `sent` for each line, in order, that the system has accepted. After an error the next call reconnects.
    pub(super) async fn send(&mut self, lines: &[StatLine], sent: impl FnMut(&StatLine)) -> io::Result<()> {
        // taken, so that a cancelled send does not leave half a line on a connection that is used again
        let mut socket = match self.socket.take() {
            Some(socket) if !socket.is_closed() => socket,
            _ => self.connect().await?,
        };
        match &mut socket {
            StatsdSocket::Tcp(stream) => write_all(stream, lines, sent).await?,
            StatsdSocket::Udp(socket) => send_all(socket, lines, sent).await?,
        }
        self.socket = Some(socket);
        Ok(())
    }

    async fn connect(&self) -> io::Result<StatsdSocket> {
        let address = (self.host.as_str(), self.port);
        let connect = async {
            match self.protocol {
                Protocol::Tcp => TcpStream::connect(address).await.map(StatsdSocket::Tcp),
                Protocol::Udp => connect_udp(address).await.map(StatsdSocket::Udp),
            }
        };
        io_timeout(CONNECT_TIMEOUT, connect).await
    }
}

impl fmt::Display for StatsdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

// === impl StatsdSocket ===

impl StatsdSocket {
    /// Whether the server has closed the connection. Writing then succeeds, but the data is lost.
    fn is_closed(&self) -> bool {
        let Self::Tcp(stream) = self else {
            return false;
        };
        let mut received = [0; 512];
        loop {
            match stream.try_read(&mut received) {
                Ok(0) => return true,
                // statsd servers do not reply; discards anything that arrives
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}

async fn connect_udp(address: (&str, u16)) -> io::Result<UdpSocket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in lookup_host(address).await? {
        let any = match address {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        match socket.connect(address).await {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn write_all(
    stream: &mut TcpStream,
    mut lines: &[StatLine],
    mut sent: impl FnMut(&StatLine),
) -> io::Result<()> {
    while !lines.is_empty() {
        let (chunk, count) = gather(lines, CHUNK);
        let (mut written, mut whole, mut whole_bytes) = (0, 0, 0);
        while written < chunk.len() {
            written += io_timeout(WRITE_TIMEOUT, stream.write(&chunk[written..])).await?;
            // line by line: if the connection breaks now, only the lines that were written whole count as sent
            while whole < count && whole_bytes + lines[whole].text.len() <= written {
                whole_bytes += lines[whole].text.len();
                sent(&lines[whole]);
                whole += 1;
            }
        }
        lines = &lines[count..];
    }
    Ok(())
}

async fn send_all(
    socket: &UdpSocket,
    mut lines: &[StatLine],
    mut sent: impl FnMut(&StatLine),
) -> io::Result<()> {
    while !lines.is_empty() {
        let (datagram, count) = gather(lines, DATAGRAM);
        // a line that exceeds every datagram can never arrive, and must not block the others
        if datagram.len() <= MAX_DATAGRAM {
            io_timeout(WRITE_TIMEOUT, socket.send(&datagram)).await?;
        }
        lines[..count].iter().for_each(&mut sent);
        lines = &lines[count..];
    }
    Ok(())
}

/// The first lines that fit into `size` bytes, but at least one.
fn gather(lines: &[StatLine], size: usize) -> (Vec<u8>, usize) {
    let mut bytes = Vec::with_capacity(size);
    let mut count = 0;
    for line in lines {
        if count > 0 && bytes.len() + line.text.len() > size {
            break;
        }
        bytes.extend_from_slice(line.text.as_bytes());
        count += 1;
    }
    (bytes, count)
}

async fn io_timeout<T>(limit: Duration, act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, act).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
