use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, UnixListener};

use super::{
    bind::{BindError, BoundAddress, bind_tcp},
    unix::{self, SocketFile},
};

/// Idle time before keep-alives, as in Redis, and between them: a vanished client takes up a connection.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_mins(5), Duration::from_secs(30));

#[derive(Debug)]
pub struct Listener(ListenerKind);

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Unix { listener: UnixListener, file: SocketFile },
}

/// An accepted connection, not registered with any runtime yet: the thread that serves it does that.
#[derive(Debug)]
pub enum Accepted {
    /// A TCP connection, without Nagle's algorithm.
    Tcp(TcpStream),
    Unix(UnixStream),
}

// === impl Listener ===

impl Listener {
    pub async fn tcp(address: SocketAddr) -> Result<Self, BindError> {
        Ok(Self(ListenerKind::Tcp(bind_tcp(address).await?)))
    }

    /// Listens on a unix socket, and removes its file on drop. Replaces a socket that no process listens on.
    pub async fn unix(path: &Path) -> Result<Self, BindError> {
        let failed = |source| BindError { address: format!("unix:{}", path.display()), source };
        let (listener, file) = unix::bind(path).await.map_err(failed)?;
        Ok(Self(ListenerKind::Unix { listener, file }))
    }

    /// Returns the bound address, with the actual port if any free port was requested.
    pub fn address(&self) -> io::Result<BoundAddress> {
        match &self.0 {
            ListenerKind::Tcp(listener) => listener.local_addr().map(BoundAddress::Tcp),
            ListenerKind::Unix { file, .. } => Ok(BoundAddress::Unix(file.path().to_owned())),
        }
    }

    /// Waits for the next connection. Dropping the future loses none.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.0 {
            ListenerKind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // a response is one small packet, which must not wait for more data
                stream.set_nodelay(true)?;
                let (idle, interval) = KEEP_ALIVE;
                let keep_alive = TcpKeepalive::new().with_time(idle).with_interval(interval);
                SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
                stream.into_std().map(Accepted::Tcp)
            }
            ListenerKind::Unix { listener, .. } => listener.accept().await?.0.into_std().map(Accepted::Unix),
        }
    }
}
