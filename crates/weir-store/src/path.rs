//! The path of a target: the text that names its domain and entries, in keys of a shared store.
//!
//! `shop|tenant=acme|path=/login` is the domain, and then each entry: its key, `=` and its value, or `~` and a pattern,
//! list or network where values that match it share a counter. No two lists of entries have the same path: the separators are escaped
//! as `%` and two hexadecimal digits where they are part of a name. `}` is escaped too, because it ends the part of a
//! key that selects a slot of a Redis cluster.

use std::{borrow::Cow, fmt::Write as _};

use weir_limit::{CounterValue, LimitCheck, request_bucket::BucketName};

/// The domain and the only key of buckets that come with requests; no rule has this domain.
pub const BUCKET_DOMAIN: &str = "";
/// The only key of these buckets.
pub const BUCKET_KEY: &str = "key";

/// The bytes that are escaped in the key of an entry.
const OF_KEYS: Special = Special::new(b"%|}=~");

const OF_VALUES: Special = Special::new(b"%|}");

/// The beginning of the path of a limit in the shadow of a rule. It is no escape, so no domain begins with it.
const SHADOW: &str = "%shadow|";

/// The bytes above which a path is shortened where the key in the shared store is weir's own.
const LONG: usize = 256;

/// The bytes that a shortened path keeps, for people who read the keys of a store.
const KEPT: usize = 128;

/// The SHA-256 of bytes: an argument, so that a store in memory needs no cryptography.
pub type Sha256 = fn(&[u8]) -> [u8; 32];

struct Special([bool; 256]);

pub fn path_of(check: &LimitCheck<'_>) -> Box<str> {
    let entries = check.entries.iter().enumerate().map(|(i, entry)| (entry.key, check.value(i)));
    let path = path(check.domain, entries);
    if check.rule.is_shadow() { [SHADOW, &path].concat().into() } else { path }
}

pub(super) fn is_of_shadow(path: &str) -> bool {
    path.starts_with(SHADOW)
}

/// Returns the path of the buckets of `name`, shortened by `sha256` if it is long.
pub fn path_of_buckets(name: &BucketName<'_>, sha256: Sha256) -> Box<str> {
    let value = bytes_as_text(name.key());
    shortened(path(BUCKET_DOMAIN, std::iter::once((BUCKET_KEY, CounterValue::Own(value.into())))), sha256)
}

/// `%` and bytes that are not UTF-8 become `%` and two hexadecimal digits, so that no two keys have the same text.
pub fn bytes_as_text(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for (i, part) in chunk.valid().split('%').enumerate() {
            text.extend([if i > 0 { "%25" } else { "" }, part]);
        }
        for byte in chunk.invalid() {
            // writing to a string does not fail
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The last entry, which names the member, has only its key, and the pattern of its values if there is one.
pub fn pool_path_of(check: &LimitCheck<'_>) -> Box<str> {
    let last = check.entries.len().saturating_sub(1);
    let entries = check.entries.iter().enumerate().take(last).map(|(i, entry)| (entry.key, check.value(i)));
    let mut path = String::from(path(check.domain, entries));
    if let Some(member) = check.entries.get(last) {
        path.push('|');
        escape(member.key, &OF_KEYS, &mut path);
        if let Some(pattern) = check.shared(last) {
            path.push('~');
            escape(pattern, &OF_VALUES, &mut path);
        }
    }
    path.into()
}

pub(super) fn path<'a>(domain: &str, entries: impl Iterator<Item = (&'a str, CounterValue<'a>)>) -> Box<str> {
    let mut path = String::with_capacity(96);
    escape(domain, &OF_VALUES, &mut path);
    for (key, value) in entries {
        path.push('|');
        escape(key, &OF_KEYS, &mut path);
        path.push(if matches!(value, CounterValue::Own(_)) { '=' } else { '~' });
        escape(&value, &OF_VALUES, &mut path);
    }
    path.into()
}

/// A long `path` becomes its beginning, `%#`, which is no escape, and its SHA-256, so that counters and keys have a
/// bounded size. All instances must agree on the hash, and callers, who choose values, must find no collision.
pub fn shortened(path: Box<str>, sha256: Sha256) -> Box<str> {
    if path.len() <= LONG {
        return path;
    }
    let mut short = path[..path.floor_char_boundary(KEPT)].to_owned();
    short.push_str("%#");
    for byte in sha256(path.as_bytes()) {
        // writing to a string does not fail
        let _ = write!(short, "{byte:02x}");
    }
    short.into()
}

/// A long name of a member is shortened in the same way at all instances.
pub fn shortened_name(name: CounterValue<'_>, sha256: Sha256) -> Cow<'_, str> {
    let (CounterValue::Own(name) | CounterValue::Shared(name)) = name;
    if name.len() <= LONG { name } else { String::from(shortened((*name).into(), sha256)).into() }
}

/// In the format of envoyproxy/ratelimit, such as `shop_tenant_acme_path_/login_`, which is ambiguous.
pub(super) fn reference_path(path: &str) -> String {
    let mut reference = String::with_capacity(path.len() + 16);
    for (i, part) in path.split('|').enumerate() {
        match part.split_once(['=', '~']).filter(|_| i > 0) {
            Some((key, value)) => {
                unescape(key, &mut reference);
                reference.push('_');
                unescape(value, &mut reference);
            }
            None => unescape(part, &mut reference),
        }
        reference.push('_');
    }
    reference
}

fn escape(text: &str, special: &Special, path: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| special.has(byte)) {
        path.push_str(&rest[..at]);
        // writing to a string does not fail
        let _ = write!(path, "%{:02X}", rest.as_bytes()[at]);
        rest = &rest[at + 1..];
    }
    path.push_str(rest);
}

fn unescape(text: &str, plain: &mut String) {
    let mut parts = text.split('%');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        match part.split_at_checked(2).map(|(digits, rest)| (u8::from_str_radix(digits, 16), rest)) {
            Some((Ok(byte), rest)) => {
                plain.push(char::from(byte));
                plain.push_str(rest);
            }
            _ => plain.extend(["%", part]),
        }
    }
}

// === impl Special ===

impl Special {
    const fn new(bytes: &[u8]) -> Self {
        let mut is_special = [false; 256];
        let mut i = 0;
        while i < bytes.len() {
            is_special[bytes[i] as usize] = true;
            i += 1;
        }
        Self(is_special)
    }

    const fn has(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use ring::digest::{SHA256, digest};

    use super::*;

    type Entries = Vec<(String, bool, String)>;

    fn own(value: &str) -> CounterValue<'_> {
        CounterValue::Own(value.into())
    }

    fn shared(value: &str) -> CounterValue<'_> {
        CounterValue::Shared(value.into())
    }

    fn path_of_entries(domain: &str, entries: &Entries) -> Box<str> {
        let value = |is_shared: &bool, value| if *is_shared { shared(value) } else { own(value) };
        path(domain, entries.iter().map(|(key, is_shared, text)| (key.as_str(), value(is_shared, text))))
    }

    fn entries() -> impl Strategy<Value = (String, Entries)> {
        let text = || "[ab_=~|%}{27]{0,4}";
        (text(), vec((text(), any::<bool>(), text()), 0..3))
    }

    proptest! {
        #[test]
        fn different_entries_have_different_paths(one in entries(), other in entries()) {
            prop_assert_eq!(path_of_entries(&one.0, &one.1) == path_of_entries(&other.0, &other.1), one == other);
        }

        #[test]
        fn the_path_of_envoyproxy_ratelimit_joins_all_names((domain, entries) in entries()) {
            let parts = entries.iter().flat_map(|(key, _, value)| [key.as_str(), value]);
            let joined: String = [domain.as_str()].into_iter().chain(parts).flat_map(|part| [part, "_"]).collect();
            prop_assert_eq!(reference_path(&path_of_entries(&domain, &entries)), joined);
            let ends_early = path_of_entries(&domain, &entries).contains('}');
            prop_assert!(!ends_early);
        }
    }

    #[test]
    fn long_paths_have_a_bounded_length_and_stay_different() {
        let sha256 = |bytes: &[u8]| digest(&SHA256, bytes).as_ref().try_into().expect("32 bytes");
        let value = |value: &str| shortened(path("shop", [("k", own(value))].into_iter()), sha256);
        let most = LONG - "shop|k=".len();
        assert_eq!(value(&"x".repeat(most)).len(), LONG);
        let (one, other) = ("x".repeat(most + 1), "x".repeat(most) + "y");
        assert_ne!(value(&one), value(&other));
        assert_eq!(value(&"}".repeat(4 << 20)).len(), KEPT + 2 + 64);
        // in the middle of a character
        assert!(value(&"\u{fc}".repeat(1_000)).contains("%#"));
        // all instances of all versions must agree
        let expected = "shop|k=".to_owned()
            + &"x".repeat(KEPT - 7)
            + "%#958365a2a1ef0f74ae1478da458230b1a538aba8db500d1b34d987a7e1310f1c";
        assert_eq!(*value(&"x".repeat(300)), *expected);
    }

    #[test]
    fn ordinary_names_are_readable() {
        let entries = [("remote_address", own("10.0.0.1")), ("path", shared("/users/*"))];
        assert_eq!(&*path("shop", entries.into_iter()), "shop|remote_address=10.0.0.1|path~/users/*");
        let entries = [("q=1", own("a=b|c}%"))];
        assert_eq!(&*path("shop", entries.into_iter()), "shop|q%3D1=a=b%7Cc%7D%25");
    }

    #[test]
    fn keys_of_any_bytes_have_texts_of_their_own() {
        assert_eq!(bytes_as_text(b"user:1"), "user:1");
        assert_eq!(bytes_as_text("\u{fc}".as_bytes()), "\u{fc}");
        assert_eq!(bytes_as_text(b"a%FF"), "a%25FF");
        assert_eq!(bytes_as_text(b"a\xff"), "a%FF");
        assert_eq!(bytes_as_text(b"\xc3"), "%C3");
    }
}
