//! Where connections come from: a port or a unix socket.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::worker::Accepted;
use crate::settings::{Address, GrpcAddress};

/// A socket that listens.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix { listener: UnixListener, file: SocketFile },
}

/// The file of a unix socket, taken away with the socket.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: another process may have put a socket of its own in the place of ours.
    identity: (u64, u64),
}

/// Where a socket listens in truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundTo {
    /// On this address and port.
    Tcp(SocketAddr),
    /// On the unix socket of this path.
    Unix(PathBuf),
}

/// Why nothing can listen there.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// Where it was tried.
    pub address: String,
    /// What the system said.
    pub source: io::Error,
}

// === impl Listener ===

impl Listener {
    /// Listens on `address`.
    pub async fn bind(address: &GrpcAddress) -> Result<Self, BindError> {
        match address {
            GrpcAddress::Tcp(address) => Ok(Self(Kind::Tcp(bind_tcp(*address).await?))),
            GrpcAddress::Unix(path) => {
                let failed = |source| BindError { address: format!("unix:{}", path.display()), source };
                bind_unix(path).await.map(Self).map_err(failed)
            }
        }
    }

    /// Where it listens in truth: the port that was free, where any was asked for.
    pub fn address(&self) -> io::Result<BoundTo> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().map(BoundTo::Tcp),
            Kind::Unix { file, .. } => Ok(BoundTo::Unix(file.path.clone())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // an answer is one small packet, which must not wait for more to send
                stream.set_nodelay(true)?;
                stream.into_std().map(Accepted::Tcp)
            }
            Kind::Unix { listener, .. } => listener.accept().await?.0.into_std().map(Accepted::Unix),
        }
    }
}

/// A TCP listener on `address`.
pub(crate) async fn bind_tcp(address: Address) -> Result<TcpListener, BindError> {
    let address = SocketAddr::from((address.host, address.port));
    TcpListener::bind(address).await.map_err(|source| BindError { address: address.to_string(), source })
}

async fn bind_unix(path: &Path) -> io::Result<Kind> {
    remove_stale(path).await?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    Ok(Kind::Unix { listener, file })
}

/// Removes the socket that a process has left behind which is no more. One that somebody still answers on stays, and so
/// does what is no socket.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // at worst the next one finds it stale, and removes it
            let _ = fs::remove_file(&self.path);
        }
    }
}

// === impl BoundTo ===

/// As a client would write it after `--address`: `127.0.0.1:8081`, or `unix:/run/weir.sock`.
impl fmt::Display for BoundTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
