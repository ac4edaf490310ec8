//! The tokens of tenants: JSON Web Tokens (RFC 7519), signed by HMAC with SHA-256, for a domain and entries.

use std::collections::BTreeSet;

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode,
    errors::{Error, ErrorKind},
};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::signing;
use crate::http::admin::answer::hex;
use weir_limit::Entry;

/// Whom tokens are for.
const AUDIENCE: &str = "weir";

/// The fewest bytes of a key: those of the hash.
const LEAST_KEY: usize = 32;

/// The old key and the new one, while they are changed.
const MOST_KEYS: usize = 2;

/// The most bytes of a token.
const MAX_TOKEN: usize = 8 << 10;

/// The keys by which tokens are signed. The first one signs new tokens.
#[derive(Debug)]
pub struct TokenKeys(Vec<TokenKey>);

struct TokenKey {
    /// In the header of tokens: the beginning of the key's hash.
    id: String,
    signs: EncodingKey,
    verifies: DecodingKey,
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantClaims {
    aud: String,
    /// The domain whose counters its owner may see.
    pub domain: String,
    /// The entries with which their descriptors begin, one at least.
    pub entries: Vec<TenantEntry>,
    /// When it was signed, in seconds since the epoch.
    pub iat: u64,
    /// When it ends, in seconds since the epoch.
    pub exp: u64,
    /// Names the token, so that it can be revoked.
    pub jti: String,
}

/// An entry of a [`TenantClaims`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantEntry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Why a token is refused. Callers see the texts, which say nothing about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenantTokenError {
    /// It has no such form, another algorithm, or another signature.
    #[error("the token is not valid")]
    Invalid,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// The file of revoked tokens names it.
    #[error("the token was revoked")]
    Revoked,
}

// === impl TenantEntry ===

impl TenantEntry {
    pub(super) fn as_entry(&self) -> Entry<'_> {
        Entry { key: &self.key, value: &self.value }
    }
}

// === impl TokenKeys ===

impl TokenKeys {
    /// Reads a file of keys, one a line.
    ///
    /// # Errors
    ///
    /// What is wrong with which line, without the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        signing::install();
        let mut keys = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() < LEAST_KEY {
                return Err(format!(
                    "line {number}: a key has at least {LEAST_KEY} bytes, such as the output of `openssl rand -hex 32`"
                ));
            }
            keys.push(TokenKey::new(line.as_bytes()));
        }
        match keys.len() {
            0 => Err("it has no key; write one a line".to_owned()),
            1..=MOST_KEYS => Ok(Self(keys)),
            _ => Err(format!("it has more than {MOST_KEYS} keys: the one that signs, and the one before it")),
        }
    }

    /// Signs a token for `domain` and `entries` that is valid from `now` for `seconds`. Both are in seconds.
    ///
    /// # Errors
    ///
    /// None that a caller could mend.
    pub fn sign(
        &self,
        domain: &str,
        entries: Vec<TenantEntry>,
        now: u64,
        seconds: u64,
    ) -> Result<String, String> {
        let key = &self.0[0];
        let jti = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let exp = now.saturating_add(seconds);
        let claims =
            TenantClaims { aud: AUDIENCE.to_owned(), domain: domain.to_owned(), entries, iat: now, exp, jti };
        let header = Header { kid: Some(key.id.clone()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims, &key.signs).map_err(|error| error.to_string())
    }

    /// Returns what `token` says, if it is valid now.
    ///
    /// # Errors
    ///
    /// See [`TenantTokenError`].
    pub fn verify(
        &self,
        token: &str,
        revoked: &BTreeSet<Box<str>>,
    ) -> Result<TenantClaims, TenantTokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TenantTokenError::Invalid);
        }
        let kid = decode_header(token).map_err(refused)?.kid;
        let key = self.0.iter().find(|key| kid.as_ref() == Some(&key.id)).ok_or(TenantTokenError::Invalid)?;
        // of the algorithms, this one alone
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "aud"]);
        validation.leeway = 0;
        let claims: TenantClaims = decode(token, &key.verifies, &validation).map_err(refused)?.claims;
        if claims.entries.is_empty() || claims.domain.is_empty() {
            return Err(TenantTokenError::Invalid);
        }
        if revoked.contains(&*claims.jti) { Err(TenantTokenError::Revoked) } else { Ok(claims) }
    }
}

// === impl TokenKey ===

impl TokenKey {
    fn new(key: &[u8]) -> Self {
        let hash = digest(&SHA256, key);
        let id = hex(&hash.as_ref()[..4]);
        Self { id, signs: EncodingKey::from_secret(key), verifies: DecodingKey::from_secret(key) }
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKey").field("id", &self.id).finish_non_exhaustive()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn refused(error: Error) -> TenantTokenError {
    match error.kind() {
        ErrorKind::ExpiredSignature => TenantTokenError::Expired,
        _ => TenantTokenError::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn entries() -> Vec<TenantEntry> {
        vec![TenantEntry { key: "tenant".to_owned(), value: "acme".to_owned() }]
    }

    fn now() -> u64 {
        std::time::UNIX_EPOCH.elapsed().expect("it is later").as_secs()
    }

    #[test]
    fn a_token_is_valid_until_its_end_by_its_key_alone() {
        let keys = TokenKeys::parse(&format!("# keys\n{KEY}\n")).expect("valid");
        let token = keys.sign("shop", entries(), now(), 60).expect("signed");
        let none = BTreeSet::new();
        let claims = keys.verify(&token, &none).expect("valid");
        assert_eq!((&*claims.domain, &claims.entries), ("shop", &entries()));
        assert_eq!(claims.exp - claims.iat, 60);
        let revoked = std::iter::once(claims.jti.into()).collect();
        assert_eq!(keys.verify(&token, &revoked), Err(TenantTokenError::Revoked));
        let expired = keys.sign("shop", entries(), now() - 61, 60).expect("signed");
        assert_eq!(keys.verify(&expired, &none), Err(TenantTokenError::Expired));
        // the new key signs, and the old one is still known
        let both = TokenKeys::parse(&format!("{KEY}x\n{KEY}\n")).expect("valid");
        assert!(both.verify(&token, &none).is_ok());
        let by_new = both.sign("shop", entries(), now(), 60).expect("signed");
        assert_eq!(keys.verify(&by_new, &none), Err(TenantTokenError::Invalid));
    }

    #[test]
    fn forged_tokens_are_refused() {
        let keys = TokenKeys::parse(KEY).expect("valid");
        let other = TokenKeys::parse(&format!("{KEY}x")).expect("valid");
        let none = BTreeSet::new();
        let token = keys.sign("shop", entries(), now(), 60).expect("signed");
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, signature] = parts[..] else { panic!("three parts") };
        // {"alg":"none","typ":"JWT"}, and the same with the name of the key
        let unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
        let by_other = other.sign("shop", entries(), now(), 60).expect("signed");
        let forged = [
            String::new(),
            "..".to_owned(),
            format!("{header}.{claims}."),
            format!("{unsigned}.{claims}."),
            format!("{unsigned}.{claims}.{signature}"),
            format!("{header}.{claims}.{}", by_other.rsplit('.').next().expect("a signature")),
            format!("{header}.{}.{signature}", by_other.split('.').nth(1).expect("claims")),
            by_other,
            "x".repeat(MAX_TOKEN + 1),
        ];
        for token in forged {
            assert_eq!(keys.verify(&token, &none), Err(TenantTokenError::Invalid), "{token}");
        }
    }

    #[test]
    fn a_wrong_file_of_keys_is_told_without_its_keys() {
        for (text, expected) in [
            (String::new(), "it has no key"),
            (format!("\n{}", &KEY[1..]), "line 2: a key has at least 32 bytes"),
            (format!("{KEY}\n{KEY}1\n{KEY}2"), "more than 2 keys"),
        ] {
            let error = TokenKeys::parse(&text).expect_err(&text);
            assert!(error.contains(expected) && !error.contains(&KEY[1..]), "{error}");
        }
    }
}
