//! Sockets, which move from the thread that accepts them or makes their handshake to the one that serves them.

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
use tokio_util::either::Either;

use crate::net::Accepted;

/// An accepted connection, with TLS or without.
pub(crate) type ServedStream = Either<ServedSocket, Box<TlsStream<ServedSocket>>>;

/// A socket that can leave its runtime and join another one.
pub(crate) enum ServedSocket {
    Attached(Either<TcpStream, UnixStream>),
    /// Registered with no runtime: reading and writing fail.
    Detached(Accepted),
    /// The system did not let it move.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unknown,
}

pub(crate) fn attach(stream: &mut ServedStream) -> io::Result<()> {
    match stream {
        Either::Left(socket) => socket.attach(),
        Either::Right(stream) => stream.get_mut().0.attach(),
    }
}

// === impl ServedSocket ===

impl ServedSocket {
    pub(crate) fn detach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Broken) {
            Self::Attached(Either::Left(stream)) => Self::Detached(Accepted::Tcp(stream.into_std()?)),
            Self::Attached(Either::Right(stream)) => Self::Detached(Accepted::Unix(stream.into_std()?)),
            state => state,
        };
        Ok(())
    }

    pub(crate) fn attach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Broken) {
            Self::Detached(Accepted::Tcp(stream)) => {
                Self::Attached(Either::Left(TcpStream::from_std(stream)?))
            }
            Self::Detached(Accepted::Unix(stream)) => {
                Self::Attached(Either::Right(UnixStream::from_std(stream)?))
            }
            state => state,
        };
        Ok(())
    }

    pub(crate) const fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Attached(Either::Left(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.tcp().and_then(|stream| stream.peer_addr().ok()).map_or(Peer::Unknown, Peer::Tcp)
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
        match self.get_mut() {
            Self::Attached(stream) => Pin::new(stream).poll_read(context, into),
            Self::Detached(_) | Self::Broken => Poll::Ready(Err(detached())),
        }
    }
}

impl AsyncWrite for ServedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Attached(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Detached(_) | Self::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Attached(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Self::Detached(_) | Self::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Attached(stream) => Pin::new(stream).poll_flush(context),
            Self::Detached(_) | Self::Broken => Poll::Ready(Err(detached())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Attached(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Detached(_) | Self::Broken => Poll::Ready(Err(detached())),
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
