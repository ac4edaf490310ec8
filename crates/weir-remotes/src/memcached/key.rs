//! Keys that Memcached accepts, and the server that holds a key.
//!
//! Memcached accepts keys of up to 250 bytes without spaces and control characters. envoyproxy/ratelimit cannot count
//! other keys; weir replaces them by their SHA-256.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

const MAX_BYTES: usize = 250;

/// Returns `key`, or its hash if Memcached does not accept it.
pub(super) fn accepted(key: String) -> String {
    let is_accepted = key.len() <= MAX_BYTES && key.bytes().all(|byte| byte > b' ' && byte != 0x7f);
    if is_accepted { key } else { hashed(&key) }
}

fn hashed(key: &str) -> String {
    let mut hashed = String::with_capacity(76);
    hashed.push_str("weir:sha256:");
    for byte in digest(&SHA256, key.as_bytes()).as_ref() {
        // writing to a string does not fail
        let _ = write!(hashed, "{byte:02x}");
    }
    hashed
}

/// As the client of envoyproxy/ratelimit: the CRC-32 of the key modulo the number of servers.
pub(super) fn server(key: &str, servers: usize) -> usize {
    if servers < 2 { 0 } else { crc32fast::hash(key.as_bytes()) as usize % servers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_envoyproxy_ratelimit_can_count_are_unchanged() {
        for key in ["shop_tenant_acme_1234560".to_owned(), "k".repeat(250), "schl\u{fc}ssel_1".to_owned()] {
            assert_eq!(accepted(key.clone()), key);
        }
    }

    #[test]
    fn other_keys_are_hashed_each_to_one_of_its_own() {
        let long = |last| format!("{}{last}", "k".repeat(250));
        let keys = [long('a'), long('b'), "a b".into(), "a\tb".into(), "a\r\nb".into(), "a\u{7f}b".into()];
        let mut hashed: Vec<String> = keys.map(accepted).into();
        assert!(hashed.iter().all(|key| key.len() == 76 && key.starts_with("weir:sha256:")));
        hashed.sort_unstable();
        hashed.dedup();
        assert_eq!(hashed.len(), 6);
        // the example of FIPS 180-4
        let empty = "weir:sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::hashed("abc"), empty);
    }

    #[test]
    fn the_server_of_a_key_is_its_checksum_modulo_their_number() {
        // the check value of the algorithm
        assert_eq!(server("123456789", 1), 0);
        assert_eq!(server("123456789", 7), 0xcbf4_3926_usize % 7);
    }
}
