//! The hash slot of a key.

pub(super) const SLOTS: u16 = 16_384;

/// CRC-16/XMODEM of the hash tag (Redis cluster specification, "Key distribution model").
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The text between the first opening brace and the next closing one if it is not empty, else the whole key.
fn tag(key: &[u8]) -> &[u8] {
    let tagged = || {
        let open = key.iter().position(|byte| *byte == b'{')?;
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    };
    tagged().unwrap_or(key)
}

/// Computes the CRC with the polynomial 0x1021, the most significant bit first, starting from zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_equal_those_of_redis() {
        // the check value of CRC-16/XMODEM, and replies of `CLUSTER KEYSLOT`
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), slot(b"hash_tag"));
    }

    #[test]
    fn only_the_first_tag_counts_and_only_if_it_is_not_empty() {
        assert_eq!(tag(b"p:{a}{b}"), b"a");
        assert_eq!(tag(b"p:{{a}b"), b"{a");
        assert_eq!(tag(b"p:{}a"), b"p:{}a");
        assert_eq!(tag(b"p:{a"), b"p:{a");
    }
}
