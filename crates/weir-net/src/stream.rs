//! The stream of a connection: TCP, a unix socket, or TLS over either.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    time,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::Address;

/// How long an address may be silent before the next one is tried, too: as long as RFC 8305 recommends.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// The idle time after which the system checks whether a TCP peer still exists, and the time between two checks.
/// Firewalls and load balancers forget connections that are idle for minutes. Checks prevent it, or tell of it early.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// How long a peer may leave data unacknowledged. The system's own limit is 15 minutes, without keep-alives.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

#[derive(Clone, Debug)]
pub struct StreamTls {
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have, which SNI sends; the host of the address by default.
    pub server_name: Option<ServerName<'static>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("'{0}' is no name that a certificate can have")]
    Name(String),
}

/// Opens a stream to `address`, encrypted with `tls` if given. The system notices a TCP peer that is gone, also while
/// nothing is sent.
pub async fn open(address: &Address, tls: Option<&StreamTls>) -> Result<Box<dyn Stream>, StreamError> {
    match address {
        Address::Unix(path) => secured(UnixStream::connect(path).await?, address, tls).await,
        Address::Tcp(host, port) => {
            let stream = connect_first(lookup_host((&**host, *port)).await?).await?;
            // what is written is complete, so delaying it to fill a segment gains nothing
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            secured(stream, address, tls).await
        }
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval) = KEEP_ALIVE;
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))
}

async fn secured(
    stream: impl Stream + 'static,
    address: &Address,
    tls: Option<&StreamTls>,
) -> Result<Box<dyn Stream>, StreamError> {
    let Some(StreamTls { config, server_name }) = tls else { return Ok(Box::new(stream)) };
    let host = address.host();
    let name = server_name.clone().map_or_else(|| ServerName::try_from(host.to_owned()), Ok);
    let name = name.map_err(|_| StreamError::Name(host.to_owned()))?;
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(Box::new(connector.connect(name, stream).await.map_err(StreamError::Tls)?))
}

/// A silent address delays the next one only a little: a server that is gone may never reject anything.
async fn connect_first(mut addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = FuturesUnordered::new();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        let next = addresses.next();
        let is_last = next.is_none();
        attempts.extend(next.map(TcpStream::connect));
        let patience = if is_last { Duration::MAX } else { NEXT_AFTER };
        match time::timeout(patience, attempts.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => last_error = error,
            // every address has failed
            Ok(None) => return Err(last_error),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// Returns the address of a listener that drops connections, because its backlog is full, and what fills it.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(ANY_PORT).expect("a free port");
        let listener = socket.listen(0).expect("it is bound");
        let address = listener.local_addr().expect("its address");
        let mut waiting = Vec::new();
        while let Ok(stream) = time::timeout(NEXT_AFTER, TcpStream::connect(address)).await {
            waiting.push(stream.expect("it is in the backlog"));
        }
        (address, listener, waiting)
    }

    #[tokio::test]
    async fn a_silent_address_does_not_hide_the_next_one() {
        let (silent, _listener, _waiting) = silent().await;
        let healthy = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let healthy = healthy.local_addr().expect("its address");
        for addresses in [vec![silent, healthy], vec![silent, silent, healthy, silent]] {
            let connecting = connect_first(addresses.into_iter());
            let stream = time::timeout(Duration::from_secs(20), connecting).await.expect("it ends");
            assert_eq!(stream.and_then(|stream| stream.peer_addr()).ok(), Some(healthy));
        }
    }

    #[tokio::test]
    async fn addresses_that_refuse_are_tried_at_once() {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let refusing = listener.local_addr().expect("its address");
        drop(listener);
        let error = connect_first([refusing; 3].into_iter()).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_first(std::iter::empty()).await.expect_err("there is no address");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_system_checks_idle_connections() {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let stream =
            TcpStream::connect(listener.local_addr().expect("its address")).await.expect("it listens");
        keep_alive(&stream).expect("it is a TCP socket");
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("it is a socket"));
        let times = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
        assert_eq!((times.0.ok(), times.1.ok()), (Some(KEEP_ALIVE.0), Some(KEEP_ALIVE.1)));
    }
}
