//! SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), for texts that are pushed piece
//! by piece. The pieces are collected, since hashing a few bytes at a time costs more than the hash.

/// The bytes that are collected before they are hashed. A multiple of a word.
const COLLECTED: usize = 64;

/// The bytes that are hashed at once.
const WORD: usize = 8;

/// A hash of the texts pushed so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct SipHash {
    state: [u64; 4],
    /// The bytes that are not hashed yet, in the first `len` places.
    bytes: [u8; COLLECTED],
    len: usize,
    /// The number of hashed bytes.
    hashed: usize,
}

// === impl SipHash ===

impl SipHash {
    /// Returns the hash of nothing under a `secret`.
    pub(super) const fn new(secret: [u64; 2]) -> Self {
        let [k0, k1] = secret;
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { state, bytes: [0; COLLECTED], len: 0, hashed: 0 }
    }

    /// Appends `text`, and then the byte `end`.
    pub(super) fn push(&mut self, text: &[u8], end: u8) {
        if text.len() >= COLLECTED - self.len {
            self.push_long(text);
        } else {
            copy(text, &mut self.bytes[self.len..]);
            self.len += text.len();
        }
        // there is room: the text was shorter than the rest, or all whole words are hashed
        self.bytes[self.len] = end;
        self.len += 1;
    }

    /// Appends a text that does not fit, and hashes all that is collected but the last bytes.
    #[cold]
    fn push_long(&mut self, mut text: &[u8]) {
        self.hash_words();
        while !text.is_empty() {
            let (now, later) = text.split_at(text.len().min(COLLECTED - self.len));
            copy(now, &mut self.bytes[self.len..]);
            self.len += now.len();
            text = later;
            self.hash_words();
        }
    }

    /// Hashes the whole words that are collected, and keeps the bytes after them.
    fn hash_words(&mut self) {
        let words = self.len / WORD * WORD;
        for word in self.bytes[..words].as_chunks().0 {
            absorb(&mut self.state, u64::from_le_bytes(*word));
        }
        self.bytes.copy_within(words..self.len, 0);
        self.len -= words;
        self.hashed += words;
    }

    /// Returns the hash of all texts.
    pub(super) fn finish(&self) -> [u64; 2] {
        let mut state = self.state;
        let (words, rest) = self.bytes[..self.len].as_chunks();
        for word in words {
            absorb(&mut state, u64::from_le_bytes(*word));
        }
        // the last word has the rest, and in its last byte the length of all modulo 256
        let mut last = [0; WORD];
        copy(rest, &mut last);
        last[WORD - 1] = (self.hashed + self.len).to_le_bytes()[0];
        absorb(&mut state, u64::from_le_bytes(last));
        state[2] ^= 0xee;
        let first = squeeze(&mut state);
        state[1] ^= 0xdd;
        [first, squeeze(&mut state)]
    }
}

/// Copies `from` to the start of `to`, which is at least as long. Short texts, as most are, are copied without a call.
fn copy(from: &[u8], to: &mut [u8]) {
    let len = from.len();
    if let (4..=8, Some(first), Some(last)) = (len, from.first_chunk::<4>(), from.last_chunk::<4>()) {
        to[..4].copy_from_slice(first);
        to[len - 4..len].copy_from_slice(last);
    } else if let (9..=16, Some(first), Some(last)) = (len, from.first_chunk::<8>(), from.last_chunk::<8>()) {
        to[..8].copy_from_slice(first);
        to[len - 8..len].copy_from_slice(last);
    } else {
        to[..len].copy_from_slice(from);
    }
}

/// Mixes `word` into `state`, in one round.
const fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

/// Mixes `state` in three rounds, and returns 64 bits of it.
const fn squeeze(state: &mut [u64; 4]) -> u64 {
    round(state);
    round(state);
    round(state);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

const fn round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32).wrapping_add(d);
    c = c.wrapping_add(b);
    d = d.rotate_left(21) ^ a;
    b = b.rotate_left(17) ^ c;
    *state = [a, b, c.rotate_left(32), d];
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use proptest::{collection::vec, prelude::*};
    use siphasher::sip128::{Hasher128 as _, SipHasher13};

    use super::*;

    proptest! {
        /// The hash is that of another implementation, however the bytes are cut into texts.
        #[test]
        fn texts_are_hashed_as_one(secret: [u64; 2], texts in vec((vec(any::<u8>(), 0..200), any::<u8>()), 0..8)) {
            let mut ours = SipHash::new(secret);
            let mut theirs = SipHasher13::new_with_keys(secret[0], secret[1]);
            for (text, end) in &texts {
                ours.push(text, *end);
                theirs.write(text);
                theirs.write(&[*end]);
                let expected = theirs.finish128();
                prop_assert_eq!(ours.finish(), [expected.h1, expected.h2]);
            }
        }
    }
}
