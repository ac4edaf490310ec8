//! The stream of a connection: TCP, TLS or a unix socket.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::Address;

/// A TCP, TLS or unix stream.
pub(in crate::store) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to `address`, with TLS if there is a configuration. A unix socket is never encrypted.
pub(in crate::store) async fn connect_stream(
    address: &Address,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Box<dyn Stream>, String> {
    let text = |error: io::Error| error.to_string();
    let (host, stream) = match address {
        Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await.map_err(text)?)),
        Address::Tcp(host, port) => (host, TcpStream::connect((&**host, *port)).await.map_err(text)?),
    };
    // a pipeline is written at once, so delaying it to fill a segment gains nothing
    stream.set_nodelay(true).map_err(text)?;
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| format!("TLS: {error}"))?))
}
