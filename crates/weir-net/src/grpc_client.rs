//! The gRPC connections that weir opens itself: `weir call`, and the clients of an xDS control plane and of a collector
//! of traces.

use std::{
    fmt, io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// The idle time after which the system checks whether a TCP peer still exists, and the time between two checks. HTTP/2
/// pings would end the connection: grpc-go allows one in five minutes.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// How long a peer may leave data unacknowledged. The system's own limit is 15 minutes, without keep-alives.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// The address of a gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host name or IP address, and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The TLS of one connection.
#[derive(Clone, Debug)]
pub struct TargetTls {
    /// The certificates.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have, which SNI sends; the target's host by default.
    pub server_name: Option<ServerName<'static>>,
}

/// Why a server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no connection.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The TLS handshake failed.
    #[error("TLS: {0}{hint}", hint = no_tls(.0))]
    Tls(io::Error),
    /// The target's host is no name that a certificate can have.
    #[error("'{0}' is no name that a certificate can have; set the name of the server")]
    Name(String),
    /// The HTTP/2 connection cannot be opened.
    #[error(transparent)]
    Http(#[from] tonic::transport::Error),
    /// There was no connection in time.
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// The server accepted the connection but sent nothing in time, although HTTP/2 begins with settings.
    #[error("the server has accepted the connection, but sent nothing within {0:?}; is it a gRPC server?")]
    Silent(Duration),
    /// The server has answered in another protocol.
    #[error("the server {0}")]
    NotGrpc(Spoken),
}

/// What a server that does not speak HTTP/2 without TLS has said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// A response of HTTP/1.
    Http1,
    /// A record of TLS.
    Tls,
    /// Nothing: it has closed the connection.
    Nothing,
}

/// A hint for handshakes that fail as if the server did not speak TLS.
fn no_tls(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            "; the server may not speak TLS, then write http://host:port"
        }
        io::ErrorKind::InvalidData if error.to_string().contains("corrupt message") => {
            "; the server does not speak TLS, so write http://host:port"
        }
        _ => "",
    }
}

/// An open socket, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a connection to `target` within `limit`, encrypted with `tls` if given, and waits until the server has begun
/// to speak. It is not opened again when it breaks, and sends no HTTP/2 pings.
///
/// # Errors
///
/// [`ConnectError`].
pub async fn connect(
    target: &Target,
    tls: Option<&TargetTls>,
    limit: Duration,
) -> Result<Channel, ConnectError> {
    let end = Instant::now() + limit;
    let connecting = async {
        let (socket, heard) = ListeningStream::new(open(target, tls).await?);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri = format!("{scheme}://{}", target.authority());
        let uri = Uri::try_from(uri).map_err(|error| io::Error::other(error.to_string()))?;
        // tonic would connect again with the same certificates; the caller does so with new ones
        let mut socket = Some(TokioIo::new(socket));
        let connector = service_fn(move |_: Uri| {
            let socket = socket.take().ok_or_else(|| io::Error::other("the connection is closed"));
            async move { socket }
        });
        Ok((Endpoint::from(uri).connect_with_connector(connector).await?, heard))
    };
    let connected = timeout_at(end, connecting).await;
    let (channel, heard) = connected.unwrap_or(Err(ConnectError::TimedOut(limit)))?;
    match timeout_at(end, heard).await.map_err(|_| ConnectError::Silent(limit))? {
        Ok(Some(spoken)) => Err(ConnectError::NotGrpc(spoken)),
        // without a first message the connection has ended, which the first call reports
        Ok(None) | Err(_) => Ok(channel),
    }
}

/// A socket that tells when its peer has sent something, or closed it.
struct ListeningStream {
    stream: Box<dyn Stream>,
    heard: Option<oneshot::Sender<Option<Spoken>>>,
}

// === impl Spoken ===

impl Spoken {
    /// `first` has the first bytes of a server. None if they may be HTTP/2.
    fn of(first: &[u8]) -> Option<Self> {
        match first {
            [] => Some(Self::Nothing),
            [b'H', b'T', b'T', b'P', ..] => Some(Self::Http1),
            // an alert or a handshake, of version 3
            [0x15 | 0x16, 3, ..] => Some(Self::Tls),
            _ => None,
        }
    }
}

/// Continues a sentence about the server.
impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "speaks HTTP/1, so it is not a gRPC port; weir's is 8081 by default, and 8080 and 6070 are HTTP ports",
            Self::Tls => "speaks TLS; write https://host:port",
            Self::Nothing => {
                "has closed the connection without an answer; if it speaks TLS, write https://host:port, and check that this is its \
                 gRPC port (8081 by default)"
            }
        })
    }
}

// === impl ListeningStream ===

impl ListeningStream {
    fn new(stream: Box<dyn Stream>) -> (Self, oneshot::Receiver<Option<Spoken>>) {
        let (heard, receiver) = oneshot::channel();
        (Self { stream, heard: Some(heard) }, receiver)
    }
}

impl AsyncRead for ListeningStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(read) = &read
            && let Some(heard) = self.heard.take()
        {
            let first =
                if read.is_ok() { Spoken::of(&buffer.filled()[begun..]) } else { Some(Spoken::Nothing) };
            // an error means that nobody waits any more
            let _ = heard.send(first);
        }
        read
    }
}

impl AsyncWrite for ListeningStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

// === impl Target ===

impl Target {
    /// Parses `host:port`, `[::1]:port`, `unix:path` or `unix:///path`, and gRPC's `dns:///host:port` and
    /// `passthrough:///host:port`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return (!path.is_empty()).then(|| Self::Unix(path.into()));
        }
        let text = ["dns:///", "dns:", "passthrough:///", "passthrough:", "ipv4:", "ipv6:"]
            .into_iter()
            .find_map(|scheme| text.strip_prefix(scheme))
            .unwrap_or(text);
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let plain = !host.is_empty()
            && (bracketed.is_some() || !host.contains(':'))
            && !host.contains(|c: char| c.is_whitespace() || c.is_control() || "/@,?#[]".contains(c));
        let port = port.parse().ok().filter(|port| *port > 0)?;
        plain.then(|| Self::Tcp(host.to_owned(), port))
    }

    fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => "localhost",
        }
    }

    /// The host and port of requests.
    #[must_use]
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp(host, port) => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// Opens a connection.
///
/// # Errors
///
/// [`ConnectError`], if there is none or the TLS handshake fails.
pub async fn open(target: &Target, tls: Option<&TargetTls>) -> Result<Box<dyn Stream>, ConnectError> {
    match target {
        Target::Unix(path) => secured(UnixStream::connect(path).await?, target, tls).await,
        Target::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            let (idle, interval) = KEEP_ALIVE;
            let keep_alive = TcpKeepalive::new().with_time(idle).with_interval(interval);
            let socket = SockRef::from(&stream);
            socket.set_tcp_keepalive(&keep_alive)?;
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
            secured(stream, target, tls).await
        }
    }
}

async fn secured(
    stream: impl Stream + 'static,
    target: &Target,
    tls: Option<&TargetTls>,
) -> Result<Box<dyn Stream>, ConnectError> {
    let Some(TargetTls { config, server_name }) = tls else { return Ok(Box::new(stream)) };
    let name = match server_name {
        Some(name) => name.clone(),
        None => ServerName::try_from(target.host().to_owned())
            .map_err(|_| ConnectError::Name(target.host().to_owned()))?,
    };
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(Box::new(connector.connect(name, stream).await.map_err(ConnectError::Tls)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_the_syntax_of_grpc() {
        let tcp = |host: &str, port| Some(Target::Tcp(host.to_owned(), port));
        for (text, target) in [
            ("localhost:18000", tcp("localhost", 18000)),
            ("dns:///envoy-gateway:18001", tcp("envoy-gateway", 18001)),
            ("passthrough:///10.0.0.1:1", tcp("10.0.0.1", 1)),
            ("[::1]:80", tcp("::1", 80)),
            ("unix:/run/weir.sock", Some(Target::Unix("/run/weir.sock".into()))),
            ("unix:///run/weir.sock", Some(Target::Unix("/run/weir.sock".into()))),
            ("unix:weir.sock", Some(Target::Unix("weir.sock".into()))),
            ("localhost", None),
            ("::1:80", None),
            ("http://a:80", None),
            (":80", None),
            ("a:0", None),
            ("a b:80", None),
            ("unix:", None),
        ] {
            assert_eq!(Target::parse(text), target, "{text}");
        }
    }
}
