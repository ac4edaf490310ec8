//! Sockets under TLS, which move from the thread of the handshake to the one that serves the connection.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::net::Accepted;

pub(crate) enum Incoming {
    Plain(Accepted),
    /// After the TLS handshake, detached.
    Secured(Box<TlsStream<ServedSocket>>),
}

/// A socket that can leave its runtime and join another one.
pub(crate) struct ServedSocket(SocketState);

enum SocketState {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Registered with no runtime.
    Detached(Accepted),
    /// The system did not let it move.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unknown,
}

// === impl ServedSocket ===

impl ServedSocket {
    pub(crate) fn new(accepted: Accepted) -> io::Result<Self> {
        Ok(Self(match accepted {
            Accepted::Tcp(stream) => SocketState::Tcp(TcpStream::from_std(stream)?),
            Accepted::Unix(stream) => SocketState::Unix(UnixStream::from_std(stream)?),
        }))
    }

    /// Leaves its runtime. Reading and writing fail until [`ServedSocket::attach`].
    pub(crate) fn detach(&mut self) -> io::Result<()> {
        self.0 = match std::mem::replace(&mut self.0, SocketState::Broken) {
            SocketState::Tcp(stream) => SocketState::Detached(Accepted::Tcp(stream.into_std()?)),
            SocketState::Unix(stream) => SocketState::Detached(Accepted::Unix(stream.into_std()?)),
            state => state,
        };
        Ok(())
    }

    pub(crate) fn attach(&mut self) -> io::Result<()> {
        if let SocketState::Detached(accepted) = std::mem::replace(&mut self.0, SocketState::Broken) {
            *self = Self::new(accepted)?;
        }
        Ok(())
    }

    pub(crate) fn peer(&self) -> Peer {
        match &self.0 {
            SocketState::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp),
            _ => Peer::Unknown,
        }
    }
}

fn detached() -> io::Error {
    io::Error::other("the socket belongs to no thread")
}

impl AsyncRead for ServedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            SocketState::Unix(stream) => Pin::new(stream).poll_read(context, into),
            SocketState::Detached(_) | SocketState::Broken => Poll::Ready(Err(detached())),
        }
    }
}

impl AsyncWrite for ServedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            SocketState::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            SocketState::Detached(_) | SocketState::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            SocketState::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            SocketState::Detached(_) | SocketState::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_flush(context),
            SocketState::Unix(stream) => Pin::new(stream).poll_flush(context),
            SocketState::Detached(_) | SocketState::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            SocketState::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            SocketState::Detached(_) | SocketState::Broken => Poll::Ready(Err(detached())),
        }
    }
}

// === impl Peer ===

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unknown => f.write_str("unix socket"),
        }
    }
}
