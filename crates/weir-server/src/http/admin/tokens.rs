//! The file of tokens: lines of `name:level:token`, read again when it changes.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use futures_util::{Stream, StreamExt as _};
use ring::{
    digest::{Digest, SHA256, digest},
    hmac::{self, HMAC_SHA256},
};
use tokio::task::spawn_blocking;

use super::permission::AdminLevel;
use crate::http::secret_file::{self, SecretFileError};

const MAX_TOKENS: usize = 256;

/// The fewest characters of a token: that many letters cannot be guessed.
const LEAST_TOKEN: usize = 32;

const MAX_NAME: usize = 64;

/// The tokens that are valid now.
#[derive(Debug)]
pub struct AdminTokens {
    path: PathBuf,
    tokens: ArcSwap<Vec<AdminToken>>,
}

#[derive(Clone)]
pub(super) struct AdminToken {
    pub(super) name: Box<str>,
    pub(super) level: AdminLevel,
    /// A digest, so that the time of a comparison tells nothing.
    digest: Digest,
    /// Signs cookies.
    key: hmac::Key,
}

// === impl AdminTokens ===

impl AdminTokens {
    /// Blocks on file access.
    pub fn load(path: &Path) -> Result<Arc<Self>, SecretFileError> {
        let tokens = ArcSwap::from_pointee(read(path)?);
        Ok(Arc::new(Self { path: path.to_owned(), tokens }))
    }

    /// Reads the file again after each of `changes`. A file with errors leaves the tokens as they are.
    pub async fn follow(self: Arc<Self>, mut changes: impl Stream<Item = ()> + Unpin) {
        while changes.next().await.is_some() {
            let path = self.path.clone();
            match spawn_blocking(move || read(&path)).await {
                Ok(Ok(tokens)) => {
                    tracing::info!(tokens = tokens.len(), "tokens of the admin API loaded");
                    self.tokens.store(Arc::new(tokens));
                }
                Ok(Err(error)) => {
                    let error = weir_observe::text::with_causes(&error);
                    tracing::error!(%error, "tokens of the admin API not reloaded, keeping the previous ones");
                }
                Err(error) => tracing::error!(%error, "cannot read the tokens of the admin API"),
            }
        }
    }

    /// Looks at all tokens, whichever is right.
    pub(super) fn find(&self, given: &[u8]) -> Option<AdminToken> {
        let given = digest(&SHA256, given);
        let is_it = |token: &&AdminToken| token.digest.as_ref() == given.as_ref();
        self.tokens.load().iter().filter(is_it).fold(None, |_, token| Some(token.clone()))
    }

    pub(super) fn named(&self, name: &str) -> Option<AdminToken> {
        self.tokens.load().iter().find(|token| *token.name == *name).cloned()
    }
}

// === impl AdminToken ===

impl AdminToken {
    fn parse(line: &str) -> Result<Self, String> {
        let mut parts = line.splitn(3, ':').map(str::trim);
        let (Some(name), Some(level), Some(token)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("write name:level:token".to_owned());
        };
        let is_of_name = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_of_name) {
            return Err(format!("a name has 1 to {MAX_NAME} letters, digits, - and _"));
        }
        let level = match level {
            "read" => AdminLevel::Read,
            "full" => AdminLevel::Full,
            _ => return Err("the level is read or full".to_owned()),
        };
        if token.len() < LEAST_TOKEN || !token.chars().all(|char| char.is_ascii_graphic() && char != '.') {
            return Err(format!(
                "a token has at least {LEAST_TOKEN} printable characters of ASCII, and no dot or space, such as the \
                 output of `openssl rand -hex 32`"
            ));
        }
        let (digest, key) =
            (digest(&SHA256, token.as_bytes()), hmac::Key::new(HMAC_SHA256, token.as_bytes()));
        Ok(Self { name: name.into(), level, digest, key })
    }

    pub(super) const fn key(&self) -> &hmac::Key {
        &self.key
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminToken")
            .field("name", &self.name)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<AdminToken>, SecretFileError> {
    secret_file::read("WEIR_ADMIN_TOKEN_FILE", path, parse)
}

fn parse(text: &str) -> Result<Vec<AdminToken>, String> {
    let (mut tokens, mut names, mut digests) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = AdminToken::parse(line).map_err(|error| format!("line {number}: {error}"))?;
        if !names.insert(token.name.clone()) {
            return Err(format!("line {number}: another line has the name {}", token.name));
        }
        if !digests.insert(token.digest.as_ref().to_vec()) {
            return Err(format!("line {number}: another line has the same token"));
        }
        tokens.push(token);
    }
    match tokens.len() {
        0 => Err("it has no token; write a line name:level:token".to_owned()),
        1..=MAX_TOKENS => Ok(tokens),
        _ => Err(format!("it has more than {MAX_TOKENS} tokens")),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const ALICE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_file_has_names_levels_and_tokens() {
        let tokens =
            parse(&format!("# people\n\nalice:full:{ALICE}\n bob : read : {ALICE}:x \n")).expect("valid");
        let levels: Vec<_> = tokens.iter().map(|token| (&*token.name, token.level)).collect();
        assert_eq!(levels, [("alice", AdminLevel::Full), ("bob", AdminLevel::Read)]);
        let tokens = AdminTokens { path: PathBuf::new(), tokens: ArcSwap::from_pointee(tokens) };
        let found = |token: &str| tokens.find(token.as_bytes()).map(|token| token.name.to_string());
        assert_eq!(found(ALICE).as_deref(), Some("alice"));
        assert_eq!(found(&format!("{ALICE}:x")).as_deref(), Some("bob"));
        assert_eq!([found(&ALICE[1..]), found("")], [None, None]);
        assert!(!format!("{tokens:?}").contains(ALICE));
    }

    #[test]
    fn a_wrong_line_is_told_without_its_token() {
        let long = "x".repeat(MAX_NAME + 1);
        for (text, expected) in [
            (String::new(), "it has no token"),
            (ALICE.to_owned(), "line 1: write name:level:token"),
            (format!("\na b:full:{ALICE}"), "line 2: a name has"),
            (format!("{long}:full:{ALICE}"), "line 1: a name has"),
            (format!("a:admin:{ALICE}"), "line 1: the level is read or full"),
            (format!("a:off:{ALICE}"), "line 1: the level is read or full"),
            (format!("a:full:{}", &ALICE[1..]), "line 1: a token has at least 32"),
            (format!("a:full:{ALICE}.x"), "no dot"),
            (format!("a:full:{ALICE} x"), "no dot or space"),
            (format!("a:full:{ALICE}\na:read:{ALICE}x"), "line 2: another line has the name a"),
            (format!("a:full:{ALICE}\nb:read:{ALICE}"), "line 2: another line has the same token"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(expected) && !error.contains(&ALICE[1..]), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tokens");
        fs::write(&path, format!("a:full:{ALICE}\n")).expect("a file");
        for (mode, is_right) in [(0o600, true), (0o440, true), (0o644, false), (0o601, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
            let loaded = AdminTokens::load(&path);
            assert_eq!(loaded.is_ok(), is_right, "{mode:o}");
            if let Err(error) = loaded {
                assert!(error.to_string().contains("chmod o-rwx"), "{error}");
            }
        }
    }
}
