//! The cookie of a browser that has shown a token: the token's name and an end, signed with the token, so that every
//! instance with the same file takes it.

use axum::http::{HeaderMap, header::COOKIE};
use ring::hmac;
use weir_limit::{Period, Timestamp};

use super::{
    answer::hex,
    tokens::{AdminToken, AdminTokens},
};

/// Its life.
pub(super) const LIFE: Period = Period::from_secs(12 * 3_600);

const NAME: &str = "weir_admin";

/// Browsers take it over TLS alone, and for this host alone.
const SECURE_NAME: &str = "__Host-weir_admin";

/// Begins what is signed: no other signature by a token means this.
const PURPOSE: &str = "weir admin cookie";

/// By how much the clocks of instances may differ.
const CLOCKS: Period = Period::from_secs(300);

/// The most cookies that are looked at.
const MOST: usize = 64;

/// The header of a cookie with `value` for so many seconds.
pub(super) fn header(value: &str, seconds: u64, is_encrypted: bool) -> String {
    let (name, secure) = if is_encrypted { (SECURE_NAME, "; Secure") } else { (NAME, "") };
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// The value until `end`, in seconds since the epoch.
pub(super) fn value(token: &AdminToken, end: u64) -> String {
    let signature = hmac::sign(token.key(), &message(&token.name, end));
    format!("{}.{end}.{}", token.name, hex(signature.as_ref()))
}

/// Returns the token of a valid cookie among `headers`.
pub(super) fn find(
    headers: &HeaderMap,
    tokens: &AdminTokens,
    is_encrypted: bool,
    now: Timestamp,
) -> Option<AdminToken> {
    let name = if is_encrypted { SECURE_NAME } else { NAME };
    let all = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut values = all.flat_map(|cookies| cookies.split(';')).take(MOST).filter_map(|cookie| {
        cookie.trim().split_once('=').filter(|(of, _)| *of == name).map(|(_, value)| value)
    });
    values.find_map(|value| verify(value, tokens, now))
}

fn verify(value: &str, tokens: &AdminTokens, now: Timestamp) -> Option<AdminToken> {
    let mut parts = value.splitn(3, '.');
    let (name, end, signature) = (parts.next()?, parts.next()?, parts.next()?);
    let (token, end) = (tokens.named(name)?, end.parse::<u64>().ok()?);
    let latest = now.after(LIFE).after(CLOCKS);
    let at = Timestamp::from_secs(end);
    hmac::verify(token.key(), &message(name, end), &bytes(signature)?).ok()?;
    (now < at && at <= latest).then_some(token)
}

fn message(name: &str, end: u64) -> Vec<u8> {
    format!("{PURPOSE}\n{name}\n{end}").into_bytes()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?).ok();
    (hex.len() == 64).then(|| hex.as_bytes().chunks(2).map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc};

    use axum::http::HeaderValue;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn tokens(text: &str) -> Arc<AdminTokens> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tokens");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        AdminTokens::load(&path).expect("tokens")
    }

    fn found(cookie: &str, tokens: &AdminTokens, is_encrypted: bool, now: u64) -> bool {
        let headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(cookie).expect("a value"))]);
        find(&headers, tokens, is_encrypted, Timestamp::from_secs(now)).is_some()
    }

    #[test]
    fn a_cookie_is_valid_until_its_end_for_the_token_that_signed_it() {
        let alice = tokens(&format!("alice:full:{}\n", "a".repeat(32)));
        let value = value(&alice.named("alice").expect("a token"), NOW + 100);
        let cookie = format!("other=1; weir_admin={value}");
        assert!(found(&cookie, &alice, false, NOW));
        assert!(!found(&cookie, &alice, true, NOW), "over TLS it has another name");
        assert!(found(&format!("__Host-weir_admin={value}"), &alice, true, NOW));
        assert!(!found(&cookie, &alice, false, NOW + 100), "it has ended");
        assert!(!found(&cookie, &alice, false, NOW - 13 * 3_600), "its end is too late");
        let changed = tokens(&format!("alice:full:{}\n", "b".repeat(32)));
        assert!(!found(&cookie, &changed, false, NOW), "the token has changed");
        for forged in [
            value.replace("alice", "root"),
            value.replace(&(NOW + 100).to_string(), &(NOW + 200).to_string()),
            value[..value.len() - 1].to_owned(),
            value[..value.len() - 2].to_owned() + "zz",
            "alice".to_owned(),
            String::new(),
        ] {
            assert!(!found(&format!("weir_admin={forged}"), &alice, false, NOW), "{forged}");
        }
    }

    #[test]
    fn scripts_and_other_sites_do_not_get_it() {
        let header = header("v", 43_200, true);
        assert_eq!(header, "__Host-weir_admin=v; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure");
    }
}
