//! The gRPC connections that weir opens itself: `weir call`, and the clients of an xDS control plane and of a collector
//! of traces.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, ReadBuf, join, split},
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::stream::{StreamError, open};
pub use crate::{Address, stream::StreamTls};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}{hint}", hint = hint(.0))]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Http(#[from] tonic::transport::Error),
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// The server accepted the connection but sent nothing in time, although HTTP/2 begins with settings.
    #[error("the server has accepted the connection, but sent nothing within {0:?}; is it a gRPC server?")]
    Silent(Duration),
    #[error("the server {0}")]
    NotGrpc(Spoken),
}

/// What a server that does not speak HTTP/2 without TLS has said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    Http1,
    Tls,
    /// Nothing: it has closed the connection.
    Nothing,
}

fn hint(error: &StreamError) -> &'static str {
    use io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
    match error {
        StreamError::Name(_) => "; set the name of the server",
        StreamError::Tls(error) if matches!(error.kind(), ConnectionReset | UnexpectedEof) => {
            "; the server may not speak TLS, then write http://host:port"
        }
        StreamError::Tls(error)
            if error.kind() == InvalidData && error.to_string().contains("corrupt message") =>
        {
            "; the server does not speak TLS, so write http://host:port"
        }
        _ => "",
    }
}

/// Opens a connection to `address` within `limit`, encrypted with `tls` if given, and waits until the server has begun
/// to speak. It is not opened again when it breaks, and sends no HTTP/2 pings: grpc-go allows one in five minutes.
pub async fn connect(
    address: &Address,
    tls: Option<&StreamTls>,
    limit: Duration,
) -> Result<Channel, ConnectError> {
    let end = Instant::now() + limit;
    let connecting = async {
        let (reader, writer) = split(open(address, tls).await?);
        let (heard, receiver) = oneshot::channel();
        let socket = join(FirstRead { reader, heard: Some(heard) }, writer);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri = format!("{scheme}://{}", address.authority());
        let uri = Uri::try_from(uri).map_err(|error| StreamError::Socket(io::Error::other(error)))?;
        // tonic would connect again with the same certificates; the caller does so with new ones
        let mut socket = Some(TokioIo::new(socket));
        let connector = service_fn(move |_: Uri| {
            let socket = socket.take().ok_or_else(|| io::Error::other("the connection is closed"));
            async move { socket }
        });
        Ok((Endpoint::from(uri).connect_with_connector(connector).await?, receiver))
    };
    let connected = timeout_at(end, connecting).await;
    let (channel, heard) = connected.unwrap_or(Err(ConnectError::TimedOut(limit)))?;
    match timeout_at(end, heard).await.map_err(|_| ConnectError::Silent(limit))? {
        Ok(Some(spoken)) => Err(ConnectError::NotGrpc(spoken)),
        // without a first message the connection has ended, which the first call reports
        Ok(None) | Err(_) => Ok(channel),
    }
}

/// The half of a socket that tells when its peer has sent something, or closed it.
struct FirstRead<R> {
    reader: R,
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

// === impl FirstRead ===

impl<R: AsyncRead + Unpin> AsyncRead for FirstRead<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.reader).poll_read(context, buffer));
        if let Some(heard) = self.heard.take() {
            let first =
                if read.is_ok() { Spoken::of(&buffer.filled()[begun..]) } else { Some(Spoken::Nothing) };
            // an error means that nobody waits any more
            let _ = heard.send(first);
        }
        Poll::Ready(read)
    }
}
