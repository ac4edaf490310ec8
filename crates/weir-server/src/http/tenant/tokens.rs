//! The files of keys and of revoked tokens, read again when they change.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use futures_util::{Stream, StreamExt as _};
use tokio::task::spawn_blocking;

use super::token::{TenantClaims, TenantTokenError, TokenKeys};
use crate::http::secret_file::{self, SecretFileError};

/// The most tokens that may be revoked at a time.
const MAX_REVOKED: usize = 1_000;

/// Where keys and revoked tokens are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// `WEIR_TOKEN_KEY_FILE`: keys of at least 32 bytes, one a line. The first one signs.
    pub key_file: PathBuf,
    /// `WEIR_TOKEN_REVOKED_FILE`: the names (`jti`) of tokens that are valid no more, one a line.
    pub revoked_file: Option<PathBuf>,
}

/// What tokens of tenants are checked by.
#[derive(Debug)]
pub struct TenantTokens {
    settings: TenantSettings,
    now: ArcSwap<(TokenKeys, BTreeSet<Box<str>>)>,
}

// === impl TenantSettings ===

impl TenantSettings {
    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        std::iter::once(&self.key_file).chain(&self.revoked_file).cloned().collect()
    }

    fn read(&self) -> Result<(TokenKeys, BTreeSet<Box<str>>), SecretFileError> {
        let keys = read_keys(&self.key_file)?;
        let read = |path: &PathBuf| secret_file::read("WEIR_TOKEN_REVOKED_FILE", path, revoked);
        Ok((keys, self.revoked_file.as_ref().map(read).transpose()?.unwrap_or_default()))
    }
}

/// Reads the keys of `WEIR_TOKEN_KEY_FILE`. Blocks on file access.
///
/// # Errors
///
/// What is wrong with the file.
pub fn read_keys(path: &Path) -> Result<TokenKeys, SecretFileError> {
    secret_file::read("WEIR_TOKEN_KEY_FILE", path, TokenKeys::parse)
}

fn revoked(text: &str) -> Result<BTreeSet<Box<str>>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let revoked: BTreeSet<Box<str>> = lines.map(Into::into).collect();
    if revoked.len() > MAX_REVOKED {
        return Err(format!("it has more than {MAX_REVOKED} tokens; give the others' owners another key"));
    }
    Ok(revoked)
}

// === impl TenantTokens ===

impl TenantTokens {
    /// Blocks on file access.
    ///
    /// # Errors
    ///
    /// What is wrong with which file.
    pub fn load(settings: TenantSettings) -> Result<Arc<Self>, SecretFileError> {
        let now = ArcSwap::from_pointee(settings.read()?);
        Ok(Arc::new(Self { settings, now }))
    }

    /// Reads the files again after each of `changes`. Files with errors leave keys and revoked tokens as they are.
    pub async fn follow(self: Arc<Self>, mut changes: impl Stream<Item = ()> + Unpin) {
        while changes.next().await.is_some() {
            let settings = self.settings.clone();
            match spawn_blocking(move || settings.read()).await {
                Ok(Ok(read)) => {
                    tracing::info!(revoked = read.1.len(), "keys of tenants' tokens loaded");
                    self.now.store(Arc::new(read));
                }
                Ok(Err(error)) => {
                    let error = weir_observe::text::with_causes(&error);
                    tracing::error!(%error, "keys of tenants' tokens not reloaded, keeping the previous ones");
                }
                Err(error) => tracing::error!(%error, "cannot read the keys of tenants' tokens"),
            }
        }
    }

    pub(super) fn verify(&self, token: &str) -> Result<TenantClaims, TenantTokenError> {
        let now = self.now.load();
        now.0.verify(token, &now.1)
    }
}
