//! Certificates as Kubernetes mounts a Secret: visible links through `..data` to the files of a version.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

use crate::authority::Pair;

/// A mounted Secret.
pub(crate) struct Mounted {
    dir: TempDir,
    version: AtomicU32,
    has_ca: bool,
}

impl Mounted {
    /// Mounts `pair`, and the authorities of clients if there are any.
    pub(crate) fn new(pair: &Pair, client_ca: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Self { dir, version: AtomicU32::new(0), has_ca: client_ca.is_some() };
        mounted.update(pair, client_ca);
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(format!("..data/{name}"), mounted.path(name)).expect("a link");
        }
        mounted
    }

    /// Replaces the contents as the kubelet does: a new version beside the old one, and one rename.
    pub(crate) fn update(&self, pair: &Pair, client_ca: Option<&str>) {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let name = format!("..version_{version}");
        fs::create_dir(self.path(&name)).expect("a directory");
        let write = |file: &str, text: &str| {
            fs::write(self.path(&name).join(file), text).expect("a file");
        };
        write("tls.crt", &pair.certificate);
        write("tls.key", &pair.key);
        write("ca.crt", client_ca.unwrap_or_default());
        symlink(&name, self.path("..data_tmp")).expect("a link");
        fs::rename(self.path("..data_tmp"), self.path("..data")).expect("the link is replaced");
        if let Some(old) = version.checked_sub(1) {
            fs::remove_dir_all(self.path(&format!("..version_{old}"))).expect("it is removed");
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Returns the variables that use these files.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let ca = self.has_ca.then(|| ("GRPC_CLIENT_TLS_CACERT", self.text("ca.crt")));
        [
            ("GRPC_SERVER_USE_TLS", "true".to_owned()),
            ("GRPC_SERVER_TLS_CERT", self.text("tls.crt")),
            ("GRPC_SERVER_TLS_KEY", self.text("tls.key")),
        ]
        .into_iter()
        .chain(ca)
    }
}
