use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// The file of a unix socket, removed on drop.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode: another process may have replaced the file with its own socket.
    identity: (u64, u64),
}

/// Binds a unix socket at `path`, replacing a socket that no process listens on.
pub(super) async fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path).await?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    Ok((listener, file))
}

/// Removes a socket that nobody listens on. Fails if a process does, or if the file is not a socket.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

// === impl SocketFile ===

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // if this fails, the next bind finds the file stale and removes it
            let _ = fs::remove_file(&self.path);
        }
    }
}
