//! The stream of a connection: TCP, TLS or a unix socket.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    time,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::{Address, keep_alive::keep_alive};

/// How long an address may be silent before the next one is tried, too: as long as RFC 8305 recommends.
const NEXT_AFTER: Duration = Duration::from_millis(250);

pub(crate) trait RemoteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> RemoteStream for S {}

/// A unix socket is never encrypted.
pub(crate) async fn connect_stream(
    address: &Address,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Box<dyn RemoteStream>, String> {
    let text = |error: io::Error| error.to_string();
    let (host, stream) = match address {
        Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await.map_err(text)?)),
        Address::Tcp(host, port) => (host, connect_host(host, *port).await.map_err(text)?),
    };
    // a pipeline is written at once, so delaying it to fill a segment gains nothing
    stream.set_nodelay(true).map_err(text)?;
    keep_alive(&stream).map_err(text)?;
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| format!("TLS: {error}"))?))
}

async fn connect_host(host: &str, port: u16) -> io::Result<TcpStream> {
    connect_first(lookup_host((host, port)).await?).await
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
}
