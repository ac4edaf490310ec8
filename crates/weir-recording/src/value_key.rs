//! The key under which values are hashed, so that who has a recording does not learn them.

use std::{fmt, str::FromStr};

use weir_limit::{Entry, IN_FLIGHT, KeyHasher, PlaceName, RequestName};

/// A secret of 256 bits. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ValueKey([u64; 4]);

/// What a key has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct ValueKeyError;

// === impl ValueKey ===

impl ValueKey {
    /// Creates a key of random bits.
    pub const fn new(bits: [u64; 4]) -> Self {
        Self(bits)
    }

    /// Returns what stands for the value of `entry`: `#` and 32 hexadecimal digits. The name of a request in flight stays a
    /// name, with hashed values.
    pub fn hashed(&self, entry: &Entry<'_>) -> String {
        match RequestName::read(entry.value).filter(|_| entry.key == IN_FLIGHT) {
            Some(name) if name.place != PlaceName::NONE || name.descriptors().next().is_some() => {
                self.hashed_name(&name)
            }
            _ => self.hash(entry),
        }
    }

    fn hash(&self, entry: &Entry<'_>) -> String {
        // twice, each time under a half of the secret
        let [a, b, c, d] = self.0;
        let first = hash([a, b], entry);
        format!("#{}", hash([c, d], &Entry { key: "", value: &first }))
    }

    fn hashed_name(&self, name: &RequestName) -> String {
        let hashed: Vec<Vec<(String, String)>> = name
            .descriptors()
            .map(|entries| entries.iter().map(|entry| (entry.key.to_owned(), self.hash(entry))).collect())
            .collect();
        let held: Vec<Vec<Entry<'_>>> = hashed
            .iter()
            .map(|entries| entries.iter().map(|(key, value)| Entry { key, value }).collect())
            .collect();
        RequestName::write(name.place, held.iter().map(|entries| &**entries))
    }
}

fn hash(secret: [u64; 2], entry: &Entry<'_>) -> String {
    let key = KeyHasher::with_secret(secret).key("", &[*entry], |_| None);
    format!("{:016x}{:016x}", key.hash(), key.shard())
}

impl FromStr for ValueKey {
    type Err = ValueKeyError;

    fn from_str(text: &str) -> Result<Self, ValueKeyError> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ValueKeyError);
        }
        let part = |i: usize| u64::from_str_radix(&text[16 * i..16 * (i + 1)], 16).map_err(|_| ValueKeyError);
        Ok(Self([part(0)?, part(1)?, part(2)?, part(3)?]))
    }
}

impl fmt::Display for ValueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| write!(f, "{part:016x}"))
    }
}

/// Shows no secret.
impl fmt::Debug for ValueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValueKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_and_equal_values_have_equal_hashes() {
        let key = ValueKey::new([0x0123, u64::MAX, 0, 7]);
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in ["", "12", &"0".repeat(63), &"g".repeat(64), &"+0".repeat(32)] {
            assert_eq!(text.parse::<ValueKey>(), Err(ValueKeyError), "{text}");
        }
        let hashed = |key: &ValueKey, name, value| key.hashed(&Entry { key: name, value });
        assert_eq!(hashed(&key, "tenant", "acme"), hashed(&key, "tenant", "acme"));
        let others = [
            hashed(&key, "tenant", "acme2"),
            hashed(&key, "user", "acme"),
            hashed(&ValueKey::new([1, 2, 3, 4]), "tenant", "acme"),
        ];
        assert!(others.iter().all(|other| *other != hashed(&key, "tenant", "acme") && other.len() == 33));
    }

    #[test]
    fn the_name_of_a_request_in_flight_stays_one_without_its_values() {
        let key = ValueKey::new([1, 2, 3, 4]);
        let place = PlaceName::from_bytes(&[7; PlaceName::LEN]).expect("a name");
        let held = [Entry { key: "tenant", value: "acme" }];
        let name = RequestName::write(place, [&held[..]]);
        let hashed = key.hashed(&Entry { key: IN_FLIGHT, value: &name });
        let read = RequestName::read(&hashed).expect("a name");
        assert_eq!(read.place, place);
        let entries = read.descriptors().next().expect("a descriptor");
        assert_eq!((entries[0].key, entries[0].value), ("tenant", &*key.hashed(&held[0])));
    }
}
