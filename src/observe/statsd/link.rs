//! The way to the statsd server.

use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpStream, UdpSocket, lookup_host},
    time::timeout,
};

use super::{Protocol, line::Line};

/// As long as the reference waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// As long as the reference waits for a server that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a datagram that fit a usual network's packets, with room for the headers.
const DATAGRAM: usize = 1_432;

/// Bytes that a datagram can have at all.
const MAX_DATAGRAM: usize = 65_507;

/// Bytes that are handed to a connection at a time.
const CHUNK: usize = 64 * 1_024;

/// A way to a server that comes and goes.
#[derive(Debug)]
pub(super) struct Link {
    host: String,
    port: u16,
    protocol: Protocol,
    open: Option<Socket>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

// === impl Link ===

impl Link {
    pub(super) const fn new(host: String, port: u16, protocol: Protocol) -> Self {
        Self { host, port, protocol, open: None }
    }

    /// Sends `lines` in their order, connecting first if need be, and calls `sent` for each that is on its way. After an
    /// error the next call starts with a new connection.
    pub(super) async fn send(&mut self, lines: &[Line], sent: impl FnMut(&Line)) -> io::Result<()> {
        // taken out, so that a send that is given up half-way does not leave half a line behind on the connection
        let socket = match self.open.take() {
            Some(socket) if !socket.is_closed() => socket,
            _ => self.connect().await?,
        };
        match &socket {
            Socket::Tcp(stream) => write_all(stream, lines, sent).await?,
            Socket::Udp(socket) => send_all(socket, lines, sent).await?,
        }
        self.open = Some(socket);
        Ok(())
    }

    async fn connect(&self) -> io::Result<Socket> {
        let address = (self.host.as_str(), self.port);
        let connect = async {
            match self.protocol {
                Protocol::Tcp => TcpStream::connect(address).await.map(Socket::Tcp),
                Protocol::Udp => connect_udp(address).await.map(Socket::Udp),
            }
        };
        within(CONNECT_TIMEOUT, connect).await
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

// === impl Socket ===

impl Socket {
    /// Whether the server has closed the connection. What is written to one of those seems to be sent, and is lost.
    fn is_closed(&self) -> bool {
        let Self::Tcp(stream) = self else {
            return false;
        };
        let mut answer = [0; 512];
        loop {
            match stream.try_read(&mut answer) {
                Ok(0) => return true,
                // statsd servers have nothing to say
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

async fn write_all(stream: &TcpStream, lines: &[Line], mut sent: impl FnMut(&Line)) -> io::Result<()> {
    let mut lines = lines;
    while !lines.is_empty() {
        let (chunk, count) = gather(lines, CHUNK);
        let (mut written, mut told, mut told_bytes) = (0, 0, 0);
        while written < chunk.len() {
            written += within(WRITE_TIMEOUT, write_some(stream, &chunk[written..])).await?;
            // line by line: if the connection breaks now, what is whole has arrived and what is not has not
            while told < count && told_bytes + lines[told].text.len() <= written {
                told_bytes += lines[told].text.len();
                sent(&lines[told]);
                told += 1;
            }
        }
        lines = &lines[count..];
    }
    Ok(())
}

async fn write_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

async fn send_all(socket: &UdpSocket, lines: &[Line], mut sent: impl FnMut(&Line)) -> io::Result<()> {
    let mut lines = lines;
    while !lines.is_empty() {
        let (datagram, count) = gather(lines, DATAGRAM);
        // one that no datagram can hold never arrives, and must not hold up the others
        if datagram.len() <= MAX_DATAGRAM {
            within(WRITE_TIMEOUT, socket.send(&datagram)).await?;
        }
        lines[..count].iter().for_each(&mut sent);
        lines = &lines[count..];
    }
    Ok(())
}

/// The first lines, as many as fit into `size` bytes but at least one, and how many they are.
fn gather(lines: &[Line], size: usize) -> (Vec<u8>, usize) {
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

async fn within<T>(limit: Duration, act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, act).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
