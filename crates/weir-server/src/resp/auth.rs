use std::fmt;

use ring::digest::{Digest, SHA256, digest};

/// The user of a client that names none.
pub(super) const DEFAULT_USER: &str = "default";

/// A user and password, as digests, so that the time of a comparison tells nothing about them.
#[derive(Clone, Copy)]
pub struct Auth {
    user: Digest,
    password: Digest,
}

// === impl Auth ===

impl Auth {
    /// Parses a password, or `user:password`; none if the password or the user is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let (user, password) = text.split_once(':').unwrap_or((DEFAULT_USER, text));
        let hash = |text: &str| digest(&SHA256, text.as_bytes());
        (!user.is_empty() && !password.is_empty())
            .then(|| Self { user: hash(user), password: hash(password) })
    }

    pub(super) fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        let is = |expected: &Digest, given: &[u8]| digest(&SHA256, given).as_ref() == expected.as_ref();
        is(&self.user, user) & is(&self.password, password)
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(…)")
    }
}

impl PartialEq for Auth {
    fn eq(&self, other: &Self) -> bool {
        self.user.as_ref() == other.user.as_ref() && self.password.as_ref() == other.password.as_ref()
    }
}

impl Eq for Auth {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_contain_colons_and_a_user_is_optional() {
        let auth = Auth::parse("me:a:b").expect("a user and a password");
        assert!(auth.admits(b"me", b"a:b"));
        assert!(!auth.admits(b"me", b"a") && !auth.admits(b"default", b"a:b"));
        assert!(Auth::parse("secret").expect("a password").admits(b"default", b"secret"));
        assert_eq!([Auth::parse(""), Auth::parse("me:"), Auth::parse(":x")], [None; 3]);
        assert_eq!(format!("{auth:?}"), "Auth(…)");
    }
}
